"""What is no longer there after some actions, neuron by neuron: the only account of what an eviction removes
with it.

A residual branch removes no neuron: the stream that it adds into is kept. A part of a concatenation removes
all neurons of its layers, wherever they are read; of each concatenation one part is kept. A segment of a
chain leaves an identity: neuron k of the unit in front of it is then read where neuron k of the segment was,
so from then on the two are one neuron, removed if either was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from hope.structure.anatomy import Anatomy
    from hope.trace.blocks import Block


class Removal(Protocol):
    """An action as far as sizes go (see `actions.base.Action`)."""

    @property
    def name(self) -> str:
        """The unit, or the block that is evicted."""

    @property
    def removed(self) -> tuple[int, ...]:
        """The neurons of the unit that are removed."""

    @property
    def evicts(self) -> str | None:
        """The block that is evicted, if one is."""

    @property
    def bias(self) -> Sequence[float] | None:
        """The bias that replaces an evicted block."""

    def entry_bits(self, anatomy: Anatomy) -> Mapping[str, float]:
        """Tensor -> how many bits one of its entries is stored in from now on, where that changes."""

    def scale_bits(self, anatomy: Anatomy) -> Mapping[str, tuple[float, int]]:
        """Tensor -> bits of a scale, and how many entries of a row share one (0: all), where scales are
        stored in addition.
        """


class Removed:
    """What actions have removed so far.

    Attributes:
        neurons: unit -> its removed neurons; units that have become one share a set.
        evicted: names of evicted blocks, in order.
    """

    def __init__(self, anatomy: Anatomy) -> None:
        self._anatomy = anatomy
        self.neurons: dict[str, set[int]] = {}
        self.evicted: list[str] = []
        self._tied: dict[str, tuple[str, ...]] = {}

    def of(self, name: str) -> set[int]:
        """The removed neurons of a unit."""
        return self.neurons.setdefault(name, set())

    def tied(self, name: str) -> tuple[str, ...]:
        """The units that have become one with this one, in order of execution, itself among them."""
        return self._tied.get(name, (name,))

    def refuses(self, name: str) -> str:
        """Why a block cannot be evicted now, in a few words; "" if it can."""
        block = self._anatomy.block(name)
        if any(all(name in self.evicted for name in others) for others in block.besides):
            return "it is the last part of a concatenation"
        if block.before is not None:
            both = self._union(block)
            if len(both) == self._anatomy.unit(block.before).neurons:
                return f"no neuron of {block.layers[0]} and its counterpart in {block.before} are both left"
        return ""

    def _union(self, block: Block) -> set[int]:
        """The neurons that are removed once a segment of a chain is evicted."""
        assert block.before is not None
        return self.of(block.before) | self.of(block.layers[0])

    def removed_by(self, action: Removal) -> dict[str, set[int]]:
        """Unit -> the neurons that an action would remove, of those still there."""
        if action.evicts is not None:
            return self.removed_with(action.evicts)
        if not action.removed:
            return {}
        return dict.fromkeys(self.tied(action.name), set(action.removed) - self.of(action.name))

    def removed_with(self, name: str) -> dict[str, set[int]]:
        """Unit -> the neurons that evicting a block would remove, of those still there."""
        block = self._anatomy.block(name)
        if block.skip == "concatenation":
            units = (self._anatomy.unit(name) for name in block.layers)
            return {unit.name: set(range(unit.neurons)) - self.of(unit.name) for unit in units}
        return {name: self._union(block) - self.of(name) for name in self._one(block)}

    def _one(self, block: Block) -> tuple[str, ...]:
        """The units that are one without a segment of a chain."""
        return (*self.tied(block.before), *self.tied(block.layers[0])) if block.before is not None else ()

    def take(self, action: Removal) -> dict[str, set[int]]:
        """Note an action; returns unit -> the neurons that it removed."""
        return self.evict(action.evicts) if action.evicts is not None else self._note(self.removed_by(action))

    def evict(self, name: str) -> dict[str, set[int]]:
        """Note that a block is evicted; returns unit -> the neurons that it removed."""
        lost = self.removed_with(name)
        self.evicted.append(name)
        one = self._one(self._anatomy.block(name))
        self._tied.update(dict.fromkeys(one, one))
        return self._note(lost)

    def _note(self, lost: dict[str, set[int]]) -> dict[str, set[int]]:
        for name, neurons in lost.items():
            self.of(name).update(neurons)
        for name in lost:
            self.neurons[name] = self.neurons[self.tied(name)[0]]
        return lost
