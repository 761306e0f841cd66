"""The time of a network whose weights are rounded for onnxruntime's integer kernels."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from hope.actions import Action
from hope.latency.latency_model import LatencyModel, LatencySavings
from hope.structure.sizes import Counts

FASTER = 0.95  # of the time with floats, that integers may take to be worth their rounding


class IntegerLatency:
    """Predicted times of a run that rounds all weights first, and removes neurons from a network of integers
    (see `schedule.cost_model.CostModel`).

    Args:
        floats: of the network as it is.
        integers: of the same network with integer kernels: the same operators, with factors fitted to whole
            networks that onnxruntime ran with integers.
    """

    resource = "latency"

    def __init__(self, floats: LatencyModel, integers: LatencyModel) -> None:
        self._floats, self._integers = floats, integers
        self.multiples = integers.multiples

    def counts(self, steps: Sequence[Action]) -> Counts:
        """(steps + 1,) nanoseconds; with integers once the last weight is rounded."""
        rounded = max((t for t, step in enumerate(steps, 1) if step.weight_grid is not None), default=0)
        before = np.arange(len(steps) + 1) < rounded
        return np.where(before, self._floats.counts(steps), self._integers.counts(steps))

    def after(self, removed: Mapping[str, int], evicted: Collection[str] = ()) -> int:
        """Nanoseconds after a cut, with integers."""
        return self._integers.after(removed, evicted)

    def savings(self) -> LatencySavings:
        """What steps save in the network of integers."""
        return self._integers.savings()

    def to_list(self) -> list[int]:
        """Numbers that identify both models."""
        return [*self._floats.to_list(), *self._integers.to_list()]
