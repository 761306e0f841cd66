"""Budgets: what may be left of a network, in whatever unit. A new unit is an entry in `UNITS`."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hope.anatomy.sizes import Size
from hope.errors import InfeasibleBudget

SIZES = {"density": "neurons", "params": "parameters", "macs": "macs"}  # budget -> the size that it limits
UNITS = (*SIZES, "steps")
COLUMNS = ("neurons", "parameters", "macs")  # of a trajectory's sizes


@dataclass(frozen=True)
class Budget:
    """One budget.

    Attributes:
        unit: "density", "params" or "macs" (a fraction of the original up to 1, or a count), "steps", or
            "fidelity".
        value: how much.
    """

    unit: str
    value: float

    @property
    def size(self) -> str | None:
        """The size that it limits, if it limits one."""
        return SIZES.get(self.unit)

    def allowed(self, original: int) -> float:
        """What a budget of a size comes to: fractions of the original up to 1 (a float), absolute counts (an
        int, or above 1).

        >>> Budget("params", 0.5).allowed(100), Budget("params", 40).allowed(100)
        (50.0, 40)
        """
        fraction = isinstance(self.value, float) and self.value <= 1
        return self.value * original if fraction else self.value

    def check(self, least: Size, original: Size) -> None:
        """Refuse what is below the least that can be had."""
        if self.size is None:
            return
        low, high = getattr(least, self.size), getattr(original, self.size)
        if low > self.allowed(high):
            raise InfeasibleBudget(
                f"{self} cannot be met: the least is {self.unit}={low / max(high, 1):.4f} "
                f"({low:,} of {high:,}); the rest is listed in print(hope.inspect(...))"
            )

    def __str__(self) -> str:
        return f"{self.unit}={self.value:g}"


def column(table: NDArray[np.int64], unit: str) -> NDArray[np.int64]:
    """The column of a table of sizes that a budget's unit limits."""
    found: NDArray[np.int64] = table[:, COLUMNS.index(SIZES[unit])]
    return found


def one_budget(**budgets: float | None) -> Budget:
    """The one budget that was given."""
    given = [(unit, value) for unit, value in budgets.items() if value is not None]
    if len(given) != 1:
        found = ", ".join(unit for unit, _ in given) or "none"
        raise InfeasibleBudget(f"give exactly one budget of {', '.join(budgets)} (given: {found})")
    unit, value = given[0]
    if value < 0:
        raise InfeasibleBudget(f"{unit}={value:g} is negative: give a fraction of the original or a count")
    if unit == "fidelity" and value > 1:
        raise InfeasibleBudget(f"fidelity={value:g} cannot be met: 1 is the original itself")
    return Budget(unit, value)
