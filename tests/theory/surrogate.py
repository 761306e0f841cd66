"""The paper's surrogate of a whole layer's inputs, for small layers: slow, dense, independent of the library.

Section "Optimal Surrogate": N(μ̂, Σ̂) with μ̂ = W⁺μ, and Σ̂ of greatest entropy among those with the variances
that the BN remembers, w_iᵀΣw_i = σ_i². As printed, Σ̂ = (Σ λ_i w_i w_iᵀ)⁻¹ has no inverse for fewer filters
than inputs: nothing bounds the entropy of what no filter sees. The derivation of the pairwise form has the
identity as its base, Σ̂⁻¹ = I + Σ λ_i w_i w_iᵀ, the distribution of least divergence from N(0, I); so has this
one, and of two filters it is the pairwise form.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class LayerWide(NamedTuple):
    """The surrogate of a layer.

    Attributes:
        mean: (inputs,) μ̂.
        covariance: (inputs, inputs) Σ̂.
        multipliers: (filters,) λ.
    """

    mean: Array
    covariance: Array
    multipliers: Array


def layer_wide(filters: Array, means: Array, variances: Array) -> LayerWide:
    """μ̂ and Σ̂ of a layer whose raw filters are the rows of `filters`.

    λ minimises −log det(I + Σ λ_i w_i w_iᵀ) + Σ λ_i σ_i², which is convex: Newton's method with halved steps.
    """
    unit = filters / np.sqrt(variances)[:, None]  # each to have variance 1
    inputs = filters.shape[1]

    def precision(at: Array) -> Array:
        return np.eye(inputs) + (unit.T * at) @ unit

    def value(at: Array) -> float:
        sign, size = np.linalg.slogdet(precision(at))
        bounded = sign > 0 and np.linalg.eigvalsh(precision(at))[0] > 0
        return float(at.sum() - size) if bounded else np.inf

    at = np.zeros(len(unit))
    for _ in range(200):
        reached = unit @ np.linalg.solve(precision(at), unit.T)
        slope = 1 - reached.diagonal()
        if np.abs(slope).max() < 1e-11:
            break
        step = np.linalg.lstsq(reached**2, slope, rcond=None)[0]
        length, now = 1.0, value(at)
        while value(at - length * step) > now - 1e-4 * length * (slope @ step) and length > 1e-8:
            length /= 2
        at = at - length * step
    return LayerWide(np.linalg.pinv(filters) @ means, np.linalg.inv(precision(at)), at / variances)


def divergence(covariance: Array) -> float:
    """Of N(0, Σ) from N(0, I)."""
    return float(np.trace(covariance) - np.linalg.slogdet(covariance)[1] - len(covariance)) / 2


def correlations(covariance: Array) -> Array:
    """A covariance as correlations."""
    size = np.sqrt(covariance.diagonal())
    return np.asarray(covariance / np.outer(size, size), dtype=np.float64)
