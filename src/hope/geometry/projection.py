"""Absorption: the remaining neurons and a constant compensate for removed ones.

Under the surrogate a layer's signals g have means m and covariances C. Removing the set R, each g_i is
projected on the span of the constants and the remaining ones S: g_i ≈ m_i + d_iᵀ(g_S − m_S) with d = C_SS⁻¹
    C_SR.
Every consumer takes W_S += W_R dᵀ and a constant. What is lost is the Schur complement C_RR − C_RS C_SS⁻¹
C_SR, weighted by the consumer's weights. Projecting one by one gives
the same as projecting once.
"""

from __future__ import annotations

import torch
from torch import Tensor

RIDGE = 1e-3  # of the mean variance of the layer, fixed once: moments are modelled, not known


def ridged(covariance: Tensor) -> Tensor:
    """C with a small ridge, so that it can be inverted whatever it is.

    A covariance that is indefinite by more than the ridge (rounding, or few measurements) is first made
    positive semidefinite: its negative eigenvalues become 0.
    """
    size = len(covariance)
    mean = covariance.diagonal().clamp(min=0).mean() if size else covariance.sum()
    floor = RIDGE * mean if float(mean) > 0 else mean.new_tensor(1e-30)
    identity = torch.eye(size, dtype=covariance.dtype)
    found = covariance + floor * identity
    if torch.linalg.cholesky_ex(found).info != 0:
        values, vectors = torch.linalg.eigh((covariance + covariance.T) / 2)
        found = (vectors * values.clamp(min=0)) @ vectors.T + floor * identity
        found = (found + found.T) / 2
    return found


def compensation(covariance: Tensor, keep: Tensor, removed: Tensor) -> Tensor:
    """d = C_SS⁻¹ C_SR: coefficients of the remaining signals for each removed one, (remaining, removed).

    Args:
        covariance: ridged, of the whole layer.
    """
    own, toward = covariance[keep][:, keep], covariance[keep][:, removed]
    factor, failed = torch.linalg.cholesky_ex(own)
    if failed:  # entries of very different sizes, and rounding
        inverse: Tensor = torch.linalg.pinv(own, hermitian=True)
        return inverse @ toward
    return torch.cholesky_solve(toward, factor)


def unexplained(covariance: Tensor, first: int) -> Tensor:
    """The covariance of the first signals that the others do not explain: C₁₁ − C₁₂ C₂₂⁻¹ C₂₁. Its inverse is
    the first block of C⁻¹, so that everything about C⁻¹ holds with the others permanently kept.
    """
    if first == len(covariance):
        return covariance
    own, rest = torch.arange(first), torch.arange(first, len(covariance))
    found = covariance[:first, :first] - covariance[:first, first:] @ compensation(covariance, rest, own)
    return (found + found.T) / 2


def outgoing(weight: Tensor, taps: Tensor, metric: Tensor) -> Tensor:
    """H = Σ_o metric_o Σ_tt' Q_tt' w_oti w_ot'j: what signals do to the outputs, as a Gram matrix of inputs.

    Args:
        weight: (outputs, taps, inputs).
        taps: Q, correlations between the places that the kernel covers.
        metric: (outputs,) what a unit of variance in each output counts.
    """
    scaled = weight * torch.sqrt(metric)[:, None, None]
    mixed = torch.einsum("st,oti->osi", taps, scaled) if len(taps) > 1 else scaled
    gram = mixed.flatten(0, 1).T @ scaled.flatten(0, 1)
    return (gram + gram.T) / 2


def variances(weight: Tensor, taps: Tensor, covariance: Tensor) -> Tensor:
    """Variance of each output under the surrogate: Σ_tt' Q_tt' w_otᵀ C w_ot'."""
    reached = weight @ covariance
    mixed = torch.einsum("st,oti->osi", taps, reached) if len(taps) > 1 else reached
    return (mixed * weight).sum(dim=(1, 2)).clamp(min=0)
