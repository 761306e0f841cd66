"""The surrogate of a whole layer: its constraints, that nothing is better, and that of two filters."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hope.geometry.pairwise import warped_correlation
from tests.theory.surrogate import Array, correlations, divergence, layer_wide


def drawn(seed: int, filters: int, inputs: int) -> tuple[Array, Array, Array]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(filters, inputs)), rng.normal(size=filters), np.exp(rng.normal(size=filters))


@pytest.mark.parametrize(("filters", "inputs"), [(2, 5), (6, 9), (9, 9), (5, 40)])
def test_means_and_variances_are_those_of_the_bn(filters: int, inputs: int) -> None:
    for seed in range(3):
        w, mu, variances = drawn(seed, filters, inputs)
        found = layer_wide(w, mu, variances)
        assert np.einsum("ci,ij,cj->c", w, found.covariance, w) == pytest.approx(variances, rel=1e-9)
        assert w @ found.mean == pytest.approx(mu, abs=1e-9)
        assert found.mean == pytest.approx(np.linalg.lstsq(w, mu, rcond=None)[0], abs=1e-9)  # of least norm


def test_with_more_filters_than_inputs_variances_of_real_inputs_are_met_and_means_as_well_as_can_be() -> None:
    rng = np.random.default_rng(0)
    w, mu, _ = drawn(1, 7, 4)
    root = rng.normal(size=(4, 4))
    variances = np.einsum("ci,ij,cj->c", w, root @ root.T, w)  # of inputs that there are
    found = layer_wide(w, mu, variances)
    assert np.einsum("ci,ij,cj->c", w, found.covariance, w) == pytest.approx(variances, rel=1e-9)
    assert w.T @ (w @ found.mean - mu) == pytest.approx(np.zeros(4), abs=1e-9)


def test_no_other_covariance_with_these_variances_is_nearer_to_the_identity() -> None:
    rng = np.random.default_rng(0)
    w, mu, variances = drawn(2, 4, 6)
    best = layer_wide(w, mu, variances).covariance
    constraints = np.array([np.outer(row, row).ravel() for row in w])
    for size in (1e-3, 0.05):
        for _ in range(20):
            other = rng.normal(size=(6, 6))
            other = (other + other.T).ravel()
            other -= np.linalg.lstsq(constraints, constraints @ other, rcond=None)[0]
            moved = best + size * other.reshape(6, 6) * np.linalg.eigvalsh(best)[0]
            assert np.einsum("ci,ij,cj->c", w, moved, w) == pytest.approx(variances, rel=1e-9)
            assert divergence(moved) > divergence(best)


def test_of_two_filters_it_is_the_pairwise_form() -> None:
    for seed in range(10):
        w, mu, variances = drawn(seed, 2, 5)
        joint = correlations(w @ layer_wide(w, mu, variances).covariance @ w.T)
        pair = warped_correlation(torch.from_numpy(w @ w.T), torch.from_numpy(np.sqrt(variances)))
        assert joint[0, 1] == pytest.approx(float(pair[0, 1]), abs=1e-9)
