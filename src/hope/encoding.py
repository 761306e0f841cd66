"""`hope.encode`: compress a network to a budget. `hope.capacities`: the analysis on its own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice
from os import PathLike
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from torch import Tensor, nn

from hope.anatomy.anatomy import Anatomy, Size
from hope.anatomy.blocks import Block
from hope.anatomy.graph import Example
from hope.anatomy.neurons import NeuronLayer
from hope.anatomy.table import grid, text
from hope.criteria.scores import SCORES
from hope.encoder.actions import Action, Evict, Merge, Prune
from hope.encoder.live import Shrinking
from hope.encoder.loop import Choice, choices
from hope.encoder.state import BlockState, LayerState
from hope.encoder.trajectory import UNITS, Trajectory, allowed, one_budget, sizes
from hope.errors import HopeError, InfeasibleBudget
from hope.inspection import inspect
from hope.surgery.operate import duplicate, operate
from hope.surgery.store import save_trajectory
from hope.surrogate.signals import block_state, layer_state, release

METHODS = ("hope", *SCORES)
CHUNK = 256  # steps between two looks at the budget


class UnknownMethod(HopeError, ValueError):
    """There is no method, merge or kernel of that name."""


@dataclass(frozen=True, eq=False)
class Encoding:
    """A run: one trajectory, and the network at any moment of it. `print` it for a summary.

    Attributes:
        anatomy: the network that was encoded.
        trajectory: every step, with its cost and the size after it.
        steps: how many of them the budget took.
        method: how they were chosen.
        left_alone: layers and blocks that the method could not price, with the reason.
    """

    anatomy: Anatomy
    trajectory: Trajectory
    steps: int
    method: str
    left_alone: Mapping[str, str]
    original: nn.Module = field(repr=False)

    @cached_property
    def model(self) -> nn.Module:
        """The compressed model: same class, smaller layers."""
        return self._after(self.steps)

    def at(
        self,
        *,
        density: float | None = None,
        params: float | None = None,
        macs: float | None = None,
        steps: int | None = None,
    ) -> nn.Module:
        """The network at another moment of the same run, from the original weights; nothing is computed
        again.
        """
        unit, budget = one_budget(density=density, params=params, macs=macs, steps=steps)
        return self._after(self.trajectory.steps_to(unit, budget))

    def _after(self, steps: int) -> nn.Module:
        small = duplicate(self.original)
        operate(small, self.anatomy, self.trajectory.actions[:steps])
        return small

    @property
    def size(self) -> Size:
        """Neurons, parameters and MACs at the budget."""
        return self.trajectory.size(self.steps)

    def save(self, folder: str | PathLike[str]) -> Path:
        """Save the run: the trajectory as JSON, the compressed weights as safetensors."""
        return save_trajectory(
            folder, self.original, self.model, self.anatomy, self.trajectory, self.steps, self.method
        )

    def __str__(self) -> str:
        before, after = self.trajectory.size(0), self.size
        mix = ", ".join(f"{count} {kind}s" for kind, count in self.trajectory.mix(self.steps).items())
        table = grid(
            f"{self.anatomy.model} by {self.method}: {self.steps} steps ({mix})",
            " ",
            "before",
            "after",
            "kept",
        )
        for name in ("neurons", "parameters", "macs"):
            old, new = getattr(before, name), getattr(after, name)
            table.add_row(name, f"{old:,}", f"{new:,}", f"{new / old:.1%}" if old else "")
        parts: list[object] = [table]
        if self.left_alone:
            reasons = grid("Left alone by this method", " what", " why")
            for name, reason in list(self.left_alone.items())[:12]:
                reasons.add_row(name, reason)
            more = len(self.left_alone) - 12
            parts += ["", reasons, *([f"and {more} more (encoding.left_alone)"] if more > 0 else [])]
        return text(*parts)


def encode(
    model: nn.Module,
    example: Example | None = None,
    *,
    density: float | None = None,
    params: float | None = None,
    macs: float | None = None,
    steps: int | None = None,
    method: str = "hope",
    merge: str | None = "pair",
    kernel: str = "zero-bias",
    evict: bool = True,
    static_release: bool = True,
    exclude: Sequence[str] = (),
    executor: Executor | None = None,
    anatomy: Anatomy | None = None,
    progress: bool | None = None,
) -> Encoding:
    """Compress a network to a budget, without data. The model is not changed.

    Exactly one budget is given: a fraction of the original (a float up to 1), or a count.

    Args:
        model: a trained model that `hope.inspect` can read.
        example: an input it can run on.
        density: share (or number) of compressible neurons to keep.
        params: share (or number) of parameters to keep.
        macs: share (or number) of multiply-accumulates to keep.
        steps: how many actions to take.
        method: "hope", or a baseline: "l1-in", "l1-joint", "bn-scale", "random".
        merge: "pair" as in the paper, "sum" (two neurons are replaced by one that stands for their sum), or
            None.
        kernel: "zero-bias" as in the paper, or "exact".
        evict: whether residual blocks may be evicted.
        static_release: rank actions by what they release in the original network, as the paper does.
        exclude: patterns (`*`, `?`) of module names that must stay untouched, inputs and outputs.
        executor: any `concurrent.futures.Executor` to work out the layers' paths on; the result is the same.
        anatomy: what `hope.inspect` returned, to save reading the model again.
        progress: show a progress bar; by default on a terminal only.

    Raises:
        InfeasibleBudget: the budget cannot be met; the message says what can.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)
        ... ).eval()
        >>> encoding = hope.encode(net, torch.zeros(1, 3, 8, 8), density=0.5)
        >>> encoding.model[0]
        Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1))
        >>> encoding.at(steps=1)[0]
        Conv2d(3, 7, kernel_size=(3, 3), stride=(1, 1))
    """
    unit, budget = one_budget(density=density, params=params, macs=macs, steps=steps)
    _check_options(method, merge, kernel)
    if anatomy is None:
        anatomy = inspect(model, example, progress=progress)
    plan = _Plan(model, anatomy, method, evict, exclude)
    plan.check(unit, budget)
    if method == "hope":
        live = None if static_release else Shrinking(anatomy, plan.layers, plan.blocks)
        stream = choices(plan.layers, plan.blocks, merge=merge, kernel=kernel, executor=executor, live=live)
    else:
        stream = _by_score(plan)
    trajectory = _collect(plan, stream, unit, budget, progress)
    taken = trajectory.steps_to(unit, budget)
    return Encoding(anatomy, trajectory, taken, method, plan.left_alone, duplicate(model))


def capacities(
    model: nn.Module, example: Example | None = None, *, progress: bool | None = None
) -> dict[str, Tensor]:
    """The capacity ‖f_i‖ of every neuron, per layer: the analysis on its own.

    Example:
        >>> import torch, hope
        >>> linear, bn = torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5)
        >>> net = torch.nn.Sequential(linear, bn, torch.nn.ReLU(), torch.nn.Linear(5, 2))
        >>> {name: tuple(values.shape) for name, values in hope.capacities(net, torch.zeros(2, 3)).items()}
        {'0': (5,)}
    """
    plan = _Plan(model, inspect(model, example, progress=progress), "hope", False, ())
    return {state.name: state.capacities for state in plan.layers}


def _check_options(method: str, merge: str | None, kernel: str) -> None:
    for name, value, known in (
        ("method", method, METHODS),
        ("merge", merge, ("pair", "sum", None)),
        ("kernel", kernel, ("zero-bias", "exact")),
    ):
        if value not in known:
            raise UnknownMethod(f"there is no {name} {value!r}: choose from {', '.join(map(str, known))}")


class _Plan:
    """What a method has to work with: states (or scores) of layers and blocks, and what it must leave
    alone.
    """

    def __init__(
        self, model: nn.Module, anatomy: Anatomy, method: str, evict: bool, exclude: Sequence[str]
    ) -> None:
        self.anatomy = anatomy
        self.left_alone: dict[str, str] = {}
        self.layers: list[LayerState] = []
        self.blocks: list[BlockState] = []
        tensors = {name: t.detach().cpu() for name, t in [*model.named_parameters(), *model.named_buffers()]}
        for layer in anatomy.layers:
            state = _excluded(layer, exclude) or self._state(layer, tensors, method)
            if isinstance(state, str):
                self.left_alone[layer.name] = state
            else:
                self.layers.append(state)
        if method == "hope" and evict:
            self._add_blocks(tensors, exclude)

    def _state(self, layer: NeuronLayer, tensors: Mapping[str, Tensor], method: str) -> LayerState | str:
        if method == "hope":
            return layer_state(layer, self.anatomy, tensors)
        scores = SCORES[method](layer, tensors)
        if scores is None:
            return "it has no BN"
        return LayerState(layer.name, scores, release(self.anatomy, layer.slices))

    def _add_blocks(self, tensors: Mapping[str, Tensor], exclude: Sequence[str]) -> None:
        for block in self.anatomy.blocks:
            state = _removes_excluded(block, exclude, tensors) or block_state(
                block, self.anatomy, tensors, self.layers
            )
            if isinstance(state, str):
                self.left_alone[block.name] = state
            else:
                self.blocks.append(state)

    def check(self, unit: str, budget: float) -> None:
        """Say before the work starts whether a budget can be met."""
        if unit == "steps":
            return
        removed = {state.name: len(state.capacities) - 1 for state in self.layers}
        outer = [state.name for state in self.blocks]
        least, original = self.anatomy.size(removed, outer), self.anatomy.size()
        column = {"density": "neurons", "params": "parameters", "macs": "macs"}[unit]
        low, high = getattr(least, column), getattr(original, column)
        if low > allowed(unit, budget, high):
            raise InfeasibleBudget(
                f"{unit}={budget:g} cannot be met: the least is {unit}={low / max(high, 1):.4f} "
                f"({low:,} of {high:,}); the rest is listed in print(hope.inspect(...))"
            )


def _excluded(layer: NeuronLayer, patterns: Sequence[str]) -> str | None:
    names = {layer.name, *layer.also, *(consumer.module for consumer in layer.consumers)}
    return next((f"excluded by {p!r}" for p in patterns for name in names if fnmatchcase(name, p)), None)


def _removes_excluded(block: Block, patterns: Sequence[str], tensors: Mapping[str, Tensor]) -> str | None:
    modules = {name.rpartition(".")[0] for name in tensors if block.removes(name)}
    return next((f"excluded by {p!r}" for p in patterns for name in modules if fnmatchcase(name, p)), None)


def _by_score(plan: _Plan) -> Iterator[Choice]:
    """Prune by ascending score over the whole network, never the last neuron of a layer."""
    from hope.encoder.path import Move

    ranked = sorted(
        (float(score), position, neuron)
        for position, state in enumerate(plan.layers)
        for neuron, score in enumerate(state.capacities.tolist())
    )
    left = [len(state.capacities) for state in plan.layers]
    for score, position, neuron in ranked:
        if left[position] > 1:
            left[position] -= 1
            yield Choice(
                "prune",
                position,
                score,
                plan.layers[position].release,
                Move(score, neuron, -1, left[position], 0.0, None),
            )


def _action(plan: _Plan, choice: Choice) -> Action:
    if choice.move is None:
        return Evict(plan.blocks[choice.target].name)
    layer, move = plan.layers[choice.target].name, choice.move
    if move.recipe is None:
        return Prune(layer, move.neuron)
    return Merge(layer, move.neuron, move.other, move.recipe.rows, move.recipe.outs, move.recipe.spread)


def _collect(
    plan: _Plan, stream: Iterator[Choice], unit: str, budget: float, progress: bool | None
) -> Trajectory:
    """Take steps until the budget is met."""
    actions: list[Action] = []
    costs: list[float] = []
    releases: list[int] = []
    console = Console(stderr=True)
    show = console.is_terminal if progress is None else progress
    columns = (TextColumn("encoding"), BarColumn(), TextColumn("{task.percentage:.0f}%"), TimeElapsedColumn())
    trajectory = Trajectory((), (), (), sizes(plan.anatomy, ()))
    with Progress(*columns, console=console, transient=True, disable=not show) as bar:
        task = bar.add_task("encoding", total=1.0)
        while not _met(trajectory, unit, budget):
            some = list(islice(stream, CHUNK if unit != "steps" else min(CHUNK, int(budget) - len(actions))))
            actions += [_action(plan, choice) for choice in some]
            costs += [choice.cost for choice in some]
            releases += [choice.release for choice in some]
            table = sizes(plan.anatomy, actions)
            trajectory = Trajectory(tuple(actions), tuple(costs), tuple(releases), table)
            bar.update(task, completed=_progress(trajectory, unit, budget))
            if not some:
                break
    return replace(trajectory)


def _met(trajectory: Trajectory, unit: str, budget: float) -> bool:
    if unit == "steps":
        return len(trajectory) >= budget
    column = UNITS.index(unit)
    return bool(trajectory.sizes[-1, column] <= allowed(unit, budget, int(trajectory.sizes[0, column])))


def _progress(trajectory: Trajectory, unit: str, budget: float) -> float:
    if unit == "steps":
        return len(trajectory) / max(budget, 1)
    column = trajectory.sizes[:, UNITS.index(unit)]
    goal = allowed(unit, budget, int(column[0]))
    return float((column[0] - column[-1]) / max(column[0] - goal, 1))
