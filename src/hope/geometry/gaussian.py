"""Moments of Gaussian signals after a PH-1 activation.

A PH-1 activation is `Ψ(y) = max(y, 0) + slope·min(y, 0)`: slope 0 is ReLU, 1 is the identity, anything
between LeakyReLU or PReLU. A signal before the activation is `y ~ N(mean, spread²)`, `spread = |γ|·√(σ²/(σ² +
ε))` with the BN's numbers (paper, Appendix "Kernel Formulation", before it lets ε go to 0). All functions are
element-wise, in float64, and keep their relative accuracy far out in the tails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

Cuts: TypeAlias = "tuple[float, ...]"  # where an activation has kinks

_SQRT2 = math.sqrt(2.0)
_SQRT2PI = math.sqrt(2.0 * math.pi)


def density(c: Tensor) -> Tensor:
    """Standard normal density φ(c)."""
    return torch.exp(-0.5 * c * c) / _SQRT2PI


def distribution(c: Tensor) -> Tensor:
    """Standard normal distribution function Φ(c)."""
    return 0.5 * torch.erfc(-c / _SQRT2)


def _mills(c: Tensor) -> Tensor:
    """Φ(−c)/φ(c) for c ≥ 0, without underflow."""
    ratio: Tensor = math.sqrt(math.pi / 2) * torch.special.erfcx(c / _SQRT2)
    return ratio


def ramp_mean(c: Tensor) -> Tensor:
    """`E max(z + c, 0)` for standard normal z: c·Φ(c) + φ(c), without cancellation for negative c."""
    return ramp_means(c)[0]


def ramp_means(c: Tensor) -> tuple[Tensor, Tensor]:
    """`ramp_mean` of c and of −c."""
    t = c.abs()
    small = density(t) * _tail_first(t)
    large = t + small
    return torch.where(c < 0, small, large), torch.where(c > 0, small, large)


def ramp_squares(c: Tensor) -> tuple[Tensor, Tensor]:
    """`E max(z + c, 0)²` of c and of −c: (1 + c²)·Φ(c) + c·φ(c) (paper, "Closed-Form Self-Kernel")."""
    t = c.abs()
    small = density(t) * _tail_second(t)
    large = 1 + c * c - small
    return torch.where(c < 0, small, large), torch.where(c > 0, small, large)


# From here on the closed forms cancel; the asymptotic series of the Mills ratio does not.
_FAR = 20.0


def _tail_first(t: Tensor) -> Tensor:
    """1 − t·m(t) with the Mills ratio m, for t ≥ 0."""
    x = t.clamp(max=_FAR)
    near = 1 - x * _mills(x)
    if not (t >= _FAR).any():
        return near
    u = t.clamp(min=_FAR) ** -2
    far = u * (1 - u * (3 - u * (15 - u * (105 - u * (945 - u * (10395 - u * 135135))))))
    return torch.where(t < _FAR, near, far)


def _tail_second(t: Tensor) -> Tensor:
    """(1 + t²)·m(t) − t, for t ≥ 0."""
    x = t.clamp(max=_FAR)
    near = (1 + x * x) * _mills(x) - x
    if not (t >= _FAR).any():
        return near
    s = t.clamp(min=_FAR)
    u = s**-2
    # m = (1/t)(1 − u + 3u² − 15u³ + …), so (1 + t²)m − t = (1/t)(2u − 12u² + 90u³ − 840u⁴ + …)
    far = u / s * (2 - u * (12 - u * (90 - u * (840 - u * (9450 - u * (124740 - u * 1891890))))))
    return torch.where(t < _FAR, near, far)


def mean(means: Tensor, spreads: Tensor, slopes: Tensor) -> Tensor:
    """`E Ψ(y)`; with spread 0 the limit Ψ(mean)."""
    safe = torch.where(spreads > 0, spreads, torch.ones_like(spreads))
    ramp = safe * ramp_mean(means / safe)
    ramp = torch.where(spreads > 0, ramp, means.clamp(min=0))
    return slopes * means + (1 - slopes) * ramp


def energy(means: Tensor, spreads: Tensor, slopes: Tensor) -> Tensor:
    """The self-kernel `K(i, i) = E Ψ(y)²`; with spread 0 the limit Ψ(mean)²."""
    return energies(means, spreads, slopes)[0]


def energies(means: Tensor, spreads: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    """`energy` of y and of −y."""
    safe = torch.where(spreads > 0, spreads, torch.ones_like(spreads))
    up, down = (safe**2 * half for half in ramp_squares(means / safe))
    bend = slopes**2
    moving = up + bend * down, down + bend * up
    still = means.clamp(min=0) ** 2, means.clamp(max=0) ** 2
    return (
        torch.where(spreads > 0, moving[0], still[0] + bend * still[1]),
        torch.where(spreads > 0, moving[1], still[1] + bend * still[0]),
    )


def energy_of(
    activation: Callable[[Tensor], Tensor], means: Tensor, spreads: Tensor, cuts: Cuts = ()
) -> Tensor:
    """`E Ψ(y)²` of any activation, by quadrature in pieces between `cuts`."""
    total = torch.zeros_like(means)
    nodes, weights = rule(means, spreads, cuts)
    for some in range(0, len(nodes), 100):
        y = means + spreads * nodes[some : some + 100]
        total += (weights[some : some + 100] * activation(y) ** 2).sum(dim=0)
    return total


def rule(means: Tensor, spreads: Tensor, cuts: Cuts) -> tuple[Tensor, Tensor]:
    """Nodes z and weights, (nodes, …), for means of functions of y = mean + spread·z over standard normal z.

    Args:
        means, spreads: of the signals.
        cuts: where functions of y have kinks or steps. There is Gauss–Legendre between them. Without any, the
            trapezoid rule, to rounding where there is no kink, to 1e-5 where there is one that is not given.
    """
    shape = (-1, *(1 for _ in means.shape))
    if not cuts:
        nodes, weights = trapezoid()
        return nodes.reshape(shape), weights.reshape(shape)
    safe = torch.where(spreads > 0, spreads, torch.ones_like(spreads))
    return pieces([(cut - means) / safe for cut in cuts])


def pieces(cuts: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """The same for functions of z with kinks at cuts, by Gauss–Legendre between them."""
    nodes, weights = (part.reshape(-1, *(1 for _ in cuts[0].shape)) for part in _legendre())
    fixed = [torch.full_like(cuts[0], edge) for edge in (-_EDGE, 0.0, _EDGE)]
    edges = torch.stack([*fixed, *(cut.clamp(-_EDGE, _EDGE) for cut in cuts)]).sort(dim=0).values
    half = (edges[1:] - edges[:-1])[:, None] / 2
    z = (edges[:-1, None] + half * (1 + nodes)).flatten(0, 1)
    return z, (half * weights).flatten(0, 1) * density(z)


_EDGE = 10.0  # deviations: nothing is beyond


@lru_cache(maxsize=1)
def _legendre() -> tuple[Tensor, Tensor]:
    nodes, weights = np.polynomial.legendre.leggauss(32)
    return torch.from_numpy(nodes), torch.from_numpy(weights)


@lru_cache(maxsize=1)
def trapezoid() -> tuple[Tensor, Tensor]:
    """Nodes and weights for means over a standard normal variable."""
    nodes = torch.linspace(-8.5, 8.5, 2001, dtype=torch.float64)
    weights = torch.exp(-nodes * nodes / 2)
    return nodes, weights / weights.sum()
