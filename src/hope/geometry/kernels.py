"""Kernels K(i, j) = E[Ψ(y_i)·Ψ(y_j)] of two Gaussian signals after PH-1 activations.

`zero_bias` is the paper's default: the arc-cosine kernel between signals without means, scaled to the exact
energies. `exact_signs` is the bivariate integral itself.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from hope.geometry.gaussian import distribution, ramp_mean, ramp_means

_NODES = 64
_AT_ONCE = 256  # integrals, so that their nodes fit a core's cache


def arc_cosine(rho: Tensor) -> Tensor:
    """`E[max(z, 0)·max(z', 0)]` of standard normals with correlation ρ: (√(1 − ρ²) + (π − arccos ρ)·ρ)/2π."""
    rho = rho.clamp(-1, 1)
    return (torch.sqrt((1 - rho) * (1 + rho)) + (math.pi - torch.arccos(rho)) * rho) / (2 * math.pi)


def zero_bias_cosine(rho: Tensor, slope_i: Tensor, slope_j: Tensor) -> Tensor:
    """The cosine of two signals without means after Ψ: 𝓘(ρ̂) of the paper, for any two slopes.

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
    return torch.from_numpy((nodes + 1) / 2)[:, None], torch.from_numpy(weights / 2)[:, None]


def _integral(c_i: Tensor, c_j: Tensor, rho: Tensor) -> Tensor:
    """∫₀^ρ (ρ − u)·φ₂(c_i, c_j; u) du with φ₂ the bivariate normal density; the same at (−c_i, c_j, −ρ).

    By Price's theorem, twice, and with h(c) = E max(z + c, 0), standard normals with correlation ρ have

        E[max(z + c_i, 0)·max(z' + c_j, 0)] = h(c_i)·h(c_j) + ρ·Φ(c_i)·Φ(c_j) + this,

    which equals the truncated-moment formula of the paper (Section "Exact Bivariate Cross-Kernel"), but for ρ
    ≥ 0 has no terms of opposite signs: it is accurate relative to √(K_ii·K_jj) even where both are tiny. In u
    = cos t the integrand is (ρ − cos t)·exp(−(c_i − c_j)²/(4(1 − cos t)) − (c_i + c_j)²/(4(1 + cos t)))/2π,
    whose features near ρ = 1 have the width of c_i − c_j in t and so unit width in log t, where it is
    integrated.
    """
    parts = (torch.split(tensor.flatten(), _AT_ONCE) for tensor in (c_i, c_j, rho))
    return torch.cat([_some_integrals(*some) for some in zip(*parts, strict=True)]).reshape(rho.shape)


def _some_integrals(c_i: Tensor, c_j: Tensor, rho: Tensor) -> Tensor:
    size = rho.abs()
    flipped = torch.where(rho < 0, -c_j, c_j)
    minus, plus = (c_i - flipped) ** 2 / 4, (c_i + flipped) ** 2 / 4
    low = 2 * torch.arcsin(torch.sqrt((1 - size) / 2))  # arccos, accurate near ρ = 1
    start = torch.log(low.clamp(min=1e-6))
    length = math.log(math.pi / 2) - start
    nodes, weights = _rule()
    t = torch.exp(start + nodes * length)  # (nodes, pairs)
    twice = torch.sin(t / 2).square_().mul_(2)  # 1 − cos t
    gap = twice - (1 - size)  # ρ − cos t
    falling = (-minus / twice).sub_(plus / (2 - twice)).exp_()
    total = t.mul_(gap).mul_(falling).mul_(weights).sum(dim=0)
    return total * length / (2 * math.pi)


def exact_signs(
    mean_i: Tensor,
    mean_j: Tensor,
    spread_i: Tensor,
    spread_j: Tensor,
    rho: Tensor,
    slope_i: Tensor,
    slope_j: Tensor,
) -> tuple[Tensor, Tensor]:
    """`E[Ψ(y_i)·Ψ(y_j)]` and `E[Ψ(−y_i)·Ψ(y_j)]`, at the price of one integral: any slopes, any spreads ≥ 0;
    a signal that does not move is the constant Ψ(mean).

    Ψ(y) = slope·y + (1 − slope)·max(y, 0), so that one integral and first moments suffice.
    """
    given = (mean_i, mean_j, spread_i, spread_j, rho, slope_i, slope_j)
    shape = np.broadcast_shapes(*(tensor.shape for tensor in given))
    m_i, m_j, s_i, s_j, rho, a_i, a_j = (tensor.expand(shape) for tensor in given)
    still_i, still_j = s_i <= 0, s_j <= 0
    safe_i = torch.where(still_i, torch.ones_like(s_i), s_i)
    safe_j = torch.where(still_j, torch.ones_like(s_j), s_j)
    c_i, c_j, close = m_i / safe_i, m_j / safe_j, rho.clamp(-1, 1)
    integral, still = _integral(c_i, c_j, close), still_i | still_j
    bent = bool(slope_i.any()) or bool(slope_j.any())
    h_j, above_j = ramp_mean(c_j), distribution(c_j)
    ramp_j = torch.where(still_j, m_j.clamp(min=0), safe_j * h_j)
    found = []
    for sign, h_i in zip((1.0, -1.0), ramp_means(c_i), strict=True):
        mean, toward, above_i = sign * m_i, sign * close, distribution(sign * c_i)
        ramp_i = torch.where(still_i, mean.clamp(min=0), safe_i * h_i)
        product = safe_i * safe_j * (h_i * h_j + toward * above_i * above_j + integral).clamp(min=0)
        both = torch.where(still, ramp_i * ramp_j, product)
        if bent:
            covariance = torch.where(still, torch.zeros_like(rho), sign * rho * s_i * s_j)
            mixed_j = mean * ramp_j + covariance * above_j  # E[y_i·max(y_j, 0)], by Stein's lemma
            mixed_i = m_j * ramp_i + covariance * above_i
            both = (
                a_i * a_j * (mean * m_j + covariance)
                + a_i * (1 - a_j) * mixed_j
                + (1 - a_i) * a_j * mixed_i
                + (1 - a_i) * (1 - a_j) * both
            )
        found.append(both)
    return found[0], found[1]
