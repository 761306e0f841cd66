"""What each action costs. J is scale-free: a layer's neurons count relative to what is left of it (paper,
Section "Final Costs").
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
LEAST = 1e-12  # floor of the remaining capacity


def prune(neurons: int, total: float, capacity: float) -> float:
    """J_prune = N·‖f_i‖/(E − ‖f_i‖); infinite for the last neuron.

    >>> prune(4, 8.0, 2.0)
    1.3333333333333333
    """
    rest = total - capacity
    return (
        neurons * capacity / rest
        if neurons > 1 and rest > 0
        else (math.inf if neurons <= 1 or capacity > 0 else 0.0)
    )


def remaining(total: float, one: Array, other: Array) -> Array:
    """E_rem = max(E − ‖f_i‖ − ‖f_j‖, 1e-12)."""
    rest: Array = np.maximum(total - one - other, LEAST)
    return rest


def best_scale(square_sum: Array, alignment: Array, rest: Array) -> Array:
    """s* = (a + b·E_rem)/(2·E_rem + b), the scale of the parent that minimises J_merge."""
    scale: Array = (square_sum + alignment * rest) / (2 * rest + alignment)
    return scale


def merge_pair(neurons: int, distance: Array, alignment: Array, rest: Array, square_sum: Array) -> Array:
    """J_merge at s*, as in the paper: N·D_min/√(E_rem² + b·E_rem + a/2).

    Args:
        distance: D_min, with D_min² = a − b²/2.
        alignment: b = ⟨ψ*, f_i + f_j⟩.
        rest: E_rem.
        square_sum: a = ‖f_i‖² + ‖f_j‖².
    """
    cost: Array = neurons * distance / np.sqrt(rest**2 + alignment * rest + square_sum / 2)
    return cost


def merge_sum(neurons: int, distance: Array, alignment: Array, rest: Array) -> Array:
    """J of replacing two neurons by one that approximates their *sum*: N·D/(E_rem + b), D² = ‖f_i + f_j‖² −
    b², scale b.
    """
    cost: Array = neurons * distance / (rest + alignment)
    return cost


def evict(neurons: Sequence[int], capacities: Sequence[float], anchors: Sequence[float]) -> float:
    """J_evict = Σ_l N_l·E_l/E_anchor.

    The anchor is E_identity = Σ_k √(γ_k² + β_k²) of the skip for a residual block, and the layer's own
    initial capacity E_init for a block without a skip (paper, Section "Block Eviction" and its appendix).
    """
    return sum(n * e / a if a > 0 else math.inf for n, e, a in zip(neurons, capacities, anchors, strict=True))


def identity_capacity(spread: Array, mean: Array) -> float:
    """E_identity = Σ_k √E x_k²: the sum of the RMS energies of a skip's channels.

    Args:
        spread, mean: of the channels: γ and β of the BN that wrote them, or σ and μ of one that reads them.
    """
    return float(np.sqrt(spread**2 + mean**2).sum())
