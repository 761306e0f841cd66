"""The inputs on which a method measures statistics: batches, or the name of a kind of synthetic inputs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from torch import nn

from hope._util.calls import Example, as_call
from hope._util.disk_cache import cached
from hope.errors import UnknownMethod
from hope.statistics.dreams import PASSES, dreamed
from hope.statistics.sample import token_input
from hope.structure.anatomy import Anatomy
from hope.trace.trace import Trace

Calibration: TypeAlias = "Iterable[Any] | str | None"

SYNTHETIC = {"patterns": 0, "dream": PASSES}  # at most so many forward and backward passes


def check_calibration(calibration: Calibration) -> None:
    """Refuse an unknown name."""
    if isinstance(calibration, str) and calibration not in SYNTHETIC:
        words = " or ".join(f'"{word}"' for word in SYNTHETIC)
        raise UnknownMethod(
            f"calibration must be batches of inputs, or {words}, got {calibration!r}: give a few batches"
        )


def batches_of(
    calibration: Iterable[Any] | str,
    model: nn.Module,
    example: Example | None,
    anatomy: Anatomy,
    *,
    progress: bool | None = None,
) -> tuple[Iterable[Any], tuple[str, ...]]:
    """The batches, and notes about them."""
    check_calibration(calibration)
    if not isinstance(calibration, str):
        return calibration, ()
    noise = "there is no BN to dream from: what was measured on is noise; give inputs"
    suited = anatomy.eps or (calibration == "dream" and token_input(model, as_call(example)[1]))
    made = cached(
        f"inputs-{calibration}",
        lambda: synthetic_batches(calibration, model, example, anatomy.trace, progress=progress),
    )
    return made, () if suited else (noise,)


def synthetic_batches(
    word: str, model: nn.Module, example: Example | None, trace: Trace, *, progress: bool | None = None
) -> list[Any]:
    """Batches of synthetic inputs."""
    check_calibration(word)
    return dreamed(model, example, trace, steps=SYNTHETIC[word], progress=progress)


def has_data(method: object) -> bool:
    """Whether a method is calibrated on inputs of the user's."""
    given = getattr(method, "calibration", None)
    return given is not None and not isinstance(given, str)
