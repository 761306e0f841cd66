"""The parent of many neurons against singular vectors, the pairs' own parent, Owen's T, and samples."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import optimize

from hope.geometry.parent import Parents, parents
from tests.geometry.beyond import parent_of_many
from tests.geometry.explicit import (
    Array,
    Layer,
    correlation,
    energy,
    exact_kernel,
    random_layer,
    zero_bias_cosine,
)

KERNELS = ("printed", "zero-bias", "exact")


def layers() -> list[Layer]:
    return [
        random_layer(seed, size, clusters=clusters, noise=noise, slope=slope)
        for seed, (size, clusters, noise, slope) in enumerate(
            (size, clusters, noise, slope)
            for size in (3, 5)
            for clusters, noise in ((None, 0.0), (1, 0.4), (1, 0.05))
            for slope in (0.0, 0.2, -0.4)
        )
    ]


def found(layer: Layer, kernel: str) -> Parents:
    state = layer.state()
    return parent_of_many(state.side(slice(None)), state.inner, state.outer, kernel=kernel)


def numbers(values: tuple[torch.Tensor, ...]) -> Array:
    return np.array([float(value) for value in values])


def covariance(layer: Layer) -> Array:
    """Of the signals: pair by pair, moved to the nearest correlation matrix where the pairs do not fit."""
    size = len(layer)
    rho = np.eye(size)
    for i in range(size):
        for j in range(i):
            rho[i, j] = rho[j, i] = correlation(*layer.rows[[i, j]], *layer.spread[[i, j]])
    if np.linalg.eigvalsh(rho)[0] < -1e-9:
        values, vectors = np.linalg.eigh(rho)
        rho = vectors @ np.diag(values.clip(min=0)) @ vectors.T
        rho /= np.sqrt(np.outer(rho.diagonal(), rho.diagonal()))
    return rho * np.outer(layer.spread, layer.spread)


@pytest.mark.parametrize("kernel", KERNELS)
def test_of_two_it_is_the_parent_of_the_pair(kernel: str) -> None:
    for layer in layers():
        two = layer.take([0, 1])
        one, other = found(two, kernel), parents(*two.pair(0, 1), kernel=kernel)
        for name in ("alignment", "energy", "spread"):
            assert float(getattr(one, name)) == pytest.approx(float(getattr(other, name)), rel=1e-9)
        assert numbers(one.rows) == pytest.approx(numbers(other.rows), abs=1e-9)
        assert numbers(one.reach) == pytest.approx(numbers(other.reach), rel=1e-9)
        assert float(one.correlation[0, 1]) == pytest.approx(float(other.correlation), abs=1e-12)


def test_direction_is_the_leading_singular_vector_of_all_neurons_together() -> None:
    for layer in layers():
        u = numbers(found(layer, "exact").rows) @ layer.rows
        a = layer.outs.T @ layer.rows
        assert np.linalg.norm(u) == pytest.approx(1, rel=1e-9)
        assert abs(u @ np.linalg.svd(a)[2][0]) == pytest.approx(1, rel=1e-9)


@pytest.mark.parametrize("kernel", ["printed", "exact"])
def test_alignment_is_that_of_kernels_between_the_parent_and_each_child(kernel: str) -> None:
    for layer in layers():
        got = found(layer, kernel)
        slope = float(layer.slope[0])
        sigma = covariance(layer)
        reported = []
        for sign in (1, -1):
            z = sign * numbers(got.rows)
            mean, spread = float(z @ layer.mean), math.sqrt(z @ sigma @ z)
            rho = (sigma @ z / (spread * layer.spread)).clip(-1, 1)
            reach = np.empty(len(layer))
            for m in range(len(layer)):
                if kernel == "exact":
                    reach[m] = exact_kernel(
                        mean, layer.mean[m], spread, layer.spread[m], float(rho[m]), slope, slope
                    )
                else:
                    both = energy(mean, spread, slope) * energy(layer.mean[m], layer.spread[m], slope)
                    reach[m] = zero_bias_cosine(float(rho[m]), slope, slope) * math.sqrt(both)
            reported.append(np.linalg.norm(reach @ layer.outs) / math.sqrt(energy(mean, spread, slope)))
        assert float(got.alignment) == pytest.approx(reported[0], rel=1e-8)
        assert reported[0] >= reported[1] * (1 - 1e-9)  # the better sign


def test_distortions_are_those_of_samples() -> None:
    """a − b²/M at s = b/M, and ‖Σf‖² − b² at s = b, each the least over s."""
    draws = np.random.default_rng(0).normal(size=(200_000, 4))
    for seed in range(3):
        layer = random_layer(seed, 4, clusters=1, noise=0.4)
        got = found(layer, "exact")
        sigma = covariance(layer)
        factor = np.linalg.cholesky(sigma + 1e-12 * np.eye(4))
        y = layer.mean + draws @ factor.T
        f = np.maximum(y, 0)[:, :, None] * layer.outs  # (draws, M, out)
        reach = numbers(got.reach) @ layer.outs
        psi = np.maximum(y @ numbers(got.rows), 0)[:, None] * reach / np.linalg.norm(reach)
        psi /= math.sqrt(float(got.energy))
        a, b = float((layer.capacities() ** 2).sum()), float(got.alignment)

        def each(s: float, f: Array = f, psi: Array = psi) -> float:
            return float(((f - s * psi[:, None]) ** 2).sum(axis=(1, 2)).mean())

        def together(s: float, f: Array = f, psi: Array = psi) -> float:
            return float(((f.sum(axis=1) - s * psi) ** 2).sum(axis=1).mean())

        rho = sigma / np.outer(layer.spread, layer.spread)
        m, s = layer.mean, layer.spread
        kernel = [[exact_kernel(m[i], m[j], s[i], s[j], rho[i, j], 0, 0) for j in range(4)] for i in range(4)]
        total = float((np.array(kernel) * (layer.outs @ layer.outs.T)).sum())
        for lost, scale, least in ((each, b / 4, a - b**2 / 4), (together, b, total - b**2)):
            search = optimize.minimize_scalar(lost, bounds=(0, 4 * b), method="bounded")
            assert search.x == pytest.approx(scale, rel=0.02)
            assert lost(scale) == pytest.approx(least, rel=0.02, abs=1e-3 * a)


def test_the_distortion_is_within_the_papers_bound() -> None:
    """δ ≤ (Σ‖f_m‖²)^½ ≤ Σ‖f_m‖, whatever the neurons."""
    for layer in layers():
        for kernel in KERNELS:
            size, b = layer.capacities(), float(found(layer, kernel).alignment)
            assert b > 0
            assert b**2 / len(layer) <= float(size @ size) * (1 + 1e-12)


@pytest.mark.parametrize("kernel", ["zero-bias", "exact"])
def test_copies_merge_without_loss_whatever_their_scale(kernel: str) -> None:
    layer = random_layer(3, 1).take([0] * 4)
    for m, scale in enumerate((1.0, 0.3, 2.0, 5.0)):
        layer.rows[m] *= scale
        layer.mean[m] *= scale
        layer.spread[m] *= scale
        layer.outs[m] /= scale
    size, b = layer.capacities(), float(found(layer, kernel).alignment)
    assert b == pytest.approx(4 * size[0], rel=1e-7)  # ‖Σf‖: a − b²/M = 0 and ‖Σf‖² − b² = 0
    assert b**2 / 4 == pytest.approx(float(size @ size), rel=1e-7)


def test_neurons_that_cancel_or_bend_differently_have_no_parent() -> None:
    layer = random_layer(0, 4).take([0, 0, 1, 1])
    layer.outs[[1, 3]] *= -1
    assert float(found(layer, "exact").alignment) == 0
    layer = random_layer(0, 3, clusters=1, noise=0.1)
    layer.slope[1] = 0.3
    assert float(found(layer, "exact").alignment) == 0
