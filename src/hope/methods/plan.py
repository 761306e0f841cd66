"""What a method has to work with: states of layers, prices of blocks, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from fnmatch import fnmatchcase
from functools import partial
from itertools import islice
from typing import Any

from torch import Tensor, nn

from hope.anatomy.anatomy import Anatomy
from hope.anatomy.reasons import Cause, Reason
from hope.anatomy.steps import Absorb, Action, Evict, Merge, Prune
from hope.anatomy.units import NeuronLayer
from hope.errors import InfeasibleBudget
from hope.graph.blocks import Block
from hope.methods.absorption import AbsorbPath
from hope.methods.path import Move, layer_path
from hope.methods.scores import SCORES
from hope.methods.signals import block_state, layer_capacities, layer_state, release
from hope.methods.state import BlockState, LayerState, View
from hope.ops.norm import read_bn
from hope.run.live import Shrinking
from hope.run.merge import Choice, Done, State, choices
from hope.run.trajectory import UNITS, allowed
from hope.signals.measure import measured_views
from hope.signals.propagate import Propagated
from hope.signals.views import absorb_state, propagated_views

METHODS = ("hope", "absorb", *SCORES)


class Plan:
    """States and prices for one run.

    Attributes:
        layers: the states of layers that the method can work on.
        blocks: the blocks that it may evict, with their prices.
        views: moments of what weights read (absorption only).
        left_alone: name -> why, of layers and blocks that the method could not price.
        notes: what else a user should know.
    """

    def __init__(
        self,
        model: nn.Module,
        anatomy: Anatomy,
        method: str,
        *,
        evict: bool = True,
        exclude: Sequence[str] = (),
        calibration: Iterable[Any] | None = None,
    ) -> None:
        self.anatomy, self.method = anatomy, method
        self.left_alone: dict[str, Reason] = {}
        self.notes: list[str] = []
        self.layers: list[State] = []
        self.blocks: list[BlockState] = []
        self.views: dict[str, View] = {}
        self._tensors = {
            name: t.detach().cpu() for name, t in [*model.named_parameters(), *model.named_buffers()]
        }
        self._exclude = exclude
        self._surrogate: Propagated | None = None
        self._measured = calibration is not None
        if method == "absorb":
            self._read_views(model, calibration)
        for layer in anatomy.layers:
            state = _excluded(layer, exclude) or self._state(layer)
            if isinstance(state, Reason):
                self.left_alone[layer.name] = state
            else:
                self.layers.append(state)
        if evict and method in ("hope", "absorb"):
            self._add_blocks()

    # ---- layers ----------------------------------------------------------------------------------

    def _read_views(self, model: nn.Module, calibration: Iterable[Any] | None) -> None:
        self.views, self._surrogate = propagated_views(self.anatomy, self._tensors)
        if calibration is not None:
            self.views = measured_views(model, self.anatomy, calibration, self.views)
        elif self._surrogate.fallbacks:
            names = self._surrogate.fallbacks
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            self.notes.append(
                f"not propagated, taken pair by pair instead: the inputs of {', '.join(names[:3])}{more}"
            )

    def _state(self, layer: NeuronLayer) -> State | Reason:
        if self.method == "hope":
            return layer_state(layer, self.anatomy, self._tensors)
        if self.method == "absorb":
            share = self._share(layer.block) if layer.block is not None else 1.0
            return absorb_state(
                layer, self.anatomy, self._tensors, self.views, share, measured=self._measured
            )
        scores = SCORES[self.method](layer, self._tensors)
        if scores is None:
            return Cause.NO_BN.at()
        return LayerState(layer.name, scores, release(self.anatomy, layer.slices))

    def _share(self, name: str) -> float:
        """Of the stream's variance behind a block, what its branch writes."""
        block = next((block for block in self.anatomy.blocks if block.name == name), None)
        at = {op.name: position for position, op in enumerate(self.anatomy.program)}
        if block is None or self._surrogate is None or block.branch_output not in at:
            return 1.0
        return self._surrogate.share(at[block.branch_output])

    def capacities(self) -> dict[str, list[float]]:
        """Layer -> ‖f_i‖ of its neurons (a baseline's scores) in the original network, where known."""
        if self.method != "absorb":
            return {s.name: s.capacities.tolist() for s in self.layers if isinstance(s, LayerState)}
        known = {layer.name: layer_capacities(layer, self._tensors) for layer in self.anatomy.layers}
        return {name: found.tolist() for name, found in known.items() if not isinstance(found, Reason)}

    # ---- blocks ----------------------------------------------------------------------------------

    def _add_blocks(self) -> None:
        for block in self.anatomy.blocks:
            state = _removes_excluded(block, self._exclude, self._tensors) or self._block(block)
            if isinstance(state, Reason):
                self.left_alone[block.name] = state
            else:
                self.blocks.append(state)

    def _block(self, block: Block) -> BlockState | Reason:
        if self.method == "hope":
            known = [state for state in self.layers if isinstance(state, LayerState)]
            return block_state(block, self.anatomy, self._tensors, known)
        if block.inside is not None:
            return Cause.NESTED.at()
        known_names = {state.name: position for position, state in enumerate(self.layers)}
        positions = tuple(known_names[name] for name in block.layers if name in known_names)
        return BlockState(
            block.name, positions, (), max(1, block.release), self._share(block.name), self._mean(block)
        )

    def _mean(self, block: Block) -> tuple[float, ...] | None:
        """What a branch writes on average: its last BN's shift."""
        if not block.bias or block.last_bn is None:
            return None
        bn = read_bn(self._tensors, block.last_bn, 1e-5)
        ok = bn is not None and len(bn.shift) == block.channels
        return tuple(bn.shift.tolist()) if bn is not None and ok else None

    # ---- the run ---------------------------------------------------------------------------------

    def stream(
        self,
        *,
        merge: str | None = "pair",
        kernel: str = "zero-bias",
        executor: Executor | None = None,
        static_release: bool = True,
        done: Sequence[Action] = (),
    ) -> Iterator[Choice]:
        """The method's actions, one at a time; under absorption without evictions.

        Args:
            done: what an interrupted run has done already; the rest follows.
        """
        if self.method == "absorb":
            begun = [self._done(action) for action in done]
            return choices(self.layers, walk=AbsorbPath, executor=executor, done=begun)
        states = [state for state in self.layers if isinstance(state, LayerState)]
        if self.method != "hope":
            return islice(self._by_score(states), len(done), None)
        live = None if static_release else Shrinking(self.anatomy, states, self.blocks)
        walk = partial(layer_path, merge=merge, kernel=kernel)
        return choices(
            states, self.blocks, walk=walk, executor=executor, live=live, done=[self._done(a) for a in done]
        )

    def _done(self, action: Action) -> Done:
        """An action as the loop knows it."""
        if isinstance(action, Evict):
            return next(k for k, b in enumerate(self.blocks) if b.name == action.block), -1, -1
        layer = next(k for k, s in enumerate(self.layers) if s.name == action.layer)
        if isinstance(action, Merge):
            return layer, action.keep, action.drop
        return layer, action.neurons[0], -1

    def _by_score(self, states: Sequence[LayerState]) -> Iterator[Choice]:
        """Prune by ascending score over the whole network, never the last neuron of a layer."""
        ranked = sorted(
            (float(score), position, neuron)
            for position, state in enumerate(states)
            for neuron, score in enumerate(state.capacities.tolist())
        )
        left = [state.neurons for state in states]
        total = [state.capacity for state in states]
        for score, position, neuron in ranked:
            if left[position] > 1:
                left[position] -= 1
                total[position] -= score
                move = Move(score, neuron, -1, left[position], total[position], None)
                yield Choice("prune", position, score, states[position].release, move)

    def action(self, choice: Choice) -> Action:
        """A choice as an action on the network."""
        if choice.move is None:
            block = self.blocks[choice.target]
            return Evict(block.name, block.bias)
        layer, move = self.layers[choice.target].name, choice.move
        if move.recipe is None:
            return (Absorb if self.method == "absorb" else Prune)(layer, move.neuron)
        return Merge(layer, move.neuron, move.other, move.recipe.rows, move.recipe.outs, move.recipe.spread)

    def check(self, unit: str, budget: float) -> None:
        """Say before the work starts whether a budget can be met."""
        if unit not in ("density", "params", "macs"):
            return
        removed = {state.name: state.neurons - 1 for state in self.layers}
        outer = [state.name for state in self.blocks]
        least, original = self.anatomy.size(removed, outer), self.anatomy.size()
        column = ("neurons", "parameters", "macs")[UNITS.index(unit)]
        low, high = getattr(least, column), getattr(original, column)
        if low > allowed(unit, budget, high):
            raise InfeasibleBudget(
                f"{unit}={budget:g} cannot be met: the least is {unit}={low / max(high, 1):.4f} "
                f"({low:,} of {high:,}); the rest is listed in print(hope.inspect(...))"
            )


def _excluded(layer: NeuronLayer, patterns: Sequence[str]) -> Reason | None:
    names = {layer.name, *layer.also, *(consumer.module for consumer in layer.consumers)}
    return next((Cause.EXCLUDED.at(p) for p in patterns for name in names if fnmatchcase(name, p)), None)


def _removes_excluded(block: Block, patterns: Sequence[str], tensors: Mapping[str, Tensor]) -> Reason | None:
    modules = {name.rpartition(".")[0] for name in tensors if block.removes(name)}
    return next((Cause.EXCLUDED.at(p) for p in patterns for name in modules if fnmatchcase(name, p)), None)
