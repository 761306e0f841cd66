"""Covariances behind an activation: against the exact kernel, Monte Carlo and quadrature."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import hope
from hope.geometry import kernels
from hope.geometry.hermite import bend, bend_with, covariance
from hope.ops.activation import function


def signals(seed: int, n: int = 12) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    factor = torch.randn(n, 5, generator=generator, dtype=torch.float64)
    rho = factor @ factor.T
    scale = rho.diagonal().sqrt()
    mean = 1.5 * torch.randn(n, generator=generator, dtype=torch.float64)
    spread = 0.2 + torch.rand(n, generator=generator, dtype=torch.float64)
    return mean, spread, rho / torch.outer(scale, scale)


@pytest.mark.parametrize("slope", [0.0, 0.2, 1.0])
@pytest.mark.parametrize("seed", range(3))
def test_covariances_are_the_exact_kernel_without_the_means(seed: int, slope: float) -> None:
    mean, spread, rho = signals(seed)
    slopes = torch.full_like(mean, slope)
    bent = bend(mean, spread, slopes)
    found = covariance(bent, bent, rho)
    wide = [t[:, None] for t in (mean, spread, slopes)], [t[None, :] for t in (mean, spread, slopes)]
    (m_i, s_i, a_i), (m_j, s_j, a_j) = wide
    exact = kernels.exact_signs(m_i, m_j, s_i, s_j, rho, a_i, a_j)[0] - torch.outer(bent.mean, bent.mean)
    size = torch.sqrt(torch.outer(bent.variance, bent.variance)).clamp(min=1e-30)
    assert ((found - exact).abs() / size).max() < 2e-3
    assert torch.allclose(found.diagonal(), bent.variance, rtol=1e-9)


def test_covariances_and_slopes_against_sampling() -> None:
    mean, spread, rho = signals(7, 5)
    values, vectors = torch.linalg.eigh(rho)
    root = vectors * values.clamp(min=0).sqrt()
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(400_000, 5, generator=generator, dtype=torch.float64) @ root.T
    y = mean + spread * z
    bent = bend(mean, spread, torch.zeros_like(mean))
    g = y.clamp(min=0)
    assert torch.allclose(g.mean(dim=0), bent.mean, atol=5e-3)
    assert torch.allclose(torch.cov(g.T), covariance(bent, bent, rho), atol=1e-2)
    assert torch.allclose((y > 0).double().mean(dim=0), bent.slope, atol=5e-3)
    stein = torch.cov(torch.cat([g, y], dim=1).T)[:5, 5:]
    assert torch.allclose(stein, bent.slope[:, None] * rho * torch.outer(spread, spread), atol=1e-2)


def test_quadrature_agrees_with_the_closed_form() -> None:
    mean, spread, rho = signals(3)
    closed = bend(mean, spread, torch.full_like(mean, 0.1))
    by_rule = bend_with(lambda y: functional.leaky_relu(y, 0.1), mean, spread)
    assert torch.allclose(closed.mean, by_rule.mean, atol=1e-4)
    assert torch.allclose(closed.terms[:6], by_rule.terms[:6], atol=1e-4)
    assert torch.allclose(covariance(closed, closed, rho), covariance(by_rule, by_rule, rho), atol=1e-3)


@pytest.mark.parametrize("activation", [functional.silu, functional.gelu, torch.sigmoid])
def test_smooth_activations_against_sampling(activation: object) -> None:
    mean, spread, rho = signals(5, 4)
    values, vectors = torch.linalg.eigh(rho)
    root = vectors * values.clamp(min=0).sqrt()
    z = torch.randn(200_000, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64) @ root.T
    g = activation(mean + spread * z)  # type: ignore[operator]
    bent = bend_with(activation, mean, spread)  # type: ignore[arg-type]
    assert torch.allclose(torch.cov(g.T), covariance(bent, bent, rho), atol=1e-2)


def test_both_kinds_of_gelu_are_distinguished() -> None:
    x = torch.linspace(-3, 3, 7)
    for kind in ("none", "tanh"):
        net = nn.Sequential(nn.Linear(4, 4), nn.GELU(approximate=kind), nn.Linear(4, 2))
        (layer,) = hope.inspect(net, torch.zeros(1, 4)).layers
        link = layer.readers[0].last("activation")
        assert link is not None
        found = function(link)
        assert found is not None
        assert torch.equal(found(x), functional.gelu(x, approximate=kind))


@pytest.mark.parametrize("seed", range(5))
def test_a_correlation_matrix_gives_a_semidefinite_covariance(seed: int) -> None:
    mean, spread, rho = signals(seed, 30)  # rank 5
    bent = bend(3 * mean, spread, torch.zeros_like(mean))
    found = covariance(bent, bent, rho)
    assert torch.linalg.eigvalsh(found).min() > -1e-12 * found.diagonal().max()


def test_twins_and_still_signals() -> None:
    mean = torch.tensor([0.3, 0.3, 1.0], dtype=torch.float64)
    spread = torch.tensor([0.7, 0.7, 0.0], dtype=torch.float64)
    rho = torch.ones(3, 3, dtype=torch.float64)
    bent = bend(mean, spread, torch.zeros(3, dtype=torch.float64))
    found = covariance(bent, bent, rho)
    assert torch.allclose(found[0, 1], found[0, 0], rtol=1e-12)
    assert found[2].abs().max() == 0
    assert bent.mean[2] == 1.0
