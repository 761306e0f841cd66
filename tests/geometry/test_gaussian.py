"""Energies behind activations without a closed form; those with one are in tests/geometry/test_kernels.py."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from hope.geometry import gaussian as moments
from hope.ops.activation import SMOOTH

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)


def reference(name: str, mean: Tensor, spread: Tensor) -> Tensor:
    """∫ φ(z)·Ψ(m + s z)² dz by Gauss–Legendre between the kinks that any of the activations has."""
    kinks = [(k - mean) / spread for k in (-3.0, -1.0, 0.0, 1.0, 3.0, 6.0)]
    edges = [torch.full_like(mean, z) for z in (-12.0, -3.0, 0.0, 3.0, 12.0)] + kinks
    cuts = torch.stack([edge.clamp(-12, 12) for edge in edges]).sort(dim=0).values
    nodes, weights = torch.from_numpy(_NODES), torch.from_numpy(_WEIGHTS)
    total = torch.zeros_like(mean)
    for low, high in itertools.pairwise(cuts):
        z = (low + high)[:, None] / 2 + (high - low)[:, None] / 2 * nodes
        value = SMOOTH[name].function(mean[:, None] + spread[:, None] * z) ** 2 * moments.density(z)
        total += value @ weights * (high - low) / 2
    return total


@pytest.mark.parametrize("name", sorted(SMOOTH))
def test_energy_of_any_activation_equals_quadrature(name: str) -> None:
    ratios, spreads = torch.meshgrid(
        torch.linspace(-3, 3, 13, dtype=torch.float64),
        torch.tensor([0.01, 0.3, 1.0, 2.5], dtype=torch.float64),
        indexing="ij",
    )
    mean, spread = (ratios * spreads).flatten(), spreads.flatten()
    want = reference(name, mean, spread)
    error = (moments.energy_of(SMOOTH[name].function, mean, spread, SMOOTH[name].cuts) - want).abs()
    assert (error / (want + 1e-6 * want.max())).max() < 1e-6


def test_energy_of_a_still_signal_is_its_square() -> None:
    mean = torch.tensor([-1.0, 0.0, 2.0], dtype=torch.float64)
    found = moments.energy_of(torch.nn.functional.silu, mean, torch.zeros(3, dtype=torch.float64))
    assert torch.allclose(found, torch.nn.functional.silu(mean) ** 2, rtol=1e-12)
