"""Budgets: what may be left of a network, in whatever unit. A new unit is an entry in `UNITS`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hope.errors import InfeasibleBudget

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hope.anatomy.sizes import Size

SIZES = {"density": "neurons", "params": "parameters", "macs": "macs"}  # budget -> the size that it limits
UNITS = (*SIZES, "steps")
COLUMNS = ("neurons", "parameters", "macs")  # of a trajectory's sizes
RANGES = {
    "density": "a fraction of the neurons (above 0, up to 1) or a whole count of them",
    "params": "a fraction of the parameters (above 0, up to 1) or a whole count of them",
    "macs": "a fraction of the MACs (above 0, up to 1) or a whole count of them",
    "steps": "a whole number from 0",
    "fidelity": "a number from 0 to 1",
}


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

    def check(self, least: Size, original: Size, advice: str = "") -> None:
        """Refuse what is below the least that can be had, with what to do about it."""
        if self.size is None:
            return
        low, high = getattr(least, self.size), getattr(original, self.size)
        if low > self.allowed(high):
            raise InfeasibleBudget(
                f"{self} cannot be met: the least is {self.unit}={low / max(high, 1):.4f} "
                f"({low:,} of {high:,}); {advice or 'the rest is listed in print(hope.inspect(...))'}"
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
    return Budget(unit, checked(unit, value))


def checked(unit: str, value: Any) -> float:
    """A budget's value as a Python number, if there is a budget of that value.

    NumPy's and torch's scalars are numbers like others. A count may be written as a float (1e6).

    >>> checked("params", 1e6), checked("density", 0.5)
    (1000000, 0.5)
    """
    number = value
    if not isinstance(value, (str, bytes)) and getattr(value, "ndim", None) == 0:  # of NumPy or torch
        number = value.item()
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise InfeasibleBudget(f"{unit}={value!r} is no number: give {RANGES[unit]}")
    if not math.isfinite(number) or number < 0:
        what = "negative" if number < 0 else "no finite number"
        raise InfeasibleBudget(f"{unit}={number:g} is {what}: give {RANGES[unit]}")
    if unit == "fidelity":
        if number > 1:
            raise InfeasibleBudget(
                f"fidelity={number:g} cannot be met: 1 is the original itself; give {RANGES[unit]}"
            )
        return number
    if isinstance(number, float) and (unit == "steps" or number > 1):
        if not number.is_integer():
            raise InfeasibleBudget(f"{unit}={number:g} is no whole number: give {RANGES[unit]}")
        return int(number)
    return number
