"""What is no longer there after some steps, neuron by neuron: the only account of what an eviction takes
along.

A residual branch takes nothing along: what it adds into stays. Without a skip it does. A part of a
concatenation takes all neurons of its layers along, wherever they are read; of each concatenation one part
stays. A segment of a chain leaves an identity: neuron k of the unit in front of it then goes where neuron k
of the segment went, so from then on the two are one neuron, and it is gone if either was.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hope.structure.steps import Evict, Step

if TYPE_CHECKING:
    from hope.structure.anatomy import Anatomy
    from hope.trace.blocks import Block


class Removed:
    """What steps have removed so far.

    Attributes:
        neurons: unit -> its neurons that are gone; units that have become one share a set.
        evicted: names of evicted blocks, in order.
    """

    def __init__(self, anatomy: Anatomy) -> None:
        self._anatomy = anatomy
        self.neurons: dict[str, set[int]] = {}
        self.evicted: list[str] = []
        self._tied: dict[str, tuple[str, ...]] = {}

    def of(self, name: str) -> set[int]:
        """The neurons of a unit that are gone."""
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
        """The neurons that are gone once a segment of a chain is."""
        assert block.before is not None
        return self.of(block.before) | self.of(block.layers[0])

    def going(self, step: Step) -> dict[str, set[int]]:
        """Unit -> the neurons that would go by a step and are still there."""
        if not isinstance(step, Evict):
            return dict.fromkeys(self.tied(step.name), set(step.gone) - self.of(step.name))
        block = self._anatomy.block(step.name)
        if block.skip == "concatenation":
            units = (self._anatomy.unit(name) for name in block.layers)
            return {unit.name: set(range(unit.neurons)) - self.of(unit.name) for unit in units}
        return {name: self._union(block) - self.of(name) for name in self._one(block)}

    def _one(self, block: Block) -> tuple[str, ...]:
        """The units that are one without a segment of a chain."""
        return (*self.tied(block.before), *self.tied(block.layers[0])) if block.before is not None else ()

    def take(self, step: Step) -> dict[str, set[int]]:
        """Note a step; returns unit -> the neurons that went by it and were still there."""
        going = self.going(step)
        if isinstance(step, Evict):
            self.evicted.append(step.name)
            one = self._one(self._anatomy.block(step.name))
            self._tied.update(dict.fromkeys(one, one))
        for name, neurons in going.items():
            self.of(name).update(neurons)
        for name in going:
            self.neurons[name] = self.neurons[self.tied(name)[0]]
        return going
