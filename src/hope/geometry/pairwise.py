"""The paper's pairwise surrogate: how two signals of one layer correlate, from their filters and spreads
alone.
"""

from __future__ import annotations

import torch
from torch import Tensor


def warped_correlation(gram: Tensor, spreads: Tensor) -> Tensor:
    """The correlation ρ̂ of all pairs of signals (paper, Proposition "Pairwise Warped Correlation").

    Of all distributions with the two observed variances, the one of least Kullback–Leibler divergence from
    N(0, I): with ρ_eff the cosine of the effective filters, κ = ρ_eff/(1 − ρ_eff²) · s_i/‖w_i‖ · s_j/‖w_j‖
    and ρ̂ = 2κ/(1 + √(1 + 4κ²)). For ρ_eff = ±1 the limit ±1; for a signal that does not move (spread or
    filter 0) there is no correlation: 0.

    Args:
        gram: (N, N) inner products of the effective filters, biases not included.
        spreads: (N,) deviations of the signals.

    Returns:
        (N, N), ones on the diagonal of moving signals.
    """
    squares = gram.diagonal().clamp(min=0)
    return warp(gram, squares[:, None], squares[None, :], spreads[:, None], spreads[None, :])


def warp(inner: Tensor, square_i: Tensor, square_j: Tensor, spread_i: Tensor, spread_j: Tensor) -> Tensor:
    """ρ̂ element by element: inner products, squared norms and spreads in, correlations out.

    Written without a division by 1 − ρ_eff²: with p = ⟨w_i, w_j⟩ s_i s_j and q = ‖w_i‖²‖w_j‖² − ⟨w_i, w_j⟩² ≥
    0 it is κ = p/q, and ρ̂ = 2p/(q + √(q² + 4p²)).
    """
    p = inner * spread_i * spread_j
    product = square_i * square_j
    q = (product - inner * inner).clamp(min=0)
    q = torch.where(q <= 4e-16 * product, torch.zeros_like(q), q)  # parallel up to rounding
    below = q + torch.sqrt(q * q + 4 * p * p)
    return torch.where(
        below > 0, 2 * p / torch.where(below > 0, below, torch.ones_like(below)), torch.zeros_like(p)
    ).clamp(-1, 1)
