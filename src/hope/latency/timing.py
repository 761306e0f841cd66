"""What is told of a run that was made for a time."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hope.latency.runtime import Runtime


@dataclass(frozen=True)
class Timing:
    """Where a run's times hold, and what was measured. The predicted ones are the trajectory's.

    Attributes:
        runtime: with nothing left open.
        machine: see `runtime.machine`.
        measured: (steps, nanoseconds), the original (0 steps) first.
    """

    runtime: Runtime
    machine: Mapping[str, Any] = field(default_factory=dict)
    measured: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Latency:
    """How long a compressed network takes, in milliseconds on the example.

    Attributes:
        runtime: where.
        predicted: from its operators' widths.
        measured: itself.
        original: the original, measured beside it.
    """

    runtime: Runtime
    predicted: float
    measured: float
    original: float

    @property
    def error(self) -> float:
        """How far the prediction is off, as a share of what was measured."""
        return self.predicted / self.measured - 1

    def __str__(self) -> str:
        return (
            f"latency {self.measured:.3g} ms, {self.measured / self.original:.1%} of the original's "
            f"{self.original:.3g} ms ({self.runtime}); {self.predicted:.3g} ms were predicted "
            f"({self.error:+.1%})"
        )
