"""Covariances after an activation, for whole layers at once, by Hermite (Mehler) series.

For standard normal z with correlation ρ and the expansion Ψ(mean + spread·z) = Σ α_n·h_n(z) in normalised
Hermite polynomials, Cov(Ψ_i, Ψ_j) = Σ_{n ≥ 1} α_n,i·α_n,j·ρ_ij^n. For PH-1 activations the coefficients have
closed forms. The series is cut after `TERMS`; the rest of the diagonal is in one more power of
ρ, so that variances are exact, equal signals stay equal, and every matrix made of a positive semidefinite ρ
is positive semidefinite: all its terms are Hadamard products of such matrices. A covariance is then off by
at most 2·|ρ|^(TERMS + 1)·rest_i·rest_j: below 1e-6 up to |ρ| = .6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hope.geometry import gaussian as moments

Array = NDArray[np.float64]
TERMS = 24
FAR = 40.0  # deviations: the density is 0 there, and must not meet an overflow
ROWS = 64  # at a time: what a processor keeps at hand


@dataclass(frozen=True)
class KinkedFunction:
    """Gaussian signals after an activation."""

    mean: Tensor  # E Ψ(y)
    variance: Tensor  # Var Ψ(y)
    slope: Tensor  # E Ψ'(y): what a small change of y is multiplied by, on average
    terms: Tensor  # (TERMS, N) coefficients α_1, α_2, …
    rest: Tensor  # the part of the deviation that the terms do not have


def bend(mean: Tensor, spread: Tensor, slopes: Tensor) -> KinkedFunction:
    """Signals N(mean, spread²) after PH-1 activations of these slopes below zero."""
    still = spread <= 0
    safe = torch.where(still, torch.ones_like(spread), spread)
    c = mean / safe
    average = moments.mean(mean, spread, slopes)
    variance = (moments.energy(mean, spread, slopes) - average**2).clamp(min=0)
    variance = torch.where(still, torch.zeros_like(variance), variance)
    slope = slopes + (1 - slopes) * moments.distribution(c)
    n = torch.arange(2, TERMS + 1, dtype=torch.float64)[:, None]
    far = c.clamp(-FAR, FAR).numpy()
    found = np.stack([*_polynomials(-far, TERMS - 1)])  # step by step: torch's overhead would count
    bumps = (1 - slopes) * moments.density(c) * torch.from_numpy(found) / torch.sqrt(n * (n - 1))
    terms = torch.cat([slope[None], bumps])
    return _bent(average, variance, slope, terms * torch.where(still, torch.zeros_like(spread), spread))


def bend_with(
    activation: Callable[[Tensor], Tensor], mean: Tensor, spread: Tensor, cuts: moments.Cuts = ()
) -> KinkedFunction:
    """The same for any activation, by quadrature in pieces between `cuts`."""
    nodes, weights = moments.rule(mean, spread, cuts)  # (nodes, N), or (nodes, 1) for all
    values = activation(mean + spread * nodes)

    def total(weights: Tensor, values: Tensor) -> Tensor:
        return (weights * values).sum(dim=0) if cuts else weights[:, 0] @ values

    average = total(weights, values)
    variance = total(weights, (values - average) ** 2)
    polynomials = islice(_polynomials(nodes.numpy(), TERMS + 1), 1, None)
    terms = torch.stack([total(torch.from_numpy(h) * weights, values) for h in polynomials])
    safe = torch.where(spread > 0, spread, torch.ones_like(spread))
    return _bent(average, variance, terms[0] / safe, terms)


def _bent(mean: Tensor, variance: Tensor, slope: Tensor, terms: Tensor) -> KinkedFunction:
    rest = (variance - terms.square().sum(dim=0)).clamp(min=0)
    return KinkedFunction(mean, variance, slope, terms, torch.sqrt(rest))


def _polynomials(x: Array, count: int) -> Iterator[Array]:
    """Normalised Hermite polynomials h_0, h_1, …: E h_m(z)·h_n(z) = δ_mn."""
    before, now = np.zeros_like(x), np.ones_like(x)
    yield now
    for k in range(count - 1):  # and none that is not asked for: far out they overflow
        before, now = now, (x * now - k**0.5 * before) / (k + 1) ** 0.5
        yield now


def covariance(left: KinkedFunction, right: KinkedFunction, rho: Tensor) -> Tensor:
    """Cov(Ψ_i, Ψ_j) for all pairs of two sets of signals whose correlations before the activation are ρ."""
    total = torch.empty_like(rho)
    for start in range(0, len(rho), ROWS):
        rows = slice(start, start + ROWS)
        part = torch.outer(left.rest[rows], right.rest).mul_(rho[rows])
        for n in reversed(range(TERMS)):  # Horner's rule in ρ
            part.addr_(left.terms[n, rows], right.terms[n]).mul_(rho[rows])
        total[rows] = part
    return total
