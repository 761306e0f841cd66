"""How well a parent can do at best, at a fraction of the price of finding out how well it does.

f_i + f_j has rank two: two functions times two outgoing weights. A parent has rank one. So b = ⟨ψ*, f_i +
f_j⟩ is at most the larger singular value σ₁ of the sum, and ‖f_i + f_j‖² − b² at least σ₂² (Eckart and
Young). σ₁² and σ₂² are the eigenvalues of KH, with K and H the 2×2 Gram matrices of the functions and of the
outgoing weights. K(i, j) comes from a Hermite series; what it leaves out is at most r_i·r_j·|ρ|^(n + 1), by
Cauchy and Schwarz, with r² what the first n terms lack of a variance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hope.geometry.hermite import TERMS, KinkedFunction, covariance
from hope.geometry.pairwise import warp
from hope.geometry.parent import Side

ROUNDING = 1e-9  # of ‖f_i‖² + ‖f_j‖²: more than integrals and sums of them are wrong by


def bracket(
    i: Side, j: Side, inner: Tensor, outer: Tensor, bent_i: KinkedFunction, bent_j: KinkedFunction
) -> tuple[Tensor, Tensor]:
    """At least σ₁² and at most σ₂² of all pairs, rounding included.

    Args:
        i, j: neurons, (I, 1) and (1, J).
        inner: (I, J) ⟨w̃_i, w̃_j⟩, biases included.
        outer: (I, J) ⟨o_i, o_j⟩.
        bent_i, bent_j: their signals after the activation, I and J of them.
    """
    rho = warp(inner - i.bias * j.bias, i.inner - i.bias**2, j.inner - j.bias**2, i.spread, j.spread)
    kernel = torch.outer(bent_i.mean, bent_j.mean)
    if len(rho) == 1:  # one row: all powers of ρ at once
        kernel = kernel + (bent_i.terms * bent_j.terms * rho.expand(TERMS, -1).cumprod(dim=0)).sum(dim=0)
    else:
        kernel = kernel + covariance(bent_i, bent_j, rho)
    spare = 2 * torch.outer(bent_i.rest, bent_j.rest) * rho.abs() ** (TERMS + 1)
    energies, weights = i.energy * j.energy, i.outer * j.outer
    least = energies - torch.minimum((kernel.abs() + spare) ** 2, energies)
    determinant = least * (weights - outer * outer).clamp(min=0)
    squares = i.energy * i.outer + j.energy * j.outer
    trace = (squares + 2 * (kernel * outer + spare * outer.abs())).clamp(min=0)
    twice = trace + torch.sqrt((trace * trace - 4 * determinant).clamp(min=0))  # 2σ₁²
    first = twice / 2 + ROUNDING * squares
    second = (2 * determinant / twice.clamp(min=1e-300) - ROUNDING * squares).clamp(min=0)
    # far out in the tails a series may come to nothing: then nothing is known
    return first.nan_to_num(torch.inf), second.nan_to_num(0.0)
