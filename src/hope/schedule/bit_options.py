"""Which numbers of bits a run may round weights to, and how it rounds them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hope.errors import UnknownMethod
from hope.geometry.rounding import BITS
from hope.schedule.budget import Budget

KERNELS = {"onnxruntime": (8,)}  # engine -> the numbers of bits that it computes with
GROUPS = (32, 64, 128)  # inputs that may share a scale
ROUNDINGS = ("feedback", "nearest")


@dataclass(frozen=True)
class BitOptions:
    """How weights are rounded.

    Attributes:
        counts: the numbers of bits to choose from, from the largest; none: nothing is rounded.
        group: inputs that share a scale, where that divides a weight's inputs; 0 for all of an output.
        rounding: "feedback" or "nearest".
    """

    counts: tuple[int, ...] = ()
    group: int = 0
    rounding: str = "feedback"

    def __post_init__(self) -> None:
        if self.group not in (0, *GROUPS) or isinstance(self.group, bool):
            raise UnknownMethod(
                f"group must be one of {', '.join(map(str, GROUPS))}, got {self.group!r}: leave it out for "
                "one scale per output"
            )
        if self.rounding not in ROUNDINGS:
            raise UnknownMethod(
                f"round must be one of {', '.join(ROUNDINGS)}, got {self.rounding!r}: leave it out for "
                "feedback"
            )
        if not self.counts and (self.group or self.rounding != "feedback"):
            name = f"group={self.group}" if self.group else f"round={self.rounding!r}"
            raise UnknownMethod(f"{name} must go with rounded weights, got none: give bits=8 or bits=4")

    def to_dict(self) -> dict[str, Any]:
        """What differs from the defaults, as plain data."""
        found: dict[str, Any] = {"bits": list(self.counts)} if self.counts else {}
        found |= {"group": self.group} if self.group else {}
        return found | ({"round": self.rounding} if self.rounding != "feedback" else {})


def check_bits(bits: object) -> tuple[int, ...]:
    """The numbers of bits that a weight may be rounded to, from the largest.

    >>> check_bits(4), check_bits(None), check_bits([8, 4])
    ((4,), (), (8, 4))
    """
    if bits is None:
        return ()
    some = bits if isinstance(bits, (list, tuple)) else [bits]
    whole = all(isinstance(one, int) and not isinstance(one, bool) and one in BITS for one in some)
    if not whole or not some:
        choices = ", ".join(map(str, BITS))
        raise UnknownMethod(f"bits must be one or several of {choices}, or None, got {bits!r}: give bits=8")
    return tuple(sorted(set(some), reverse=True))


def bits_for(budget: Budget | None, bits: object, usual: bool = True, engine: str = "") -> tuple[int, ...]:
    """The numbers of bits that a run to a budget uses: by default all where the budget `rounds`, as bytes do,
    those of the runtime's integer kernels at a budget in time, else none.

    Args:
        usual: whether the method rounds without being asked.
        engine: of the runtime of a budget in time.

    Raises:
        UnknownMethod: bits save nothing of what the budget limits.
    """
    resource = budget.resource if budget is not None else None
    timed, rounds = (resource.timed, resource.rounds) if resource is not None else (False, False)
    if bits == "auto":
        if timed:
            return KERNELS.get(engine, ()) if usual else ()
        return tuple(reversed(BITS)) if usual and rounds else ()
    counts = check_bits(bits)
    if counts and timed and engine not in KERNELS:
        raise UnknownMethod(
            f"runtime must be 'onnxruntime' for bits, got {engine}, which has no integer kernels: give it, "
            "or omit bits"
        )
    if counts and timed and counts != KERNELS[engine]:
        raise UnknownMethod(
            f"bits must be 8 with {engine}, whose integer kernels have no others, got {bits}: give bits=8"
        )
    if counts and resource is not None and not (timed or rounds):
        raise UnknownMethod(
            f"bits must go with size=, got {resource.name}, which they do not save: give size=, or omit bits"
        )
    return counts
