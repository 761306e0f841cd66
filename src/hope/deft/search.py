"""The largest slack that keeps a given fidelity of the source task."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from hope._util.notes import note
from hope._util.progress import bar
from hope.deft.checks import Request
from hope.deft.cost import kept_fidelity
from hope.deft.elasticity import least_percentile
from hope.deft.partition import Partition
from hope.deft.prepare import ready
from hope.errors import InvalidPartition

SLACK = "searching the most slack"


def bisected(keeps: Callable[[int], Partition | None], first: Partition, low: int, high: int) -> Partition:
    """The partition at the highest number that keeps the fidelity.

    That takes fidelity to fall with the number, which it does but for small steps.

    Args:
        keeps: number -> its partition, or None if it does not keep the fidelity.
        first: the partition at `low`; `high` is out of the question.
    """
    best, most, done = first, (high - low).bit_length(), 0
    with bar(SLACK, most) as show:
        while high - low > 1:
            show(done)
            middle, done = (low + high) // 2, done + 1
            found = keeps(middle)
            if found is None:
                high = middle
            else:
                low, best = middle, found
    return best


def largest(model: nn.Module, make: Callable[[float], Partition], least: float) -> Partition:
    """The refitted core with the highest whole percentage of slack that keeps a fidelity: at most seven
    refits.
    """

    def keeps(percent: int) -> Partition | None:
        part = make(percent / 100)
        return part if _kept(model, part, None) >= least else None

    return bisected(keeps, make(0.0), 0, 101)


def widest(
    model: nn.Module,
    make: Callable[[float, str | None], Partition],
    asked: Request,
    calibration: Sequence[Any] | None,
) -> Partition:
    """The partition with the highest whole percentile that keeps the fidelity; if nothing else was asked for
    and merging alone costs more, without merging, which a note says.
    """
    assert asked.fidelity is not None
    try:
        return _widest(model, make, asked.merge, asked.fidelity, calibration)
    except InvalidPartition:
        if asked.merge is None or not asked.fallback:
            raise
    found = _widest(model, make, None, asked.fidelity, calibration)
    note(f"merging costs more than fidelity={asked.fidelity:g} allows: nothing is merged")
    return found


def _widest(
    model: nn.Module,
    make: Callable[[float, str | None], Partition],
    mode: str | None,
    least: float,
    calibration: Sequence[Any] | None,
) -> Partition:
    low = 0
    best = make(low, mode)
    if best.lock.reason != "percentile":  # the lowest costs are zero, and J_lock falls back to the highest
        low = least_percentile(best.costs)
        best = make(low, mode)
    kept = _kept(model, best, calibration)
    if kept < least:
        raise InvalidPartition(
            f"fidelity={least:g} cannot be reached: percentile {low} has {kept:.3f}. Use a lower fidelity, "
            "merge=False or sever='refit'"
        )

    def keeps(percentile: int) -> Partition | None:
        part = make(percentile, mode)
        return part if _kept(model, part, calibration) >= least else None

    return bisected(keeps, best, low, 101)


def _kept(model: nn.Module, partition: Partition, calibration: Sequence[Any] | None) -> float:
    inputs = calibration if partition.sever == "absorb" else None
    found = kept_fidelity(model, partition, ready(model, partition, calibration=inputs))
    if found is None:
        raise InvalidPartition(
            f"{partition.anatomy.model} must return a tensor for fidelity=, got none: use percentile="
        )
    return found
