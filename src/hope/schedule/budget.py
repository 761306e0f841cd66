"""Budgets: what may be left of a network, in whatever unit. A new unit is an entry in `UNITS`."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hope.errors import InfeasibleBudget

if TYPE_CHECKING:
    from hope.structure.sizes import Size

SIZES = {"density": "neurons", "params": "parameters", "macs": "macs"}  # budget -> the size that it limits
LIMITS = (*SIZES, "size", "latency")  # of which there is less and less
RESOURCES = ("params", "macs", "size", "latency")  # which a network needs; the others count what is taken
UNITS = (*LIMITS, "steps")
COLUMNS = ("neurons", "parameters", "macs")  # of a trajectory's sizes
RANGES = {
    "density": "a fraction of the neurons (above 0, up to 1) or a whole count of them",
    "params": "a fraction of the parameters (above 0, up to 1) or a whole count of them",
    "macs": "a fraction of the MACs (above 0, up to 1) or a whole count of them",
    "size": "a fraction of the bytes (above 0, up to 1) or an amount with its unit, like '10MB'",
    "latency": "a fraction of the original's (above 0, up to 1) or a time with its unit, like '12ms'",
    "steps": "a whole number from 0",
    "fidelity": "a number from 0 to 1",
}
SCALES = {  # what is written with a unit, in bytes and nanoseconds
    "size": {"B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30},
    "latency": {"s": 10**9, "ms": 10**6, "us": 10**3, "µs": 10**3},
}


@dataclass(frozen=True)
class Budget:
    """One budget.

    Attributes:
        unit: "density", "params" or "macs" (a fraction of the original up to 1, or a count), "size" and
            "latency" (a fraction, or whole bytes and nanoseconds), "steps", or "fidelity".
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
        if self.size is not None:
            self.check_amount(getattr(least, self.size), getattr(original, self.size), advice)

    def check_amount(self, low: int, high: int, advice: str = "") -> None:
        """The same, of what there is least and in the original."""
        if low > self.allowed(high):
            raise InfeasibleBudget(
                f"{self} cannot be met: the least is {self.unit}={low / max(high, 1):.4f} "
                f"({amount(self.unit, low)} of {amount(self.unit, high)}); "
                f"{advice or 'the rest is listed in print(hope.inspect(...))'}"
            )

    def __str__(self) -> str:
        whole = self.unit in SCALES and isinstance(self.value, int)
        return f"{self.unit}={amount(self.unit, int(self.value)) if whole else f'{self.value:g}'}"


def amount(unit: str, count: int) -> str:
    """So much of a unit, in words.

    >>> amount("latency", 1_234_000), amount("size", 10_000_000), amount("params", 1234)
    ('1.23ms', '10MB', '1,234')
    """
    if unit == "latency":
        return f"{count / 10**6:.3g}ms" if count < 10**9 else f"{count / 10**6:.0f}ms"
    if unit == "size":
        name = "MB" if count >= 10**6 else "kB" if count >= 10**3 else "B"
        value = count / SCALES["size"][name]
        return f"{value:.3g}{name}" if value < 1000 else f"{value:.0f}{name}"
    return f"{count:,}"


def measured(unit: str, text: str) -> int:
    """An amount as it is written: a number and its unit.

    >>> measured("latency", "1.5 ms"), measured("size", "10MB")
    (1500000, 10000000)
    """
    scales, found = SCALES[unit], re.fullmatch(r"\s*([-+]?[\d._]+(?:e[-+]?\d+)?)\s*([a-zµμ]*)\s*", text, re.I)
    try:
        number, name = float(found[1]) if found else math.nan, (found[2] if found else "").replace("μ", "µ")
    except ValueError:
        number = math.nan
    names = {known.lower(): scale for known, scale in scales.items()}
    if not math.isfinite(number):
        raise InfeasibleBudget(f"{unit}={text!r} is no amount: give {RANGES[unit]}")
    if number < 0:
        raise InfeasibleBudget(f"{unit}={text} is negative: give {RANGES[unit]}")
    if name.lower() not in names:
        what = f"has the unit {name!r}, not one of {', '.join(scales)}" if name else "has no unit"
        raise InfeasibleBudget(f"{unit}={text!r} {what}: give {RANGES[unit]}")
    return round(number * names[name.lower()])


def one_budget(**budgets: Any) -> Budget:
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
    if unit in SCALES and isinstance(value, str):
        return measured(unit, value)
    number = value
    if not isinstance(value, (str, bytes)) and getattr(value, "ndim", None) == 0:  # of NumPy or torch
        number = value.item()
    if isinstance(number, bool) or not isinstance(number, (int, float)):
        raise InfeasibleBudget(f"{unit}={value!r} is no number: give {RANGES[unit]}")
    if not math.isfinite(number) or number < 0:
        what = "negative" if number < 0 else "no finite number"
        raise InfeasibleBudget(f"{unit}={number:g} is {what}: give {RANGES[unit]}")
    if unit in SCALES:
        if number > 1:
            raise InfeasibleBudget(f"{unit}={number:g} has no unit: give {RANGES[unit]}")
        return float(number)
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
