"""What the theory needs and no run does: parents of many neurons, and kernels of any activation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from hope.geometry import kernels
from hope.geometry.gaussian import Cuts, energies, pieces, rule
from hope.geometry.matrices import semidefinite
from hope.geometry.parent import Parents, Side, _cleared, _correlation, _kernels, _ratio

_FEW = 64  # pairs, each with some thousand nodes


def parent_of_many(some: Side, inner: Tensor, outer: Tensor, *, kernel: str) -> Parents:
    """The optimal parent direction of M neurons at once (paper, Proposition "Bounded Distortion of Merging").

    As for two: û = W̃z maximises ‖Au‖ for A = Σ_m o_m w̃_mᵀ, (HG)z = λz with zᵀGz = 1, and y_u = Σ_m z_m y_m.
    The correlations of the children are those of their pairs, moved to the nearest matrix that can be one.
    With a = Σ_m ‖f_m‖² and b = ⟨ψ*, Σ_m f_m⟩, the parent f_p = (b/M)·ψ* has the least distortion
    Σ_m ‖f_m − f_p‖² = a − b²/M, and f_p = b·ψ* the least ‖Σ_m f_m − f_p‖² = ‖Σ_m f_m‖² − b².

    Merges are pairs; this is what several of them in a row are held against.

    Args:
        some: M neurons.
        inner, outer: (M, M) Gram matrices G and H.
        kernel: as for `parents`; "zero-bias" is exact where any two of them are nearly parallel or one does
            not move.

    Returns:
        One parent, with M rows and M reaches; its correlation is (M, M).
    """
    i, j = (Side(*(tensor[at] for tensor in some)) for at in ((..., None), (None, ...)))
    rho, hard = _correlation(i, j, inner, kernel)
    off = ~torch.eye(len(inner), dtype=torch.bool)
    exact = (hard & off).any().expand(len(inner)) if len(inner) > 1 else torch.full((1,), kernel == "exact")
    rho = semidefinite(torch.where(off, rho, torch.ones_like(rho)))
    values, vectors = torch.linalg.eigh(outer)
    root = (vectors * values.clamp(min=0).sqrt()) @ vectors.T  # H^½: eigenvectors of H^½GH^½ give those of HG
    largest, found = torch.linalg.eigh(root @ inner @ root)
    none = largest[-1] <= 1e-12 * (some.inner * some.outer).sum()
    z = torch.where(none, 0.0, root @ found[:, -1] / torch.sqrt(largest[-1].clamp(min=1e-300)))
    toward = (rho * some.spread[:, None] * some.spread) @ z
    spread = torch.sqrt((z @ toward).clamp(min=0)).expand(len(z))
    mean = (z @ some.mean).expand(len(z))
    own, turned = energies(mean, spread, some.slope)
    u = Side(mean, spread, some.slope, own, some.bias, some.inner, some.outer)
    reaches = _kernels(u, turned, some, _ratio(toward, spread * some.spread), exact)
    best: Parents | None = None
    for sign, own, reach in zip((1.0, -1.0), (u.energy, turned), reaches, strict=True):
        square = _cleared(reach @ outer @ reach, (reach**2 * some.outer).sum())
        alignment = torch.sqrt(_ratio(square, own[0]))
        if best is None or alignment > best.alignment * (1 + 1e-12):
            best = Parents(alignment, tuple(sign * z), tuple(reach), own[0], spread[0], rho)
    assert best is not None
    same = (some.slope == some.slope[0]).all()
    return best if same else replace(best, alignment=torch.zeros_like(best.alignment))


def overlaps(i: Side, j: Side, inner: Tensor, outer: Tensor) -> Tensor:
    """⟨f_i, f_j⟩ = K(i, j)·⟨o_i, o_j⟩ by the exact kernel."""
    rho, _ = _correlation(i, j, inner, "exact")
    return kernels.exact_signs(i.mean, j.mean, i.spread, j.spread, rho, i.slope, j.slope)[0] * outer


_SMOOTH = (-20.0, -5.0, 0.0, 5.0, 20.0)  # pieces for an activation without kinks, bent about 0


def exact_of(
    activation: Callable[[Tensor], Tensor],
    mean_i: Tensor,
    mean_j: Tensor,
    spread_i: Tensor,
    spread_j: Tensor,
    rho: Tensor,
    cuts: Cuts = (),
) -> Tensor:
    """`E[Ψ(y_i)·Ψ(y_j)]` of any activation, by quadrature: E[Ψ(y_i)·E[Ψ(y_j) | y_i]].

    What `hermite.covariance` sums up for whole layers, pair by pair, whatever their correlation, in some
    milliseconds each.

    Args:
        cuts: where the activation has kinks.
    """
    given = (mean_i, mean_j, spread_i, spread_j, rho.clamp(-1, 1))
    shape = np.broadcast_shapes(*(tensor.shape for tensor in given))
    parts = (torch.split(tensor.expand(shape).flatten(), _FEW) for tensor in given)
    some = [_some_products(activation, few, cuts or _SMOOTH) for few in zip(*parts, strict=True)]
    return torch.cat(some).reshape(shape)


def _some_products(activation: Callable[[Tensor], Tensor], given: tuple[Tensor, ...], cuts: Cuts) -> Tensor:
    m_i, m_j, s_i, s_j, rho = given
    left, slow = s_j * torch.sqrt((1 - rho) * (1 + rho)), s_j * rho  # y_j given z is N(m_j + slow·z, left²)
    safe_i, safe_j = (torch.where(t == 0, torch.ones_like(t), t) for t in (s_i, slow))
    around = [(cut - m_j + k * left) / safe_j for cut in cuts for k in (-6, 6)]  # a kink, as wide as `left`
    z, weights = pieces([(cut - m_i) / safe_i for cut in cuts] + around)
    mean, spread = m_j + slow * z, left.expand_as(z)
    total = torch.zeros_like(mean)
    for w, weight in zip(*rule(mean, spread, cuts), strict=True):
        total += weight * activation(mean + spread * w)
    return (weights * activation(m_i + s_i * z) * total).sum(dim=0)
