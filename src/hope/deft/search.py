"""The largest slack that keeps a given fidelity of the source task."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from hope._util.notes import note
from hope.deft.cost import cost_of
from hope.deft.elasticity import EPSILON
from hope.deft.partition import Partition
from hope.deft.prepare import ready
from hope.errors import InvalidPartition

Make = Callable[[float, str | None], Partition]  # from a percentile and a kind of merge


def widest_if_merged(
    model: nn.Module, make: Make, mode: str | None, least: float, calibration: Sequence[Any] | None
) -> Partition:
    """The same as `widest`, without merging if merging alone costs more, which a note says."""
    try:
        return widest(model, make, mode, least, calibration)
    except InvalidPartition:
        if mode is None:
            raise
    found = widest(model, make, None, least, calibration)
    note(f"merging costs more than fidelity={least:g} allows: nothing is merged")
    return found


def widest(
    model: nn.Module, make: Make, mode: str | None, least: float, calibration: Sequence[Any] | None
) -> Partition:
    """The partition with the highest whole percentile that keeps a fidelity of the source, by bisection.

    That takes fidelity to fall with the percentile, which it does but for small steps: at most eight looks.
    """
    low, high = 0, 101
    best = make(low, mode)
    if best.lock.reason != "percentile":  # the lowest costs are zero, and J_lock falls back to the highest
        costs = torch.cat([some[some < math.inf] for some in best.costs.values()])
        low = min(100, math.ceil(100 * float((costs < EPSILON).double().mean())))
        best = make(low, mode)
    kept = _kept(model, best, calibration)
    if kept < least:
        raise InvalidPartition(
            f"fidelity={least:g} cannot be reached: percentile {low} has {kept:.3f}. Use a lower fidelity, "
            "or merge=False"
        )
    while high - low > 1:
        middle = (low + high) // 2
        part = make(middle, mode)
        if _kept(model, part, calibration) >= least:
            low, best = middle, part
        else:
            high = middle
    return best


def _kept(model: nn.Module, partition: Partition, calibration: Sequence[Any] | None) -> float:
    inputs = calibration if partition.sever == "absorb" else None
    found = cost_of(model, partition, ready(model, partition, calibration=inputs)).fidelity
    if found is None:
        raise InvalidPartition(
            f"fidelity= needs outputs to compare, and {partition.anatomy.model} returns no tensor: "
            "use percentile="
        )
    return found
