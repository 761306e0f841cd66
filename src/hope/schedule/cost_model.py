"""What ranks the steps of a run by another resource than parameters: by MACs, or by time, wherever its
prediction comes from.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from hope.actions import Action
from hope.structure.anatomy import Anatomy
from hope.structure.removed import Removal
from hope.structure.sizes import Counts, released, sizes


class Savings(Protocol):
    """How much of a resource steps would save in the network as it is at some moment of a run."""

    def unit(self, name: str) -> float:
        """What a neuron's removal saves, above 0: smoothed, where times go in steps."""

    def block(self, name: str) -> float:
        """What a block's eviction saves, above 0."""

    def take(self, action: Removal) -> set[str]:
        """Note an action; returns the units of which a neuron saves something else from now on."""


class CostModel(Protocol):
    """How much a network needs of a resource along its run: MACs, or predicted nanoseconds."""

    @property
    def resource(self) -> str:
        """The name of the resource."""

    @property
    def multiples(self) -> Sequence[int]:
        """What widths may be kept multiples of, unless a multiple was asked for (see `run_to_budget`)."""

    def to_list(self) -> list[int]:
        """Numbers that identify a cost model: a run that was ranked by another one is not resumed. None if
        the network identifies it.
        """

    def counts(self, steps: Sequence[Action]) -> Counts:
        """(steps + 1,) how much before the first and after each step."""

    def after(self, removed: Mapping[str, int], evicted: Collection[str] = ()) -> int:
        """How much after a cut (see `Anatomy.size`)."""

    def savings(self) -> Savings:
        """What steps save, from the original on."""


class MacCost:
    """Multiply-accumulates (see `CostModel`)."""

    resource, multiples = "macs", (1,)

    def __init__(self, anatomy: Anatomy) -> None:
        self._anatomy = anatomy

    def to_list(self) -> list[int]:
        """None: MACs follow from the network."""
        return []

    def counts(self, steps: Sequence[Action]) -> Counts:
        """(steps + 1,) MACs before the first and after each step."""
        return sizes(self._anatomy, steps)[:, 2]

    def after(self, removed: Mapping[str, int], evicted: Collection[str] = ()) -> int:
        """MACs after a cut."""
        return self._anatomy.size(removed, list(evicted)).macs

    def savings(self) -> MacSavings:
        """What steps save."""
        return MacSavings(self._anatomy)


class MacSavings:
    """MACs that steps would save in the original network, as ΔP is counted there (see `Savings`)."""

    def __init__(self, anatomy: Anatomy) -> None:
        self._anatomy = anatomy
        self._units: dict[str, float] = {}
        self._blocks: dict[str, float] = {}

    def unit(self, name: str) -> float:
        """MACs that go with a neuron: those of its row, and of its column in every reader."""
        if name not in self._units:
            places = self._anatomy.unit(name).places
            self._units[name] = max(1, released(self._anatomy.shapes, places, self._anatomy.positions))
        return self._units[name]

    def block(self, name: str) -> float:
        """MACs that go with a block."""
        if name not in self._blocks:
            whole = self._anatomy.size().macs
            self._blocks[name] = max(1, whole - self._anatomy.size(evicted=[name]).macs)
        return self._blocks[name]

    def take(self, action: Removal) -> set[str]:
        """Nothing is counted anew."""
        return set()
