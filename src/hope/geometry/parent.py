"""The optimal parent of two neurons, for any number of pairs at once.

With W̃ = [w̃_i, w̃_j] (effective filters with their biases) and the outgoing weights o_i, o_j, everything
about a pair follows from two 2×2 Gram matrices, G = W̃ᵀW̃ and H = [o_i, o_j]ᵀ[o_i, o_j]: the parent's
direction û = W̃z maximises ‖Au‖ for A = o_i w̃_iᵀ + o_j w̃_jᵀ (paper, Section "Optimal Direction"), and AᵀA
restricted to the span is the eigenproblem (HG)z = λz with zᵀGz = 1. Under the pair's surrogate y_u = z₁y_i +
z₂y_j exactly, so all kernels of the parent follow by bilinearity.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hope.geometry import kernels
from hope.geometry.gaussian import energies
from hope.geometry.pairwise import warp

PARALLEL = 0.99  # from here on the zero-bias kernel calls signals the same that differ in their thresholds


class Side(NamedTuple):
    """One neuron of each pair, as broadcastable tensors."""

    mean: Tensor  # mean, spread: of the signal before the activation
    spread: Tensor
    slope: Tensor  # of the activation below zero
    energy: Tensor  # K(i, i)
    bias: Tensor  # effective bias b
    inner: Tensor  # squared norm of the effective filter with its bias, G_ii
    outer: Tensor  # squared norm of the outgoing weights, H_ii


@dataclass(frozen=True)
class Parents:
    """Parents of many pairs, up to their scale."""

    alignment: Tensor  # b = ⟨ψ*, f_i + f_j⟩; 0 where there is no parent
    # (z₁, z₂), the direction û in terms of the children, sign decided by the phase check
    rows: tuple[Tensor, ...]
    reach: tuple[Tensor, ...]  # (K(u, i), K(u, j))
    energy: Tensor  # K(u, u)
    spread: Tensor  # deviation of y_u
    correlation: Tensor  # ρ̂ of the children


def parents(i: Side, j: Side, inner: Tensor, outer: Tensor, *, kernel: str) -> Parents:
    """The optimal parent directions of pairs (i, j), with everything that a recipe needs.

    Args:
        i, j: the neurons, broadcast against each other.
        inner: ⟨w̃_i, w̃_j⟩, biases included.
        outer: ⟨o_i, o_j⟩.
        kernel: "printed" (the paper's zero-bias kernel, everywhere), "zero-bias" (the same, but exact where
            the children are nearly parallel or do not move), or "exact".
    """
    rho, hard = _correlation(i, j, inner, kernel)
    z1, z2 = _direction(i, j, inner, outer)
    spread, rho_i, rho_j = _toward(i, j, z1, z2, rho)
    mean = z1 * i.mean + z2 * j.mean
    slope = i.slope.expand_as(mean)
    own, turned = energies(mean, spread, slope)
    u = Side(mean, spread, i.slope, own, i.bias, i.inner, i.outer)
    toward_i, toward_j = _kernels(u, turned, i, rho_i, hard), _kernels(u, turned, j, rho_j, hard)
    best: tuple[Tensor, ...] | None = None
    # the phase check: an eigenvector has two signs, the kernel has one
    for sign, own, reach_i, reach_j in zip((1.0, -1.0), (u.energy, turned), toward_i, toward_j, strict=True):
        alignment = _projected(reach_i, reach_j, i, j, outer, own)
        found = (alignment, sign * z1, sign * z2, reach_i, reach_j, own)
        if best is None:
            best = found
        else:
            better = alignment > best[0] * (1 + 1e-12)  # ties go to the first sign
            best = tuple(torch.where(better, new, old) for new, old in zip(found, best, strict=True))
    assert best is not None
    alignment, z1, z2, reach_i, reach_j, own = best
    alignment = torch.where(i.slope == j.slope, alignment, torch.zeros_like(alignment))
    return Parents(alignment, (z1, z2), (reach_i, reach_j), own, spread, rho)


def alignments(i: Side, j: Side, inner: Tensor, outer: Tensor, *, kernel: str) -> Tensor:
    """Only b = ⟨ψ*, f_i + f_j⟩ of pairs, for whole layers at once.

    With the zero-bias kernel K(u, k) = 𝓘(ρ_uk)·√(K(u, u)·K(k, k)), the parent's own energy cancels, and the
    two signs of û share their arc-cosines; the few pairs that need the exact kernel are worked out by
    `parents`.
    """
    if kernel == "exact":
        return parents(i, j, inner, outer, kernel=kernel).alignment
    rho, hard = _correlation(i, j, inner, kernel)
    z1, z2 = _direction(i, j, inner, outer)
    _, rho_i, rho_j = _toward(i, j, z1, z2, rho)
    square_i, square_j = i.energy * i.outer, j.energy * j.outer
    cross = 2 * torch.sqrt(i.energy * j.energy) * outer
    plus_i, minus_i = kernels.zero_bias_cosines(rho_i, i.slope)
    plus_j, minus_j = kernels.zero_bias_cosines(rho_j, j.slope)
    plus_terms = plus_i * plus_i * square_i + plus_j * plus_j * square_j
    minus_terms = minus_i * minus_i * square_i + minus_j * minus_j * square_j
    plus = _cleared(plus_terms + plus_i * plus_j * cross, plus_terms)
    minus = _cleared(minus_terms + minus_i * minus_j * cross, minus_terms)
    found = torch.sqrt(torch.maximum(plus, minus))
    found = torch.where((i.slope == j.slope) & ((z1 != 0) | (z2 != 0)), found, torch.zeros_like(found))
    if hard.any():
        some_i = Side(*(tensor.expand(found.shape)[hard] for tensor in i))
        some_j = Side(*(tensor.expand(found.shape)[hard] for tensor in j))
        found[hard] = parents(some_i, some_j, inner[hard], outer[hard], kernel="exact").alignment
    return found


def exact_pairs(i: Side, j: Side, inner: Tensor, outer: Tensor) -> tuple[Tensor, Tensor]:
    """b and ⟨f_i, f_j⟩ = K(i, j)·⟨o_i, o_j⟩ by the exact kernel, of a list of pairs: K(u, i), K(u, j) and
    K(i, j) in one go.
    """
    rho, _ = _correlation(i, j, inner, "exact")
    z1, z2 = _direction(i, j, inner, outer)
    spread, rho_i, rho_j = _toward(i, j, z1, z2, rho)
    mean = z1 * i.mean + z2 * j.mean
    own, turned = energies(mean, spread, i.slope)
    left = ((mean, mean, i.mean), (i.mean, j.mean, j.mean), (spread, spread, i.spread))
    right = ((i.spread, j.spread, j.spread), (rho_i, rho_j, rho), (i.slope,) * 3, (i.slope, j.slope, j.slope))
    plus, minus = kernels.exact_signs(*(torch.stack(three) for three in (*left, *right)))
    first, second = (
        _projected(reach[0], reach[1], i, j, outer, energy)
        for reach, energy in ((plus, own), (minus, turned))
    )
    alignment = torch.where(second > first * (1 + 1e-12), second, first)
    return torch.where(i.slope == j.slope, alignment, torch.zeros_like(alignment)), plus[2] * outer


def _projected(reach_i: Tensor, reach_j: Tensor, i: Side, j: Side, outer: Tensor, own: Tensor) -> Tensor:
    """‖K(u, i)·o_i + K(u, j)·o_j‖/√K(u, u)."""
    terms = reach_i**2 * i.outer + reach_j**2 * j.outer
    return torch.sqrt(_ratio(_cleared(terms + 2 * reach_i * reach_j * outer, terms), own))


def _correlation(i: Side, j: Side, inner: Tensor, kernel: str) -> tuple[Tensor, Tensor]:
    """ρ̂ of the children, and where the zero-bias kernel does not do."""
    rho = warp(inner - i.bias * j.bias, i.inner - i.bias**2, j.inner - j.bias**2, i.spread, j.spread)
    if kernel == "zero-bias":
        return rho, (rho.abs() > PARALLEL) | (i.spread <= 0) | (j.spread <= 0)
    return rho, torch.full_like(rho, kernel == "exact", dtype=torch.bool)


def _toward(i: Side, j: Side, z1: Tensor, z2: Tensor, rho: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Deviation of y_u = z₁y_i + z₂y_j, and its correlations with y_i and y_j."""
    covariance = rho * i.spread * j.spread
    toward_i = z1 * i.spread**2 + z2 * covariance
    toward_j = z1 * covariance + z2 * j.spread**2
    spread = torch.sqrt((z1 * toward_i + z2 * toward_j).clamp(min=0))
    return spread, _ratio(toward_i, spread * i.spread), _ratio(toward_j, spread * j.spread)


def _direction(i: Side, j: Side, inner: Tensor, outer: Tensor) -> tuple[Tensor, Tensor]:
    """z of the leading eigenvector of HG with zᵀGz = 1; zero where A is."""
    m00 = i.outer * i.inner + outer * inner
    m01 = i.outer * inner + outer * j.inner
    m10 = outer * i.inner + j.outer * inner
    m11 = outer * inner + j.outer * j.inner
    half = (m00 - m11) / 2
    root = torch.sqrt((half * half + m01 * m10).clamp(min=0))
    # λ − m11 = root + half and λ − m00 = root − half: take whichever does not cancel
    first = half >= 0
    z1 = torch.where(first, root + half, m01)
    z2 = torch.where(first, m10, root - half)
    empty = (z1 == 0) & (z2 == 0)  # HG is a multiple of the identity: every direction is as good
    z1 = torch.where(empty, torch.ones_like(z1), z1)
    # ‖A‖² = λ against what its two terms alone would have: where they cancel, û is rounding
    none = (m00 + m11) / 2 + root <= 1e-12 * (i.outer * i.inner + j.outer * j.inner)
    z1, z2 = z1.masked_fill(none, 0), z2.masked_fill(none, 0)
    length = z1 * z1 * i.inner + 2 * z1 * z2 * inner + z2 * z2 * j.inner
    scale = torch.where(length > 0, torch.rsqrt(length.clamp(min=1e-300)), torch.zeros_like(length))
    return z1 * scale, z2 * scale


def _kernels(u: Side, turned: Tensor, b: Side, rho: Tensor, exact: Tensor) -> tuple[Tensor, Tensor]:
    """K(u, b) and K(−u, b): exact where asked for, the zero-bias kernel elsewhere.

    Args:
        u, b: signals.
        turned: K(−u, −u).
        rho: their correlation.
        exact: where to be exact.
    """
    given = (u.mean, b.mean, u.spread, b.spread, rho, u.slope, b.slope)
    if exact.all():
        return kernels.exact_signs(*given)
    found = (
        kernels.zero_bias_cosine(rho, u.slope, b.slope) * torch.sqrt(u.energy * b.energy),
        kernels.zero_bias_cosine(-rho, u.slope, b.slope) * torch.sqrt(turned * b.energy),
    )
    if not exact.any():
        return found
    where = exact.expand(found[0].shape)
    true = kernels.exact_signs(*(tensor.expand(where.shape)[where] for tensor in given))
    return found[0].masked_scatter(where, true[0]), found[1].masked_scatter(where, true[1])


def _cleared(square: Tensor, terms: Tensor) -> Tensor:
    """A squared norm of two terms, 0 where they cancel up to rounding: opposite twins have no parent."""
    return torch.where(square > 1e-12 * terms, square, torch.zeros_like(square))


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """A quotient that is 0 where the divisor is."""
    return torch.where(
        below > 0, above / torch.where(below > 0, below, torch.ones_like(below)), torch.zeros_like(above)
    )


class Recipe(NamedTuple):
    """The coefficients of a parent: the data of a `Merge` action."""

    rows: tuple[float, float]
    outs: tuple[float, float]
    spread: float


def recipe(found: Parents, i: Side, j: Side, scale: float) -> Recipe:
    """The physical parent of one pair (paper, Section "Input/Output Scaling").

    Args:
        found: the parents of exactly this pair.
        i, j: the pair.
        scale: ‖f_p‖, s* or b.
    """
    k_ui, k_uj = (float(value) for value in found.reach)
    z1, z2 = (float(value) for value in found.rows)
    norm = float(found.alignment) * float(found.energy) ** 0.5  # ‖K(u,i)·o_i + K(u,j)·o_j‖
    ratio = (float(i.inner + j.inner) / float(i.outer + j.outer)) ** 0.5
    fourth = float(found.energy) ** -0.25
    into, out = (scale * ratio) ** 0.5 * fourth, (scale / ratio) ** 0.5 * fourth
    return Recipe((into * z1, into * z2), (out * k_ui / norm, out * k_uj / norm), into * float(found.spread))
