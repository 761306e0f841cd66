"""Inputs that a method measures signals on: batches, or "dream" for inputs made up from the checkpoint."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from torch import nn

from hope._util.calls import Example
from hope.anatomy.anatomy import Anatomy
from hope.errors import UnknownMethod
from hope.signals.dream import dream

Calibration: TypeAlias = "Iterable[Any] | str | None"


def check_calibration(calibration: Calibration) -> None:
    """Refuse a word that is none."""
    if isinstance(calibration, str) and calibration != "dream":
        raise UnknownMethod(f'calibration {calibration!r} is not known: give batches of inputs, or "dream"')


def batches_of(
    calibration: Iterable[Any] | str,
    model: nn.Module,
    example: Example | None,
    anatomy: Anatomy,
    *,
    progress: bool | None = None,
) -> tuple[Iterable[Any], tuple[str, ...]]:
    """The batches, and what a user should know of them."""
    check_calibration(calibration)
    if not isinstance(calibration, str):
        return calibration, ()
    noise = "there is no BN to dream from: what was measured on is noise; give inputs"
    return dream(model, example, progress=progress), () if anatomy.eps else (noise,)
