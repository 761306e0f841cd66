"""The moments of absorptions, as a file of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hope.statistics.input_statistics import InputStatistics
from hope.storage.arrays import read_arrays, write_arrays
from hope.storage.record import Moments, StoredStatistics

NAMES = ("mean", "covariance", "taps", "variance")  # of an intake, in its order


def write_moments(folder: Path, intakes: Mapping[str, InputStatistics] | None) -> Moments | None:
    """Moments as float32, to which they were rounded when measured; None if there are none."""
    if not intakes:
        return None
    every = [(f"{one.weight}/{name}", getattr(one, name)) for one in intakes.values() for name in NAMES]
    arrays = write_arrays(folder, "moments", {key: tensor.float() for key, tensor in every})
    heard = tuple(
        StoredStatistics(one.weight, one.dim, one.repeat, one.bn, one.bias) for one in intakes.values()
    )
    return Moments(file=arrays.file, sha256=arrays.sha256, intakes=heard)


def read_moments(folder: Path, saved: Moments | None) -> dict[str, InputStatistics]:
    """The moments by reading weight; none if none were saved."""
    if saved is None:
        return {}
    tensors = {name: tensor.double() for name, tensor in read_arrays(folder, saved).items()}
    found = {}
    for one in saved.intakes:
        mean, covariance, taps, variance = (tensors[f"{one.weight}/{name}"] for name in NAMES)
        rest = (one.repeat, one.bn, one.bias)
        found[one.weight] = InputStatistics(one.weight, one.dim, mean, covariance, taps, variance, *rest)
    return found
