"""The moments of absorptions, as a file of tensors. Of a symmetric covariance one half is stored."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from hope.errors import DamagedFolder
from hope.statistics.input_statistics import InputStatistics
from hope.storage.arrays import read_arrays, write_arrays
from hope.storage.record import Moments, StoredStatistics

NAMES = ("mean", "covariance", "taps", "variance")  # of `InputStatistics`, in this order


def write_moments(folder: Path, input_statistics: Mapping[str, InputStatistics] | None) -> Moments | None:
    """Moments as float32, to which they were rounded when measured, without loss; None if there are none."""
    if not input_statistics:
        return None
    every = [
        (f"{one.weight}/{name}", tensor if name != "covariance" else _half(tensor))
        for one in input_statistics.values()
        for name in NAMES
        for tensor in [getattr(one, name).float()]
    ]
    arrays = write_arrays(folder, "moments", dict(every))
    rest = tuple(
        StoredStatistics(one.weight, one.dim, one.repeat, one.bn, one.bias)
        for one in input_statistics.values()
    )
    return Moments(file=arrays.file, sha256=arrays.sha256, input_statistics=rest)


def read_moments(folder: Path, saved: Moments | None) -> dict[str, InputStatistics]:
    """The moments by reading weight; none if none were saved."""
    if saved is None:
        return {}
    tensors = read_arrays(folder, saved)
    found = {}
    for one in saved.input_statistics:
        parts = [tensors.get(f"{one.weight}/{name}", torch.zeros(0, 0, 0)) for name in NAMES]
        mean, covariance, taps, variance = parts
        covariance = _whole(covariance, mean.numel())
        square = covariance.shape == (*mean.shape, *mean.shape)
        if not square or (mean.ndim, taps.ndim, variance.ndim) != (1, 2, 1) or not all(map(_finite, parts)):
            raise DamagedFolder(
                f"{saved.inside(folder)} has invalid moments of what {one.weight} reads: save the run again"
            )
        mean, covariance, taps, variance = (part.double() for part in (mean, covariance, taps, variance))
        rest = (one.repeat, one.bn, one.bias)
        found[one.weight] = InputStatistics(one.weight, one.dim, mean, covariance, taps, variance, *rest)
    return found


def _finite(tensor: Tensor) -> bool:
    """Whether a tensor holds floating numbers, none of them NaN or infinite."""
    return tensor.is_floating_point() and bool(tensor.isfinite().all())


def _half(matrix: Tensor) -> Tensor:
    """The upper triangle of a symmetric matrix, row by row; another one as it is.

    >>> _half(torch.tensor([[1.0, 2.0], [2.0, 3.0]]))
    tensor([1., 2., 3.])
    """
    return matrix[_upper(len(matrix))] if torch.equal(matrix, matrix.T) else matrix


def _whole(stored: Tensor, side: int) -> Tensor:
    """The matrix of which `_half` returned the triangle."""
    if stored.ndim != 1:
        return stored
    if len(stored) != side * (side + 1) // 2:
        raise DamagedFolder(
            f"a covariance of {side} channels must have {side * (side + 1) // 2} entries, got {len(stored)}: "
            "save the run again"
        )
    matrix = stored.new_zeros(side, side)
    matrix[_upper(side)] = stored
    return matrix + matrix.triu(1).T


def _upper(side: int) -> Tensor:
    return torch.ones(side, side, dtype=torch.bool).triu()
