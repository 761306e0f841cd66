"""Rounded numbers."""

from __future__ import annotations

import math


def rounded(value: float, digits: int = 12) -> float:
    """A number to so many significant digits: values equal up to rounding become equal.

    >>> rounded(1.00000000000000002e-5) == rounded(1e-5)
    True
    """
    return value if value == 0 or not math.isfinite(value) else float(f"{value:.{digits - 1}e}")


def plural(count: int, noun: str) -> str:
    """A count with its noun, in the plural unless there is one.

    >>> plural(1, "stream"), plural(0, "block"), plural(1200, "neuron")
    ('1 stream', '0 blocks', '1,200 neurons')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
