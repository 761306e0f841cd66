"""Partition and prepare in one call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from torch import nn

from hope._util.calls import Example
from hope._util.progress import FIDELITY, busy, run_of
from hope.deft.prepare import prepare
from hope.deft.split import PHASES, partition
from hope.deft.tuning import Tuning


def wrap(
    model: nn.Module,
    example: Example | None = None,
    *,
    head: int | nn.Module | None,
    sever: str | None = None,
    calibration: Iterable[Any] | None = None,
    progress: bool | None = None,
    **options: Any,
) -> Tuning:
    """Partition a trained network, sever slack from core, and replace its classifier.

    First `hope.deft.partition`, by default at a predicted fidelity of 0.95, then `hope.deft.prepare`.
    The model is not changed.

    Args:
        model: a trained model, with BN or with `calibration`.
        example: an input it can run on.
        head: number of outputs of the new classifier, a module, or None to start from the source's.
        sever: "refit", "mask" or "absorb" (see `hope.deft.partition`).
        calibration: a few unlabelled batches to measure statistics on; required without BN.
        progress: show progress; by default on a terminal only.
        **options: of `partition`: `free`, `fidelity`, `percentile`, `by`, `merge`, `core`, `seed`.

    Example:
        >>> import torch, hope
        >>> _ = torch.manual_seed(0)
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
        ... )
        >>> tuning = hope.deft.wrap(net, torch.zeros(2, 4), head=5)
        >>> tuple(tuning.model.eval()(torch.zeros(2, 4)).shape)
        (2, 5)
    """
    batches = None if calibration is None else list(calibration)
    with run_of((*PHASES, FIDELITY), progress):
        part = partition(model, example, sever=sever, calibration=batches, **options)
        with busy(FIDELITY):
            return prepare(model, part, head=head, calibration=batches if sever == "absorb" else None)
