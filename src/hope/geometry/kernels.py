"""Kernels K(i, j) = E[Ψ(y_i)·Ψ(y_j)] of two Gaussian signals behind PH-1 activations.

`zero_bias` is the paper's default: the arc-cosine kernel between signals without means, scaled to the exact
energies. `exact` is the bivariate integral itself.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from hope.geometry.gaussian import distribution, ramp_mean

_NODES = 64
_AT_ONCE = 1 << 18  # evaluations of the integrand held in memory at a time


def arc_cosine(rho: Tensor) -> Tensor:
    """`E[max(z, 0)·max(z', 0)]` of standard normals with correlation ρ: (√(1 − ρ²) + (π − arccos ρ)·ρ)/2π."""
    rho = rho.clamp(-1, 1)
    return (torch.sqrt((1 - rho) * (1 + rho)) + (math.pi - torch.arccos(rho)) * rho) / (2 * math.pi)


def zero_bias_cosine(rho: Tensor, slope_i: Tensor, slope_j: Tensor) -> Tensor:
    """The cosine of two signals without means behind Ψ: 𝓘(ρ̂) of the paper, for any two slopes.

    With ReLU it is (√(1 − ρ²) + (π − arccos ρ)·ρ)/π; with the identity it is ρ.
    """
    both, opposite = arc_cosine(rho), arc_cosine(-rho)
    inner = (1 + slope_i * slope_j) * both - (slope_i + slope_j) * opposite
    return inner / (0.5 * torch.sqrt((1 + slope_i**2) * (1 + slope_j**2)))


def zero_bias_cosines(rho: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
    """`zero_bias_cosine` at ρ and at −ρ, for equal slopes, sharing one arc-cosine: A(ρ) − A(−ρ) = ρ/2."""
    both = arc_cosine(rho)
    opposite = both - rho / 2
    if not slope.any():
        return 2 * both, 2 * opposite
    bend, norm = 2 * slope / (1 + slope**2), 2.0
    return norm * (both - bend * opposite), norm * (opposite - bend * both)


@lru_cache(maxsize=1)
def _rule() -> tuple[Tensor, Tensor]:
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    return torch.from_numpy((nodes + 1) / 2), torch.from_numpy(weights / 2)


def ramp_product(c_i: Tensor, c_j: Tensor, rho: Tensor) -> Tensor:
    """`E[max(z + c_i, 0)·max(z' + c_j, 0)]` of standard normals with correlation ρ, all element-wise.

    By Price's theorem, twice: with h(c) = E max(z + c, 0) and φ₂ the bivariate normal density,

        K(ρ) = h(c_i)·h(c_j) + ρ·Φ(c_i)·Φ(c_j) + ∫₀^ρ (ρ − u)·φ₂(c_i, c_j; u) du,

    which equals the truncated-moment formula of the paper (Section "Exact Bivariate Cross-Kernel"), but for ρ
    ≥ 0 has no terms of opposite signs: it is accurate relative to √(K_ii·K_jj) even where both are tiny. In u
    = cos t the integrand is (ρ − cos t)·exp(−(c_i − c_j)²/(4(1 − cos t)) − (c_i + c_j)²/(4(1 + cos t)))/2π,
    whose features near ρ = 1 have the width of c_i − c_j in t and so unit width in log t, where it is
    integrated.
    """
    shape = np.broadcast_shapes(c_i.shape, c_j.shape, rho.shape)
    c_i, c_j, rho = c_i.expand(shape), c_j.expand(shape), rho.expand(shape)
    rho = rho.clamp(-1, 1)
    base = ramp_mean(c_i) * ramp_mean(c_j) + rho * distribution(c_i) * distribution(c_j)
    size = rho.abs()
    flipped = torch.where(rho < 0, -c_j, c_j)
    minus, plus = (c_i - flipped) ** 2 / 4, (c_i + flipped) ** 2 / 4
    low = 2 * torch.arcsin(torch.sqrt((1 - size) / 2))  # arccos, accurate near ρ = 1
    start = torch.log(low.clamp(min=1e-6))
    length = math.log(math.pi / 2) - start
    total = torch.zeros_like(rho)
    nodes, weights = _rule()
    together = max(1, _AT_ONCE // max(1, rho.numel()))  # few pairs: all nodes in one go
    shape = (-1, *(1 for _ in rho.shape))
    for first in range(0, _NODES, together):
        some = slice(first, first + together)
        t = torch.exp(start + nodes[some].reshape(shape) * length)
        half = torch.sin(t / 2) ** 2  # (1 − cos t)/2
        gap = 2 * half - (1 - size)  # ρ − cos t
        part = t * gap * torch.exp(-minus / (2 * half) - plus / (2 - 2 * half))
        total += (weights[some].reshape(shape) * part).sum(dim=0)
    return (base + total * length / (2 * math.pi)).clamp(min=0)


def exact(
    mean_i: Tensor,
    mean_j: Tensor,
    spread_i: Tensor,
    spread_j: Tensor,
    rho: Tensor,
    slope_i: Tensor,
    slope_j: Tensor,
) -> Tensor:
    """`E[Ψ(y_i)·Ψ(y_j)]`, any slopes, any spreads ≥ 0; a signal that does not move is the constant Ψ(mean).

    Ψ(y) = slope·y + (1 − slope)·max(y, 0), so that one integral and first moments suffice.
    """
    given = (mean_i, mean_j, spread_i, spread_j, rho, slope_i, slope_j)
    shape = np.broadcast_shapes(*(tensor.shape for tensor in given))
    m_i, m_j, s_i, s_j, rho, a_i, a_j = (tensor.expand(shape) for tensor in given)
    still_i, still_j = s_i <= 0, s_j <= 0
    safe_i = torch.where(still_i, torch.ones_like(s_i), s_i)
    safe_j = torch.where(still_j, torch.ones_like(s_j), s_j)
    c_i, c_j = m_i / safe_i, m_j / safe_j
    ramp_i = torch.where(still_i, m_i.clamp(min=0), safe_i * ramp_mean(c_i))
    ramp_j = torch.where(still_j, m_j.clamp(min=0), safe_j * ramp_mean(c_j))
    covariance = torch.where(still_i | still_j, torch.zeros_like(rho), rho * s_i * s_j)
    linear = m_i * m_j + covariance
    mixed_j = m_i * ramp_j + covariance * distribution(c_j)  # E[y_i·max(y_j, 0)], by Stein's lemma
    mixed_i = m_j * ramp_i + covariance * distribution(c_i)
    both = torch.where(still_i | still_j, ramp_i * ramp_j, safe_i * safe_j * ramp_product(c_i, c_j, rho))
    return (
        a_i * a_j * linear
        + a_i * (1 - a_j) * mixed_j
        + (1 - a_i) * a_j * mixed_i
        + (1 - a_i) * (1 - a_j) * both
    )
