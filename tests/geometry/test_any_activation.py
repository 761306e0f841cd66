"""Moments (to 1e-9) and kernels (to 1e-6) behind activations without a closed form, against adaptive
quadrature of functions that are written down here once more.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import pytest
import torch
from scipy.integrate import quad
from torch import Tensor, nn

import hope
from hope.geometry.gaussian import energy_of
from hope.geometry.hermite import TERMS, bend_with, covariance
from hope.ops.activation import SMOOTH, cuts, function
from hope.trace.values import Link
from tests.geometry.beyond import exact_of

Real = Callable[[float], float]


def _sigmoid(y: float) -> float:
    return 1 / (1 + math.exp(-y)) if y > 0 else math.exp(y) / (1 + math.exp(y))


def _softplus(y: float) -> float:
    return max(y, 0) + math.log1p(math.exp(-abs(y)))


def _elu(y: float, alpha: float, width: float = 1.0) -> float:
    return y if y > 0 else alpha * math.expm1(y / width)


ROOT = math.sqrt(2 / math.pi)
# name, its numbers, what it is, where its kinks are (or where it bends)
KNOWN: list[tuple[str, tuple[float, ...], Real, tuple[float, ...]]] = [
    ("silu", (), lambda y: y * _sigmoid(y), (0,)),
    ("gelu", (), lambda y: y * math.erfc(-y / math.sqrt(2)) / 2, (0,)),
    ("gelu", (1.0,), lambda y: y * (1 + math.tanh(ROOT * (y + 0.044715 * y**3))) / 2, (0,)),
    ("hardswish", (), lambda y: y * min(max(y + 3, 0), 6) / 6, (-3, 3)),
    ("relu6", (), lambda y: min(max(y, 0), 6), (0, 6)),
    ("hardtanh", (-0.5, 2.0), lambda y: min(max(y, -0.5), 2), (-0.5, 2)),
    ("sigmoid", (), _sigmoid, (0,)),
    ("log_sigmoid", (), lambda y: -_softplus(-y), (0,)),
    ("tanh", (), math.tanh, (0,)),
    ("elu", (0.7, 1.0, 1.0), lambda y: _elu(y, 0.7), (-4, 0)),
    ("mish", (), lambda y: y * math.tanh(_softplus(y)), (0,)),
    ("selu", (), lambda y: 1.0507009873554805 * _elu(y, 1.6732632423543772), (-4, 0)),
    ("hardsigmoid", (), lambda y: min(max(y + 3, 0), 6) / 6, (-3, 3)),
    ("celu", (0.2,), lambda y: _elu(y, 0.2, 0.2), (-0.8, 0)),
    ("softplus", (2.0, 20.0), lambda y: _softplus(2 * y) / 2, (0,)),
    ("softplus", (2.0, 1.0), lambda y: y if 2 * y > 1 else _softplus(2 * y) / 2, (0.5,)),
]  # fmt: skip
every = pytest.mark.parametrize(
    ("link", "psi", "kinks"),
    [(Link("activation", name, values), psi, kinks) for name, values, psi, kinks in KNOWN],
    ids=[f"{name}{list(values) or ''}" for name, values, *_ in KNOWN],
)


def average(what: Real, places: list[float], error: float = 1e-10) -> float:
    """E what(z), split at places."""
    points = sorted({*(z for z in places if abs(z) < 10), -4.0, 0.0, 4.0})
    weighted: Real = lambda z: what(z) * math.exp(-z * z / 2)  # noqa: E731
    found = quad(weighted, -10, 10, points=points, limit=400, epsabs=error, epsrel=1e-11)
    return float(found[0]) / math.sqrt(2 * math.pi)


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_every_activation_without_a_closed_form_is_here() -> None:
    assert {name for name, *_ in KNOWN} == set(SMOOTH)


@every
def test_moments_are_those_of_adaptive_quadrature(link: Link, psi: Real, kinks: tuple[float, ...]) -> None:
    """Errors are relative to √E Ψ² or .1, of energies and variances to its square."""
    signals = [
        (0.0, 1.0),
        *product((-2.9, -0.1, 0.4, 5.8), (0.01, 0.3, 1.0, 3.0)),
        (-4.0, 30.0),
        (20.0, 30.0),
    ]
    mean, spread = (tensor(*side) for side in zip(*signals, strict=True))
    smooth = function(link)
    assert smooth is not None
    bent, energy = bend_with(smooth, mean, spread, cuts(link)), energy_of(smooth, mean, spread, cuts(link))
    for k, (m, s) in enumerate(signals):
        places = [(kink + near - m) / s for kink in kinks for near in (-1, 0, 1)]
        error = 1e-13 * (1 + 10 * m**2 + 10 * s**2)
        first = average(lambda z: psi(m + s * z), places, error)  # noqa: B023
        square = average(lambda z: psi(m + s * z) ** 2, places, error)  # noqa: B023
        third = average(lambda z: (z**3 - 3 * z) / math.sqrt(6) * psi(m + s * z), places, error)  # noqa: B023
        size = max(math.sqrt(square), 0.1)
        assert abs(float(bent.mean[k]) - first) < 1e-9 * size
        assert abs(float(bent.terms[2, k]) - third) < 1e-9 * size
        assert abs(float(energy[k]) - square) < 1e-9 * size**2
        assert abs(float(bent.variance[k]) - (square - first**2)) < 1e-9 * size**2


def nested(
    psi: Real, kinks: tuple[float, ...], m_i: float, m_j: float, s_i: float, s_j: float, rho: float
) -> float:
    """E[Ψ(y_i)·Ψ(y_j)]."""
    left = s_j * math.sqrt(1 - rho**2)

    def given(z: float) -> float:
        middle = m_j + rho * s_j * z
        return average(lambda w: psi(middle + left * w), [(kink - middle) / left for kink in kinks])

    places = [(kink - m_i) / s_i for kink in kinks]
    places += [(kink - m_j + k * left) / (rho * s_j) for kink in kinks for k in (-4, 0, 4)]
    return average(lambda z: psi(m_i + s_i * z) * given(z), places)


PAIRS = [
    (0.2, -0.4, 1.0, 0.8, 0.6),
    (2.6, 0.3, 3.0, 1.0, -0.9),
    (0.1, 0.15, 0.3, 0.2, 0.99),
    (1.0, 5.0, 6.0, 8.0, 0.999),
]


@every
@pytest.mark.parametrize("pair", PAIRS)
def test_kernels_of_pairs_are_those_of_adaptive_quadrature(
    link: Link, psi: Real, kinks: tuple[float, ...], pair: tuple[float, ...]
) -> None:
    smooth = function(link)
    assert smooth is not None
    m_i, m_j, s_i, s_j = pair[:4]
    found = float(exact_of(smooth, *(tensor(value) for value in pair), cuts(link)))
    energy = energy_of(smooth, tensor(m_i, m_j), tensor(s_i, s_j), cuts(link))
    assert abs(found - nested(psi, kinks, *pair)) < 1e-6 * math.sqrt(float(energy.prod()))


@every
def test_covariances_of_layers_are_as_near_as_their_bound_says(
    link: Link, psi: Real, kinks: tuple[float, ...]
) -> None:
    """Series against pairs: to 1e-6 up to a correlation of .6, everywhere to what the terms leave over."""
    smooth = function(link)
    assert smooth is not None
    mean, spread = tensor(-1.5, 0.1, 0.9, 2.8, 0.0, 4.0), tensor(0.3, 0.3, 1.0, 1.0, 5.0, 5.0)
    bent = bend_with(smooth, mean, spread, cuts(link))
    size = torch.sqrt(bent.mean**2 + bent.variance).clamp(min=1e-3)
    one, other = torch.triu_indices(6, 6, offset=1)
    for rho in (0.3, -0.6, 0.9):
        series = covariance(bent, bent, torch.full((6, 6), rho, dtype=torch.float64))[one, other]
        pairs = (t[side] for t in (mean, spread) for side in (one, other))
        exact = exact_of(smooth, *pairs, tensor(rho), cuts(link)) - bent.mean[one] * bent.mean[other]
        error = (series - exact).abs() / (size[one] * size[other])
        bound = 2 * abs(rho) ** (TERMS + 1) * (bent.rest / size)[one] * (bent.rest / size)[other]
        assert (error <= bound + 1e-9).all()
        assert abs(rho) > 0.6 or error.max() < 1e-6


def test_numbers_of_an_activation_count() -> None:
    """A softplus with β = 4 and a hard tanh with its own bounds: energies are those of their values."""
    x = torch.randn(4000, 4)
    for activation in (nn.Softplus(beta=4.0), nn.Hardtanh(-0.3, 0.1), nn.CELU(0.1)):
        net = nn.Sequential(nn.Linear(4, 6), activation, nn.Linear(6, 5)).double()
        found = hope.capacities(net, x[:1].double(), calibration=[x.double()])["0"]
        weight = net[2].weight.square().sum(dim=0)
        want = torch.sqrt(net[:2](x.double()).square().mean(dim=0) * weight).detach()
        assert found == pytest.approx(want, rel=0.03)
