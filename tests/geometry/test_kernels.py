"""Self-kernels and cross-kernels against quadrature, at 40 digits, and against each other."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from hope.geometry import gaussian as moments
from hope.geometry import kernels
from tests.geometry.explicit import bivariate_cdf, ramp_product
from tests.geometry.kernel_case import (
    SLOPES,
    Array,
    CrossKernelCase,
    KernelCase,
    Signals,
    grid,
    joined,
    quadrature,
)

RATIOS = (-5.0, -4.9, -2.0, -0.3, 0.0, 0.7, 5.0)
RHOS = (-1.0, -1 + 1e-12, -0.9999, -0.6, 0.0, 0.3, 0.95, 0.9999, 1 - 1e-8, 1 - 1e-12, 1.0)
EQUAL = tuple((slope, slope) for slope in SLOPES)


class TestMean(KernelCase):
    """E Ψ(y): the kernel with a positive constant."""

    def signals(self) -> Signals:
        mean, slope = (x.ravel() for x in np.meshgrid(1.3 * np.linspace(-5, 5, 21), SLOPES))
        one, zero = np.ones_like(mean), np.zeros_like(mean)
        moving = Signals(mean, one, 1.3 * one, zero, zero, slope, zero)
        return joined(moving, moving._replace(spread_i=zero))

    def kernel(self, signals: Signals) -> Array:
        mean, constant, spread, _, _, slope, _ = signals.tensors()
        return (constant * moments.mean(mean, spread, slope)).numpy()


class TestEnergy(KernelCase):
    """E Ψ(y)²: the self-kernel."""

    tolerance = 1e-12

    def signals(self) -> Signals:
        return TestMean().signals().twins()

    def kernel(self, signals: Signals) -> Array:
        mean, _, spread, _, _, slope, _ = signals.tensors()
        return moments.energy(mean, spread, slope).numpy()


class TestExact(CrossKernelCase):
    def signals(self) -> Signals:
        unequal = ((0.0, 0.25), (1.0, 0.01), (-0.5, 0.0))
        moving = grid(ratios=RATIOS, rhos=RHOS, slopes=EQUAL + unequal)
        still = grid(ratios=(-2.0, 0.7), rhos=(-1.0, 0.5, 1.0), slopes=EQUAL)
        none = np.zeros_like(still.rho)
        return joined(
            moving,
            still._replace(spread_i=none),
            still._replace(spread_j=none),
            still._replace(spread_i=none, spread_j=none),
        )

    def kernel(self, signals: Signals) -> Array:
        return kernels.exact_signs(*signals.tensors())[0].numpy()


class TestZeroBias(CrossKernelCase):
    """Without means it is not an approximation."""

    tolerance = 1e-12

    def signals(self) -> Signals:
        return grid(ratios=(0.0,), rhos=RHOS, slopes=(*EQUAL, (0.0, 0.25), (1.0, 0.01), (-0.5, 0.0)))

    def kernel(self, signals: Signals) -> Array:
        m_i, m_j, s_i, s_j, rho, a_i, a_j = signals.tensors()
        both = moments.energy(m_i, s_i, a_i) * moments.energy(m_j, s_j, a_j)
        return (kernels.zero_bias_cosine(rho, a_i, a_j) * torch.sqrt(both)).numpy()


class TestZeroBiasOfBothSigns(CrossKernelCase):
    """The form for whole layers: equal slopes, ρ and −ρ at once."""

    tolerance = 1e-12
    sign = 1

    def signals(self) -> Signals:
        return grid(ratios=(0.0,), rhos=RHOS, slopes=EQUAL)

    def kernel(self, signals: Signals) -> Array:
        m_i, m_j, s_i, s_j, rho, slope, _ = signals.tensors()
        both = moments.energy(m_i, s_i, slope) * moments.energy(m_j, s_j, slope)
        cosines = kernels.zero_bias_cosines(self.sign * rho, slope)
        return (cosines[0 if self.sign > 0 else 1] * torch.sqrt(both)).numpy()


class TestZeroBiasOfTheOtherSign(TestZeroBiasOfBothSigns):
    sign = -1


class TestRampProduct(CrossKernelCase):
    """ReLU: the paper's moments of a truncated bivariate normal, with a bivariate CDF from elsewhere."""

    def signals(self) -> Signals:
        return grid(ratios=(-4.0, -2.0, -0.3, 0.0, 0.7, 5.0), rhos=RHOS, slopes=((0.0, 0.0),))

    def kernel(self, signals: Signals) -> Array:
        return kernels.exact_signs(*signals.tensors())[0].numpy()

    def reference(self, signals: Signals) -> Array:
        def cdf(h: float, k: float, rho: float) -> float:
            return float(stats.multivariate_normal.cdf([h, k], cov=[[1, rho], [rho, 1]], allow_singular=True))

        def paper(m_i: float, m_j: float, s_i: float, s_j: float, rho: float, *_: float) -> float:
            return s_i * s_j * ramp_product(m_i / s_i, m_j / s_j, rho, cdf)

        return np.array([paper(*pair) for pair in zip(*signals, strict=True)])


# ---- the references themselves, and what the case does not reach ----------------------------------------

HARD = [
    (-5.0, -5.0, 1 - 1e-10, 0.0),
    (-5.0, -4.9, 1.0, 0.0),
    (-5.0, 5.0, -1.0, 0.01),
    (0.3, 0.30001, 1 - 1e-12, 0.0),
    (2.0, -2.0, 0.9999, 0.25),
    (5.0, 5.0, -0.99, -0.5),
]


def forty_digits(c_i: float, c_j: float, rho: float, slope: float) -> mpmath.mpf:
    """E[Ψ(z + c_i)·Ψ(z' + c_j)], an integral over both by hand: no closed form inside but the normal CDF."""
    with mpmath.workdps(40):
        c_i, c_j, rho, slope = (mpmath.mpf(x) for x in (c_i, c_j, rho, slope))
        left = mpmath.sqrt((1 - rho) * (1 + rho))

        def psi(y: mpmath.mpf) -> mpmath.mpf:
            return y if y > 0 else slope * y

        def inside(m: mpmath.mpf) -> mpmath.mpf:
            if left == 0:
                return psi(m)
            ramp = m * mpmath.ncdf(m / left) + left * mpmath.npdf(m / left)
            return ramp + slope * (m - ramp)

        kinks = [-c_i, *((k * left - c_j) / rho for k in (-10, -3, 0, 3, 10))]
        edges = sorted({mpmath.mpf(z) for z in (-14, -6, -2, 2, 6, 14)} | {k for k in kinks if abs(k) < 14})
        return mpmath.quad(
            lambda z: mpmath.npdf(z) * psi(z + c_i) * inside(c_j + rho * z), edges, maxdegree=5
        )


@pytest.mark.parametrize(("c_i", "c_j", "rho", "slope"), HARD)
def test_exact_kernel_holds_at_forty_digits(c_i: float, c_j: float, rho: float, slope: float) -> None:
    want = forty_digits(c_i, c_j, rho, slope)
    signals = Signals(*np.array([[c_i], [c_j], [1.0], [1.0], [rho], [slope], [slope]]))
    size = math.sqrt(quadrature(signals.twins("i")).item() * quadrature(signals.twins("j")).item())
    assert abs(kernels.exact_signs(*signals.tensors())[0].item() - want) <= 1e-9 * size
    assert abs(quadrature(signals).item() - want) <= 1e-13 * size


def test_owens_function_gives_the_same_bivariate_distribution() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        h, k, rho = *rng.uniform(-4, 4, 2), math.tanh(3 * rng.normal())
        want = stats.multivariate_normal.cdf([h, k], cov=[[1, rho], [rho, 1]], allow_singular=True)
        assert bivariate_cdf(h, k, rho) == pytest.approx(want, abs=1e-14)


@pytest.mark.parametrize("c", [-37.0, -30.0, -20.001, -19.999, -8.0, -1.0, 0.0, 3.0, 30.0])
def test_moments_keep_their_relative_accuracy_in_the_tails(c: float) -> None:
    with mpmath.workdps(60):
        x = mpmath.mpf(c)
        first = x * mpmath.ncdf(x) + mpmath.npdf(x)
        second = (1 + x * x) * mpmath.ncdf(x) + x * mpmath.npdf(x)
        got = torch.tensor(c, dtype=torch.float64)
        assert abs(moments.ramp_mean(got).item() / first - 1) < 1e-10
        assert abs(moments.ramp_squares(got)[0].item() / second - 1) < 1e-10


def test_parallel_signals_with_different_thresholds_are_not_identical() -> None:
    """The true cosine is .57; the zero-bias kernel would say 1, which is why parallel pairs are exact."""
    signals = Signals(*np.array([[1.5], [-1.0], [1.0], [1.0], [1.0], [0.0], [0.0]]))
    cosine = kernels.exact_signs(*signals.tensors())[0].item() / TestExact().size(signals).item()
    assert cosine == pytest.approx(0.575, abs=0.001)
