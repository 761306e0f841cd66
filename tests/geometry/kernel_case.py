"""One test case for all kernels: each supplies itself, the signals it is meant for, and a reference that
shares no code with it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import product
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtr

Array = NDArray[np.float64]
SLOPES = (0.0, 0.01, 0.25, 1.0, -0.5)  # ReLU, leaky ReLUs, the identity, and one that folds
ROUNDING = 1e-12


class Signals(NamedTuple):
    """Pairs of Gaussian signals before their activations, one entry per pair."""

    mean_i: Array
    mean_j: Array
    spread_i: Array
    spread_j: Array
    rho: Array
    slope_i: Array
    slope_j: Array

    def swapped(self) -> Signals:
        m_i, m_j, s_i, s_j, rho, a_i, a_j = self
        return Signals(m_j, m_i, s_j, s_i, rho, a_j, a_i)

    def twins(self, which: str = "i") -> Signals:
        """Each signal of one side beside itself."""
        m, s, a = (getattr(self, f"{name}_{which}") for name in ("mean", "spread", "slope"))
        return Signals(m, m, s, s, np.ones_like(self.rho), a, a)

    def some(self, which: Array) -> Signals:
        return Signals(*(part[which] for part in self))

    def tensors(self) -> list[torch.Tensor]:
        return [torch.from_numpy(np.ascontiguousarray(part)) for part in self]


def grid(
    *, ratios: tuple[float, ...], rhos: tuple[float, ...], slopes: tuple[tuple[float, float], ...]
) -> Signals:
    """All combinations of mean/spread on either side, of correlations and of slopes; spreads 1.3 and 0.4."""
    rows = [
        (1.3 * c_i, 0.4 * c_j, 1.3, 0.4, rho, a_i, a_j)
        for c_i, c_j, rho, (a_i, a_j) in product(ratios, ratios, rhos, slopes)
    ]
    return Signals(*np.array(rows).T)


def joined(*parts: Signals) -> Signals:
    return Signals(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))


# ---- references ----------------------------------------------------------------------------------------


def activate(y: Array, slope: Array) -> Array:
    return np.where(y > 0, y, slope * y)


def conditional_mean(mean: Array, spread: Array, slope: Array) -> Array:
    """E Ψ(y), y ~ N(mean, spread²)."""
    safe = np.where(spread > 0, spread, 1)
    c = mean / safe
    ramp = safe * (c * ndtr(c) + np.exp(-c * c / 2) / np.sqrt(2 * np.pi))
    ramp = np.where(spread > 0, ramp, np.maximum(mean, 0))
    return ramp + slope * (mean - ramp)


_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(48)
_LIMIT = 13.0


def quadrature(signals: Signals) -> Array:
    """E[Ψ(y_i)·Ψ(y_j)] = ∫ φ(z)·Ψ(m_i + s_i z)·E[Ψ(y_j) | z] dz, by Gauss–Legendre in pieces: at the kink of
    either factor, and around the second's, which is as wide as y_j varies given z.
    """
    m_i, m_j, s_i, s_j, rho, a_i, a_j = (part[:, None] for part in signals)
    left = s_j * np.sqrt((1 - rho) * (1 + rho))  # deviation of y_j given z
    slow = rho * s_j
    cuts = [np.full_like(m_i, float(z)) for z in (-_LIMIT, -5, -2, 0, 2, 5, _LIMIT)]
    cuts.append(np.where(s_i > 0, -m_i / np.where(s_i > 0, s_i, 1), 0))
    safe = np.where(slow != 0, slow, 1)
    for k in (-8, -4, -1.5, 0, 1.5, 4, 8):
        cuts.append(np.where(slow != 0, (k * left - m_j) / safe, 0))
    edges = np.sort(np.clip(np.concatenate(cuts, axis=1), -_LIMIT, _LIMIT), axis=1)
    total = np.zeros(len(m_i))
    for low, high in zip(edges.T[:-1], edges.T[1:], strict=True):
        z = ((high + low) / 2)[:, None] + ((high - low) / 2)[:, None] * _NODES
        value = activate(m_i + s_i * z, a_i) * conditional_mean(m_j + slow * z, left, a_j)
        total += (value * np.exp(-z * z / 2)) @ _WEIGHTS * (high - low) / 2
    return total / np.sqrt(2 * np.pi)


_DRAWS = np.random.default_rng(0).normal(size=(2, 200_000))


def monte_carlo(signals: Signals) -> tuple[Array, Array]:
    """A sample mean of Ψ(y_i)·Ψ(y_j), and its standard error."""
    mean, error = np.empty_like(signals.rho), np.empty_like(signals.rho)
    for k, (m_i, m_j, s_i, s_j, rho, a_i, a_j) in enumerate(zip(*signals, strict=True)):
        first, second = _DRAWS[0], rho * _DRAWS[0] + np.sqrt(1 - rho**2) * _DRAWS[1]
        values = activate(m_i + s_i * first, a_i) * activate(m_j + s_j * second, a_j)
        mean[k], error[k] = values.mean(), values.std() / np.sqrt(len(values))
    return mean, error


# ---- the test cases ------------------------------------------------------------------------------------


class KernelCase(ABC):
    """K(i, j) = E[Ψ(y_i)·Ψ(y_j)]. Tolerances are relative to √(K(i, i)·K(j, j)), the largest it can be."""

    tolerance = 1e-9

    @abstractmethod
    def signals(self) -> Signals:
        """The pairs that the kernel is held against its reference on."""

    @abstractmethod
    def kernel(self, signals: Signals) -> Array:
        """What the library says."""

    def reference(self, signals: Signals) -> Array:
        """What it should say."""
        return quadrature(signals)

    def size(self, signals: Signals) -> Array:
        return np.sqrt(quadrature(signals.twins("i")) * quadrature(signals.twins("j")))

    def assert_close(self, got: Array, want: Array, signals: Signals, tolerance: float) -> None:
        error = np.abs(got - want) / self.size(signals)
        worst = int(np.argmax(error))
        assert error[worst] <= tolerance, (
            f"{got[worst]!r} instead of {want[worst]!r}, {error[worst]:.1e} of its size, "
            f"at {signals.some(np.array([worst]))}"
        )

    def pairs(self) -> Signals:
        """The signals, without those that are the constant 0: they have no size to be accurate to."""
        signals = self.signals()
        return signals.some(self.size(signals) > 0)

    def test_equals_its_reference(self) -> None:
        pairs = self.pairs()
        self.assert_close(self.kernel(pairs), self.reference(pairs), pairs, self.tolerance)

    def test_scaling_the_signals_scales_it(self) -> None:
        """Ψ(λy) = λΨ(y) for λ > 0."""
        pairs = self.pairs()
        m_i, m_j, s_i, s_j, *rest = pairs
        grown = Signals(7 * m_i, 7 * m_j, 7 * s_i, 7 * s_j, *rest)
        self.assert_close(self.kernel(grown), 49 * self.kernel(pairs), grown, ROUNDING)

    def test_obeys_cauchy_schwarz(self) -> None:
        signals = self.signals()
        assert (np.abs(self.kernel(signals)) <= self.size(signals) * (1 + self.tolerance)).all()

    def test_agrees_with_a_sample(self) -> None:
        """A sanity check that shares no idea with quadrature, on a few pairs."""
        pairs = self.pairs()
        common = (np.abs(pairs.mean_i) <= 2 * pairs.spread_i) & (np.abs(pairs.mean_j) <= 2 * pairs.spread_j)
        pairs = pairs.some(common | (pairs.spread_j == 0))  # what a sample sees often enough
        few = pairs.some(np.random.default_rng(1).choice(len(pairs.rho), 12, replace=False))
        mean, error = monte_carlo(few)
        assert (np.abs(self.kernel(few) - mean) <= 5 * error + ROUNDING).all()


class CrossKernelCase(KernelCase):
    """A kernel of two different signals."""

    def test_is_symmetric(self) -> None:
        pairs = self.pairs()
        self.assert_close(self.kernel(pairs), self.kernel(pairs.swapped()), pairs, ROUNDING)

    def test_scaling_one_signal_scales_it(self) -> None:
        pairs = self.pairs()
        grown = pairs._replace(mean_i=7 * pairs.mean_i, spread_i=7 * pairs.spread_i)
        self.assert_close(self.kernel(grown), 7 * self.kernel(pairs), grown, ROUNDING)

    def test_equal_signals_have_the_self_kernel(self) -> None:
        for side in ("i", "j"):
            twins = self.pairs().twins(side)
            self.assert_close(self.kernel(twins), quadrature(twins), twins, self.tolerance)

    def test_grows_with_the_correlation(self) -> None:
        """dK/dρ = s_i·s_j·E[Ψ'(y_i)Ψ'(y_j)] ≥ 0 wherever no slope is negative."""
        signals = self.signals()
        signals = signals.some((signals.slope_i >= 0) & (signals.slope_j >= 0))
        size = self.size(signals)
        rhos = np.linspace(-1, 1, 21)
        values = np.stack([self.kernel(signals._replace(rho=np.full_like(signals.rho, r))) for r in rhos])
        assert (np.diff(values, axis=0) >= -self.tolerance * size).all()
