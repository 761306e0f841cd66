"""Blocks without a skip: parts of concatenations, and segments of chains that keep their shape.

HOPE does not search inside residual blocks: there the paper's unit of eviction is the block.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from hope import ops
from hope.ops.activation import Activation
from hope.ops.elementwise import Identity
from hope.ops.join import Concatenation, Item
from hope.ops.norm import BatchNorm
from hope.structure.channel_tracer import ChannelTracer
from hope.structure.units import Unit
from hope.trace.blocks import BlockMatch, DominatorTree
from hope.trace.program import Operation, Ref, references

Neuron: TypeAlias = tuple[str, int]  # a layer's name and the neuron's index


class Finder:
    """Finds blocks without a skip."""

    def __init__(
        self,
        layout: DominatorTree,
        flow: ChannelTracer,
        layers: Sequence[Unit],
        residual: Sequence[BlockMatch],
    ) -> None:
        self._layout, self._flow, self._layers = layout, flow, layers
        self._taken = frozenset[int]().union(*(one.branch | one.skip for one in residual))
        self._root = flow.ties.resolve()
        self._neurons: dict[int, Neuron] = {}
        for layer in layers:
            part = next(part for part in layer.places if part.tensor == layer.weight and part.role == "out")
            ids = self._root[flow.ids[part.tensor, part.dim]]
            owners = zip(ids.tolist(), part.owner.tolist(), strict=True)
            self._neurons.update({one: (layer.name, neuron) for one, neuron in owners if neuron >= 0})

    def _along(self, position: int, dim: int) -> list[Neuron] | None:
        """The neurons along a dimension of a result; None if it also has anything else."""
        ids = self._flow.along(self._layout.program[position], dim)
        if ids is None or (ids < 0).any():
            return None
        found = [self._neurons.get(one) for one in self._root[ids].tolist()]
        return [one for one in found if one is not None] if None not in found else None

    # ---- parts of concatenations ---------------------------------------------------------------------------

    def parts(self) -> Iterator[BlockMatch]:
        """Parts of concatenations along channels.

        Such a part is read only by concatenations, each of which has another part. It consists of whole
        layers, and everything that writes them is computed for the part alone.
        """
        layout = self._layout
        joins: dict[int, list[int]] = {}  # the end of a part -> the concatenations that read it
        for position in layout.above:
            if self._joins(layout.program[position]):
                for end in dict.fromkeys(references(layout.program[position].first)):
                    joins.setdefault(end, []).append(position)
        for end, cats in joins.items():
            if end not in layout.above or end in self._taken or set(layout.below[end]) != set(cats):
                continue
            others = [frozenset(references(layout.program[cat].first)) - {end} for cat in cats]
            branch = layout.only_for(end)
            if all(others) and self._whole(end, cats, branch):
                yield BlockMatch("concatenation", cats[0], -1, end, frozenset(branch), others=tuple(others))

    @staticmethod
    def _joins(operation: Operation) -> bool:
        return isinstance(ops.find(operation), Concatenation) and operation.operator != "stack"

    def _whole(self, end: int, cats: list[int], branch: set[int]) -> bool:
        """Whether the channels of a part are all those of layers that its branch writes."""
        program = self._layout.program
        if any(program[position].operator == "input" for position in branch):
            return False
        places = {(program[cat].arguments["dim"] or 0) % len(program[cat].output) for cat in cats}
        neurons = self._along(end, places.pop())
        if neurons is None or places:
            return False
        tensors = self._layout.tensors(branch)
        ends = [layer for layer in self._layers if layer.name in {name for name, _ in neurons}]
        every = {(layer.name, neuron) for layer in ends for neuron in range(layer.neurons)}
        return every == set(neurons) and all(layer.weight in tensors for layer in ends)

    # ---- segments of chains --------------------------------------------------------------------------------

    def segments(self) -> Iterator[BlockMatch]:
        """Segments of chains: a weight with the following BN and activation, whose output has the shape of
        its input.

        It reads one layer that nothing else reads, neuron k at position k, and writes its own neuron k to
        position k. Operations after the weight belong to it if modules run them.
        """
        uses: dict[str, list[int]] = {}
        for position in self._layout.above:
            for tensor in self._layout.tensors([position]):
                uses.setdefault(tensor, []).append(position)
        for layer in self._layers:
            using = uses.get(layer.weight, [])
            source = self._layout.program[using[0]].first if len(using) == 1 else None
            if not isinstance(source, Ref) or source.position not in self._layout.above:
                continue
            dim = self._flow.channel_dim(self._layout.program[using[0]])
            run = self._run(using[0])
            before = self._before(layer, source.position, dim)
            own = [(layer.name, neuron) for neuron in range(layer.neurons)]
            same = self._layout.program[source.position].shape == self._layout.program[using[0]].shape
            if before and same and not self._taken & set(run) and self._along(using[0], dim) == own:
                kept = next((run[:n] for n in range(len(run), 0, -1) if self._covered(run[:n])), None)
                if kept is not None:
                    end = kept[-1]
                    yield BlockMatch("chain", end, source.position, end, frozenset(kept), before=before)

    def _run(self, start: int) -> list[int]:
        """A weight and the channel-wise operations after it: BNs and activations."""
        layout, run, length = self._layout, [start], 1
        while len(set(layout.below[run[-1]])) == 1:
            operation = layout.program[layout.below[run[-1]][0]]
            entry = ops.find(operation)
            if operation.shape != layout.program[start].shape or len(layout.above[operation.position]) != 1:
                break
            if not isinstance(entry, (BatchNorm, Activation, Identity, Item)):
                break
            run.append(operation.position)
            length = len(run) if isinstance(entry, (BatchNorm, Activation)) else length
        return run[:length]

    def _covered(self, run: list[int]) -> bool:
        """Whether modules run exactly these operations."""
        modules = self._layout.outermost(frozenset(run))
        return set(run) == {position for module in modules for position in self._layout.ran[module]}

    def _before(self, layer: Unit, source: int, dim: int) -> str | None:
        """The layer that only this one reads, neuron k at position k."""
        neurons = self._along(source, dim)
        if neurons is None:
            return None
        before = next(one for one in self._layers if one.name == neurons[0][0])
        only = {part.tensor for part in before.places if part.role == "in"} == {layer.weight}
        each = neurons == [(before.name, neuron) for neuron in range(layer.neurons)]
        return before.name if only and each and before.neurons == layer.neurons else None


def skipless(
    layout: DominatorTree, flow: ChannelTracer, layers: Sequence[Unit], residual: Sequence[BlockMatch]
) -> list[BlockMatch]:
    """All blocks without a skip."""
    finder = Finder(layout, flow, layers, residual)
    return [*finder.parts(), *finder.segments()]
