"""Inputs that a method measures signals on: batches, or a word for inputs that are made up."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from torch import nn

from hope._util.calls import Example
from hope.anatomy.anatomy import Anatomy
from hope.errors import UnknownMethod
from hope.signals.dream import PASSES, dream

Calibration: TypeAlias = "Iterable[Any] | str | None"

MADE_UP = {"patterns": 0, "dream": PASSES}  # by so many passes forward and back at most


def check_calibration(calibration: Calibration) -> None:
    """Refuse a word that is none."""
    if isinstance(calibration, str) and calibration not in MADE_UP:
        words = " or ".join(f'"{word}"' for word in MADE_UP)
        raise UnknownMethod(f"calibration {calibration!r} is not known: give batches of inputs, or {words}")


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
    return made(calibration, model, example, progress=progress), () if anatomy.eps else (noise,)


def made(word: str, model: nn.Module, example: Example | None, *, progress: bool | None = None) -> list[Any]:
    """Batches that are made up."""
    check_calibration(word)
    return list(dream(model, example, steps=MADE_UP[word], progress=progress))
