"""Predicted and measured times of a run with a latency budget."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hope.latency.runtime import Runtime


@dataclass(frozen=True)
class Timing:
    """Where a run's times hold, and what was measured. The predicted ones are the trajectory's."""

    runtime: Runtime  # with nothing left open
    machine: Mapping[str, Any] = field(default_factory=dict)  # see `runtime.machine`
    measured: tuple[tuple[int, int], ...] = ()  # (steps, nanoseconds), the original (0 steps) first


@dataclass(frozen=True)
class Latency:
    """How long a compressed network takes, in milliseconds on the example."""

    runtime: Runtime  # where
    predicted: float  # from its operators' widths
    measured: float  # itself
    original: float  # the original, measured side by side

    @property
    def error(self) -> float:
        """The prediction error, as a share of the measured time."""
        return self.predicted / self.measured - 1

    def __str__(self) -> str:
        return (
            f"latency {self.measured:.3g} ms, {self.measured / self.original:.1%} of the original's "
            f"{self.original:.3g} ms ({self.runtime}); {self.predicted:.3g} ms were predicted "
            f"({self.error:+.1%})"
        )
