"""What a run has to know to be ranked and ended by time: a prediction, wherever it comes from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from hope.anatomy.sizes import Counts
from hope.anatomy.steps import Step


class Savings(Protocol):
    """Time that steps would save in the network as it is at some moment of a run."""

    def unit(self, name: str) -> float:
        """Nanoseconds that a neuron's removal saves, above 0: smoothed, where times go in steps."""

    def block(self, name: str) -> float:
        """Nanoseconds that a block's eviction saves, above 0."""

    def take(self, step: Step) -> set[str]:
        """Note a step; returns the units of which a neuron saves something else from now on."""


class Pace(Protocol):
    """Predicted times of a network along its run."""

    @property
    def multiples(self) -> Sequence[int]:
        """Numbers that widths may have to be multiples of to take less time, 1 among them."""

    def times(self, steps: Sequence[Step]) -> Counts:
        """(steps + 1,) nanoseconds before the first and after each step."""

    def after(self, removed: Mapping[str, int], evicted: Collection[str] = ()) -> int:
        """Nanoseconds after a cut (see `Anatomy.size`)."""

    def savings(self) -> Savings:
        """What steps save, from the original on."""
