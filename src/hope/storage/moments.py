"""The moments of absorptions, as a file of tensors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hope.statistics.input_statistics import InputStatistics
from hope.storage.arrays import read_arrays, write_arrays
from hope.storage.record import Moments, StoredStatistics

NAMES = ("mean", "covariance", "taps", "variance")  # of `InputStatistics`, in this order


def write_moments(folder: Path, input_statistics: Mapping[str, InputStatistics] | None) -> Moments | None:
    """Moments as float32, to which they were rounded when measured; None if there are none."""
    if not input_statistics:
        return None
    every = [
        (f"{one.weight}/{name}", getattr(one, name)) for one in input_statistics.values() for name in NAMES
    ]
    arrays = write_arrays(folder, "moments", {key: tensor.float() for key, tensor in every})
    rest = tuple(
        StoredStatistics(one.weight, one.dim, one.repeat, one.bn, one.bias)
        for one in input_statistics.values()
    )
    return Moments(file=arrays.file, sha256=arrays.sha256, input_statistics=rest)


def read_moments(folder: Path, saved: Moments | None) -> dict[str, InputStatistics]:
    """The moments by reading weight; none if none were saved."""
    if saved is None:
        return {}
    tensors = {name: tensor.double() for name, tensor in read_arrays(folder, saved).items()}
    found = {}
    for one in saved.input_statistics:
        mean, covariance, taps, variance = (tensors[f"{one.weight}/{name}"] for name in NAMES)
        rest = (one.repeat, one.bn, one.bias)
        found[one.weight] = InputStatistics(one.weight, one.dim, mean, covariance, taps, variance, *rest)
    return found
