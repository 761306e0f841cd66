"""Weights on a grid of a few bits: scales, rounding to nearest, and rounding with error feedback.

A grid is symmetric: the entries of a group of columns of a row are a scale times whole numbers from −n to n,
n = 2^(bits−1) − 1. A scale has 11 significant bits, so that for grids up to 8 bits every product is exact in
float32, and a grid can be read off its weights again.

Rounding with error feedback (GPTQ's algebra) treats one column after another. What rounding a column does to
the output is compensated, as far as it can be, by the columns that are not rounded yet: under the second
moments H of the inputs the expected squared error tr(ΔW H ΔWᵀ) is reduced.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

BITS = (2, 3, 4, 5, 6, 8)
CLIPS = torch.linspace(0.4, 1.0, 13, dtype=torch.float64)  # of the largest entry, that a grid may end at
DAMPING = 0.01  # of the mean of H's diagonal
BLOCK = 128  # columns whose errors are passed on together
SIGNIFICANT = 11  # bits of a scale


def levels(bits: int) -> int:
    """The largest whole number of a grid.

    >>> levels(2), levels(4), levels(8)
    (1, 7, 127)
    """
    return (1 << (bits - 1)) - 1


@dataclass(frozen=True, eq=False)
class ColumnMoments:
    """Second moments of the columns of a weight, channels ⊗ taps: a column is a channel and a tap, and taps
    count faster.

    Attributes:
        channels: (channels, channels).
        taps: (taps, taps).
    """

    channels: Tensor
    taps: Tensor

    @classmethod
    def identity(cls, columns: int) -> ColumnMoments:
        """Of columns that are independent and alike: rounding to nearest is best."""
        return cls(
            torch.diag(torch.ones(columns, dtype=torch.float64)), torch.ones(1, 1, dtype=torch.float64)
        )

    @property
    def diagonal(self) -> Tensor:
        """(columns,)."""
        return torch.outer(self.channels.diagonal(), self.taps.diagonal()).flatten()

    def error(self, change: Tensor) -> Tensor:
        """(rows,) expected squared error of the outputs, from (rows, columns) what is added to a weight."""
        laid = change.double().reshape(len(change), len(self.channels), len(self.taps))
        mixed = torch.einsum("cd,odt->oct", self.channels, laid @ self.taps)
        return (mixed * laid).sum(dim=(1, 2)).clamp(min=0)


def significant_bits(dtype: torch.dtype, bits: int) -> int:
    """How many significant bits a scale may have so that its products are exact in a type.

    >>> significant_bits(torch.float32, 8), significant_bits(torch.bfloat16, 4)
    (11, 5)
    """
    held = 1 - round(math.log2(torch.finfo(dtype).eps))
    return max(1, min(SIGNIFICANT, held - (bits - 1)))


def scales(
    weight: Tensor,
    bits: int,
    importance: Tensor,
    group: int = 0,
    precision: int = SIGNIFICANT,
) -> Tensor:
    """(rows, groups) scales of least weighted squared error, of those that end at a few fractions of the
    largest entry.

    Args:
        weight: (rows, columns).
        importance: (columns,) what a squared error of a column counts.
        group: columns that share a scale, all by default; a last group may be shorter.
        precision: significant bits of a scale.
    """
    rows, columns = weight.shape
    width = min(group or columns, columns)
    pad = -columns % width
    parts = torch.nn.functional.pad(weight.double(), (0, pad)).reshape(rows, -1, width)
    counts = torch.nn.functional.pad(importance.double(), (0, pad)).reshape(1, -1, width)
    largest, most = parts.abs().amax(dim=-1), levels(bits)
    best = significant(largest / most, precision)
    least = torch.full_like(best, torch.inf)
    for clip in CLIPS.flip(0):
        scale = significant(largest * clip / most, precision)
        safe = torch.where(scale != 0, scale, 1.0)[..., None]
        whole = (parts / safe).round().clamp(-most, most)
        error = ((whole * safe - parts).square() * counts).sum(dim=-1)
        best, least = torch.where(error < least, scale, best), torch.minimum(error, least)
    return best


def significant(scale: Tensor, precision: int = SIGNIFICANT) -> Tensor:
    """Numbers rounded to so many significant bits.

    >>> float(significant(torch.tensor(0.1, dtype=torch.float64)))
    0.0999755859375
    """
    fraction, exponent = torch.frexp(scale.double())
    return torch.ldexp((fraction * 2**precision).round(), exponent - precision)


def per_column(scale: Tensor, columns: int, group: int = 0) -> Tensor:
    """(rows, columns) scales, one for each entry; where a scale is 0, 1."""
    spread = scale.repeat_interleave(min(group or columns, columns), dim=1)[:, :columns]
    return torch.where(spread != 0, spread, 1.0)


def nearest(weight: Tensor, scale: Tensor, bits: int, group: int = 0) -> Tensor:
    """(rows, columns) on the grid, each entry rounded to the nearest."""
    spread, most = per_column(scale, weight.shape[1], group), levels(bits)
    return (weight.double() / spread).round().clamp(-most, most) * spread


def with_feedback(weight: Tensor, scale: Tensor, bits: int, moments: ColumnMoments, group: int = 0) -> Tensor:
    """(rows, columns) on the grid, rounded with error feedback; to nearest where that has the smaller
    expected error, so that no row has a larger one (see `nearest`).
    """
    plain = nearest(weight, scale, bits, group)
    upper = _kron_factors(moments)
    if upper is None:
        return plain
    slow, fast = upper
    left, found = weight.double().clone(), torch.empty_like(plain)
    spread, most = per_column(scale, weight.shape[1], group), levels(bits)
    wide = len(fast)
    for start in range(0, left.shape[1], BLOCK):
        end = min(start + BLOCK, left.shape[1])
        at = torch.arange(start, end)
        rows = slow[at // wide][:, :, None] * fast[at % wide][:, None, :]  # (block, channels, taps)
        rows = rows.reshape(len(at), -1)[:, start:]
        errors = torch.empty(len(left), end - start, dtype=torch.float64)
        part = left[:, start:end]
        for k in range(end - start):
            unit, column = spread[:, start + k], part[:, k]
            rounded = (column / unit).round().clamp(-most, most) * unit
            found[:, start + k] = rounded
            errors[:, k] = (column - rounded) / rows[k, k]
            part[:, k:] -= torch.outer(errors[:, k], rows[k, k : end - start])
        left[:, end:] -= errors @ rows[:, end - start :]
    better = moments.error(found - weight) <= moments.error(plain - weight)
    return torch.where(better[:, None], found, plain)


def _kron_factors(moments: ColumnMoments) -> tuple[Tensor, Tensor] | None:
    """Upper triangular factors of the inverse of H, of its channels and of its taps; None if H is 0."""
    found = []
    for matrix in (moments.channels, moments.taps):
        mean = float(matrix.diagonal().mean())
        if not mean > 0:
            return None
        damped = matrix.double() / mean
        damped.diagonal().add_(DAMPING)
        inverse = torch.cholesky_inverse(torch.linalg.cholesky(damped))
        found.append(torch.linalg.cholesky(inverse, upper=True))
    return found[0], found[1]


def grid_of(weight: Tensor, bits: int, group: int = 0) -> tuple[Tensor, Tensor] | None:
    """(rows, columns) whole numbers, int8, and (rows, groups) scales, float32, whose product is a weight, to
    the bit; None if the weight is on no such grid.

    >>> whole, scale = grid_of(torch.tensor([[0.5, -1.5, 0.0]]), 3)
    >>> whole.tolist(), scale.tolist()
    ([[1, -3, 0]], [[0.5]])
    """
    rows, columns = weight.shape
    width = min(group or columns, columns)
    pad = -columns % width
    parts = torch.nn.functional.pad(weight.float(), (0, pad)).reshape(-1, width)
    whole, scale = torch.zeros(parts.shape, dtype=torch.int8), torch.zeros(len(parts))
    largest = parts.abs().amax(dim=1)
    left = largest.nonzero()[:, 0]
    for most in range(levels(bits), 0, -1):
        if not len(left):
            break
        unit = significant(largest[left] / most).float()
        near = (parts[left] / unit[:, None]).round()
        same = ((near * unit[:, None]) == parts[left]).all(dim=1) & (near.abs().amax(dim=1) == most)
        found = left[same]
        whole[found], scale[found] = near[same].to(torch.int8), unit[same]
        left = left[~same]
    if len(left):
        return None
    return whole.reshape(rows, -1)[:, :columns].contiguous(), scale.reshape(rows, -1)


def pack(whole: Tensor, bits: int) -> Tensor:
    """Whole numbers as bytes, without gaps.

    >>> pack(torch.tensor([1, -3, 0], dtype=torch.int8), 3).tolist()
    [41, 0]
    """
    wide = (whole.flatten().numpy().astype(np.uint8) & (2**bits - 1))[:, None]
    single = (wide >> np.arange(bits, dtype=np.uint8)) & 1
    return torch.from_numpy(np.packbits(single.ravel(), bitorder="little"))


def unpack(packed: Tensor, bits: int, shape: tuple[int, ...]) -> Tensor:
    """The reverse of `pack`, int8.

    >>> unpack(torch.tensor([41, 0], dtype=torch.uint8), 3, (3,)).tolist()
    [1, -3, 0]
    """
    count = int(np.prod(shape))
    single = np.unpackbits(packed.numpy(), bitorder="little", count=count * bits).reshape(count, bits)
    wide = (single.astype(np.int16) << np.arange(bits)).sum(axis=1)
    signed = np.where(wide >= 2 ** (bits - 1), wide - 2**bits, wide)
    return torch.from_numpy(signed.astype(np.int8)).reshape(shape)
