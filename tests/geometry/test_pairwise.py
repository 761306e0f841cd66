"""The warped correlation against the problem that it solves."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import optimize

from hope.geometry.pairwise import warp, warped_correlation

Array = NDArray[np.float64]


def number(*values: float) -> list[torch.Tensor]:
    return [torch.tensor(value, dtype=torch.float64) for value in values]


def library(filters: Array, spreads: Array) -> float:
    gram = filters @ filters.T
    return warp(*number(gram[0, 1], gram[0, 0], gram[1, 1], *spreads)).item()


def cases(count: int = 20) -> list[tuple[Array, Array]]:
    """Two filters, from nearly orthogonal to nearly parallel or opposite, and two spreads."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(count):
        filters = rng.normal(size=(2, 4))
        filters[1] += rng.choice([-3, -1, 0, 1, 3]) * filters[0]
        found.append((filters, np.exp(rng.normal(size=2))))
    return found


def divergence(covariance: Array, prior: Array) -> float:
    """KL(N(0, covariance) ‖ N(0, prior))."""
    ratio = np.linalg.solve(prior, covariance)
    return float(np.trace(ratio) - np.linalg.slogdet(ratio)[1] - len(prior)) / 2


@pytest.mark.parametrize(("filters", "spreads"), cases())
def test_it_is_the_least_divergence_from_the_prior_with_the_variances_given(
    filters: Array, spreads: Array
) -> None:
    """In the plane of the two projections: the prior N(0, I) of the inputs makes theirs N(0, G)."""
    prior = filters @ filters.T

    def cost(angle: float) -> float:  # ρ = sin(angle)
        rho = math.sin(angle)
        return divergence(np.outer(spreads, spreads) * np.array([[1, rho], [rho, 1]]), prior)

    best = optimize.minimize_scalar(cost, bounds=(-math.pi / 2, math.pi / 2), method="bounded",
                                    options={"xatol": 1e-12})  # fmt: skip
    assert library(filters, spreads) == pytest.approx(math.sin(best.x), abs=1e-6)


@pytest.mark.parametrize(("filters", "spreads"), cases(8))
def test_it_is_the_least_divergence_over_all_input_distributions(filters: Array, spreads: Array) -> None:
    """In the space of inputs: the paper's precision I + WΛWᵀ, Λ by a root finder, and nothing that also has
    the two variances is nearer to N(0, I).
    """

    def surrogate(multipliers: Array) -> Array:
        return np.linalg.inv(np.eye(4) + filters.T @ np.diag(multipliers) @ filters)

    start = 1 / spreads**2 - 1 / np.diag(filters @ filters.T)
    solved = optimize.root(lambda m: np.diag(filters @ surrogate(m) @ filters.T) / spreads**2 - 1, start,
                           tol=1e-13)  # fmt: skip
    sigma = surrogate(solved.x)
    found = filters @ sigma @ filters.T
    assert np.diag(found) == pytest.approx(spreads**2, rel=1e-9)
    assert np.linalg.eigvalsh(sigma).min() > 0
    assert library(filters, spreads) == pytest.approx(found[0, 1] / spreads.prod(), abs=1e-8)
    rng = np.random.default_rng(1)
    constraints = np.stack([np.outer(w, w).ravel() for w in filters])
    for _ in range(20):  # another distribution with the same two variances
        step = rng.normal(size=(4, 4))
        step = (step + step.T).ravel()
        step -= constraints.T @ np.linalg.solve(constraints @ constraints.T, constraints @ step)
        step *= 0.3 * np.linalg.eigvalsh(sigma).min() / np.linalg.norm(step)
        assert divergence(sigma + step.reshape(4, 4), np.eye(4)) > divergence(sigma, np.eye(4))


@pytest.mark.parametrize(("filters", "spreads"), cases(8))
def test_it_is_the_papers_formula(filters: Array, spreads: Array) -> None:
    lengths = np.linalg.norm(filters, axis=1)
    cosine = filters[0] @ filters[1] / lengths.prod()
    kappa = cosine / (1 - cosine**2) * spreads.prod() / lengths.prod()
    assert library(filters, spreads) == pytest.approx(
        2 * kappa / (1 + math.sqrt(1 + 4 * kappa**2)), rel=1e-10
    )


@pytest.mark.parametrize(("filters", "spreads"), cases(8))
def test_signals_as_the_prior_has_them_keep_their_cosine(filters: Array, spreads: Array) -> None:
    lengths = np.linalg.norm(filters, axis=1)
    assert library(filters, lengths) == pytest.approx(filters[0] @ filters[1] / lengths.prod(), rel=1e-12)


@pytest.mark.parametrize(("filters", "spreads"), cases(8))
@pytest.mark.parametrize("scale", [(1e-12, 1.0), (3.0, 1e-6), (1e-30, 1e-30), (1e8, 1e-8)])
def test_rescaling_a_signal_with_its_filter_changes_nothing(
    filters: Array, spreads: Array, scale: tuple[float, float]
) -> None:
    factors = np.array(scale)
    want = library(filters, spreads)
    assert library(filters * factors[:, None], spreads * factors) == pytest.approx(want, rel=1e-9)
    assert library(filters * np.array([[1], [-1]]), spreads) == pytest.approx(-want, rel=1e-12)  # γ → −γ
    assert library(filters[::-1], spreads[::-1]) == pytest.approx(want, rel=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("length", [1e-6, 1.0, 300.0])
def test_parallel_filters_are_fully_correlated_without_a_division_by_zero(sign: int, length: float) -> None:
    rng = np.random.default_rng(2)
    for size in (1, 9, 4608):
        filters = np.outer([1.0, sign * length], rng.normal(size=size))
        assert library(filters, np.array([0.3, 5.0])) == pytest.approx(sign, abs=1e-9)


def test_it_reaches_its_limit_as_filters_become_parallel() -> None:
    first, away = np.array([1.0, 2, 3]), np.array([3.0, 0, -1])
    found = [
        library(np.stack([first, first + t * away]), np.array([0.5, 0.7])) for t in 10.0 ** -np.arange(9)
    ]
    assert (np.diff(found) >= 0).all()
    assert 1 - found[-1] < 1e-12


def test_what_does_not_move_has_no_correlation() -> None:
    for inner, square_i, square_j, spread_i, spread_j in (
        (2, 1, 4, 0, 5),  # parallel, but one is still
        (0.5, 1, 4, 0, 0),
        (0, 0, 4, 1, 5),  # no filter
        (0, 0, 0, 0, 0),
    ):
        assert warp(*number(inner, square_i, square_j, spread_i, spread_j)).item() == 0


def test_the_matrix_of_a_layer_is_its_pairs() -> None:
    rng = np.random.default_rng(3)
    filters, spreads = rng.normal(size=(6, 5)), np.exp(rng.normal(size=6))
    filters[3], filters[4] = 2 * filters[1], -filters[1]
    spreads[5] = 0
    found = warped_correlation(torch.from_numpy(filters @ filters.T), torch.from_numpy(spreads)).numpy()
    assert found == pytest.approx(found.T, abs=1e-15)
    assert np.diag(found).tolist() == [1, 1, 1, 1, 1, 0]
    want = [[library(filters[[i, j]], spreads[[i, j]]) for j in range(6)] for i in range(6)]
    assert found == pytest.approx(np.array(want), abs=1e-9)
    assert found[1, 3] == pytest.approx(1)
    assert found[1, 4] == pytest.approx(-1)
