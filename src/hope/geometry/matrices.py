"""Matrices that surrogates are made of: products, distances between taps, nearest correlations."""

from __future__ import annotations

import math

import torch
from torch import Tensor

LARGE = 2**26  # multiplications, from which on a product is made in single precision
BLOCK = 256  # rows of a symmetric product at a time


def tap_distances(sizes: tuple[int, ...] | int) -> Tensor:
    """(T, T) distances between the places that a kernel covers; a number of places is taken as a square.

    >>> tap_distances((1, 2)).tolist(), tap_distances(4).shape
    ([[0.0, 1.0], [1.0, 0.0]], torch.Size([4, 4]))
    """
    if isinstance(sizes, int):
        side = math.isqrt(sizes)
        sizes = (side, side) if side * side == sizes else (sizes,)
    grid = torch.stack([g.flatten() for g in torch.meshgrid(*map(torch.arange, sizes), indexing="ij")], dim=1)
    return torch.cdist(grid.double(), grid.double())


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b, large ones in single precision: moments are kept in it anyway (`views.stored`)."""
    if a.numel() * b.shape[-1] < LARGE:
        return a @ b
    return (a.float() @ b.float()).double()


def symmetric_product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b where that is symmetric: half of it is worked out.

    >>> a = torch.randn(5, 3, dtype=torch.float64)
    >>> torch.allclose(symmetric_product(a, a.T), a @ a.T)
    True
    """
    found = torch.empty(len(a), len(a), dtype=a.dtype)
    for start in range(0, len(a), BLOCK):
        rows = slice(start, start + BLOCK)
        found[rows, start:] = product(a[rows], b[:, start:])
    return found.triu_() + found.triu(1).T


def semidefinite(rho: Tensor) -> Tensor:
    """The nearest correlation matrix: pairs are warped one by one, and need not fit together."""
    if len(rho) == 0 or torch.linalg.cholesky_ex(rho + 1e-9 * torch.eye(len(rho))).info == 0:
        return rho
    values, vectors = torch.linalg.eigh((rho + rho.T) / 2)
    found = (vectors * values.clamp(min=0)) @ vectors.T
    scale = torch.sqrt(found.diagonal().clamp(min=1e-12))
    correlation: Tensor = found / torch.outer(scale, scale)
    return correlation.clamp(-1, 1)
