"""Closed forms against quadrature: one test case, every kernel supplies itself and a reference."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy import integrate, optimize, stats
from torch import Tensor

from hope.geometry import costs, kernels
from hope.geometry.parent import Side, alignments, parents, recipe
from hope.surrogate import moments
from hope.surrogate.pairwise import warp

SLOPES = (0.0, 0.01, 0.25, 1.0, -0.5)


def tensor(*values: float) -> list[Tensor]:
    return [torch.tensor(value, dtype=torch.float64) for value in values]


def psi(y: float, slope: float) -> float:
    return y if y > 0 else slope * y


class SelfKernelCase:
    """E h(Ψ(y)) for y ~ N(mean, spread²)."""

    power: int

    def closed(self, mean: float, spread: float, slope: float) -> float:
        raise AssertionError("every case supplies its own")

    @pytest.mark.parametrize("slope", SLOPES)
    @pytest.mark.parametrize("ratio", [-5.0, -2.0, -0.3, 0.0, 0.7, 5.0])
    def test_equals_quadrature(self, ratio: float, slope: float) -> None:
        spread = 1.7
        mean = ratio * spread

        def integrand(z: float) -> float:
            return psi(mean + spread * z, slope) ** self.power * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)

        pieces = [
            integrate.quad(integrand, a, b, epsabs=0, epsrel=1e-12)[0]
            for a, b in ((-12, -ratio), (-ratio, 12))
        ]
        assert self.closed(mean, spread, slope) == pytest.approx(sum(pieces), rel=1e-9, abs=1e-30)

    @pytest.mark.parametrize("slope", SLOPES)
    @pytest.mark.parametrize("mean", [-2.0, 0.0, 3.0])
    def test_a_signal_that_does_not_move_is_a_constant(self, mean: float, slope: float) -> None:
        assert self.closed(mean, 0.0, slope) == pytest.approx(psi(mean, slope) ** self.power)


class TestMean(SelfKernelCase):
    power = 1

    def closed(self, mean: float, spread: float, slope: float) -> float:
        return float(moments.mean(*tensor(mean, spread, slope)))


class TestEnergy(SelfKernelCase):
    power = 2

    def closed(self, mean: float, spread: float, slope: float) -> float:
        return float(moments.energy(*tensor(mean, spread, slope)))


def test_energy_of_any_activation_agrees_with_the_closed_form() -> None:
    mean, spread = torch.linspace(-3, 3, 7, dtype=torch.float64), torch.full((7,), 0.8, dtype=torch.float64)
    found = moments.energy_of(torch.nn.functional.leaky_relu, mean, spread)
    assert found.numpy() == pytest.approx(
        moments.energy(mean, spread, torch.full_like(mean, 0.01)).numpy(), rel=2e-3
    )


def inner_reference(c_i: float, c_j: float, rho: float, slope_i: float, slope_j: float) -> float:
    """E[Ψ(z + c_i)Ψ(z' + c_j)] by integrating the conditional mean, in pieces around its kink."""
    width = math.sqrt(max(1 - rho * rho, 0.0))

    def conditional(z: float) -> float:
        m = rho * z + c_j
        if width < 1e-9:
            return psi(m, slope_j)
        t = m / width
        ramp = width * (t * stats.norm.cdf(t) + stats.norm.pdf(t))
        return slope_j * m + (1 - slope_j) * ramp

    def integrand(z: float) -> float:
        return psi(z + c_i, slope_i) * conditional(z) * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)

    kink = -c_j / rho if rho else 0.0
    cuts = sorted(
        {-13.0, 13.0, *(p for p in (-c_i, kink, kink - 6 * width, kink + 6 * width) if -13 < p < 13)}
    )
    return sum(
        integrate.quad(integrand, a, b, epsabs=1e-16, epsrel=1e-12, limit=200)[0] for a, b in pairwise(cuts)
    )


RHOS = (-1.0, -0.9999, -0.6, 0.0, 0.3, 0.95, 0.999999, 1.0)


@pytest.mark.filterwarnings("ignore::scipy.integrate.IntegrationWarning")
@pytest.mark.parametrize("rho", RHOS)
@pytest.mark.parametrize(
    ("c_i", "c_j"), [(0, 0), (1.5, -1), (-5, -5), (-5, -4.9), (5, -5), (0.3, 0.31), (5, 5)]
)
def test_exact_kernel_equals_quadrature_relative_to_the_energies(c_i: float, c_j: float, rho: float) -> None:
    for slopes in ((0.0, 0.0), (0.2, 0.2), (1.0, 0.3)):
        found = float(kernels.exact(*tensor(c_i, c_j, 1, 1, rho, *slopes)))
        scale = math.sqrt(
            math.prod(
                float(moments.energy(*tensor(c, 1, s))) for c, s in ((c_i, slopes[0]), (c_j, slopes[1]))
            )
        )
        assert abs(found - inner_reference(c_i, c_j, rho, *slopes)) <= 1e-9 * scale


def test_exact_kernel_equals_the_papers_truncated_moments() -> None:
    """Section "Exact Bivariate Cross-Kernel for Biased ReLUs", with a real bivariate normal CDF."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        c_i, c_j, rho = *rng.uniform(-2, 2, 2), rng.uniform(-0.95, 0.95)
        cdf = stats.multivariate_normal.cdf([c_i, c_j], cov=[[1, rho], [rho, 1]])
        pdf = stats.multivariate_normal.pdf([c_i, c_j], cov=[[1, rho], [rho, 1]])
        w = math.sqrt(1 - rho * rho)
        phi, big = stats.norm.pdf, stats.norm.cdf
        paper = (c_i * c_j + rho) * cdf + c_i * phi(c_j) * big((c_i - rho * c_j) / w)
        paper += c_j * phi(c_i) * big((c_j - rho * c_i) / w) + w * w * pdf
        assert float(kernels.ramp_product(*tensor(c_i, c_j, rho))) == pytest.approx(paper, abs=1e-6)


@pytest.mark.parametrize("slope", SLOPES)
def test_zero_bias_kernel_is_exact_without_means(slope: float) -> None:
    for rho in RHOS:
        exact = kernels.exact(*tensor(0, 0, 1, 1, rho, slope, slope))
        cosine = kernels.zero_bias_cosine(*tensor(rho, slope, slope))
        assert float(cosine) == pytest.approx(float(exact / moments.energy(*tensor(0, 1, slope))), abs=1e-12)
        both = kernels.zero_bias_cosines(*tensor(rho, slope))
        assert [float(v) for v in both] == pytest.approx(
            [float(kernels.zero_bias_cosine(*tensor(s * rho, slope, slope))) for s in (1, -1)], abs=1e-12
        )


def test_parallel_neurons_with_different_thresholds_are_not_identical() -> None:
    """The true cosine is .57; the zero-bias kernel would say 1."""
    k = float(kernels.exact(*tensor(1.5, -1, 1, 1, 1, 0, 0)))
    energies = [float(moments.energy(*tensor(m, 1, 0))) for m in (1.5, -1)]
    assert k / math.sqrt(math.prod(energies)) == pytest.approx(0.57, abs=0.01)


def test_warped_correlation_solves_the_minimum_divergence_problem() -> None:
    rng = np.random.default_rng(1)
    for _ in range(10):
        rows = rng.normal(size=(2, 4))
        spreads = rng.uniform(0.2, 3, 2)
        prior = rows @ rows.T

        def divergence(rho: float, prior: np.ndarray = prior, spreads: np.ndarray = spreads) -> float:
            c = np.array([[spreads[0] ** 2, rho * spreads.prod()], [rho * spreads.prod(), spreads[1] ** 2]])
            return float(np.trace(np.linalg.solve(prior, c)) - np.log(np.linalg.det(c)))

        best = optimize.minimize_scalar(
            divergence, bounds=(-0.999999, 0.999999), method="bounded", options={"xatol": 1e-10}
        ).x
        found = warp(*tensor(prior[0, 1], prior[0, 0], prior[1, 1], *spreads))
        assert float(found) == pytest.approx(best, abs=1e-5)


def test_warp_reaches_its_limits_without_dividing_by_zero() -> None:
    assert float(warp(*tensor(2, 1, 4, 0.3, 5))) == 1
    assert float(warp(*tensor(-2, 1, 4, 0.3, 5))) == -1
    assert float(warp(*tensor(2, 1, 4, 0.0, 5))) == 0
    assert float(warp(*tensor(0, 0, 4, 1, 5))) == 0


# ---- parents ----------------------------------------------------------------------------------


def pair(rng: np.random.Generator, close: float) -> tuple[np.ndarray, np.ndarray, Side, Side]:
    """Two neurons as explicit vectors (rows with biases, outgoing weights) and as sides."""
    rows, outs = rng.normal(size=(2, 5)), rng.normal(size=(2, 4))
    rows[1], outs[1] = rows[0] + close * rng.normal(size=5), outs[0] + close * rng.normal(size=4)
    mean, spread = rng.normal(size=2) * 0.3, rng.uniform(0.5, 1.5, 2)
    sides = []
    for k in range(2):
        energy = float(moments.energy(*tensor(mean[k], spread[k], 0)))
        sides.append(
            Side(*tensor(mean[k], spread[k], 0, energy, rows[k, -1], rows[k] @ rows[k], outs[k] @ outs[k]))
        )
    return rows, outs, sides[0], sides[1]


def found_parents(rows: np.ndarray, outs: np.ndarray, i: Side, j: Side, kernel: str):  # type: ignore[no-untyped-def]
    return parents(i, j, *tensor(rows[0] @ rows[1], outs[0] @ outs[1]), kernel=kernel)


@pytest.mark.parametrize("close", [0.1, 0.5, 2.0])
def test_direction_maximises_the_linearised_objective(close: float) -> None:
    rng = np.random.default_rng(2)
    for _ in range(20):
        rows, outs, i, j = pair(rng, close)
        z = [float(v) for v in found_parents(rows, outs, i, j, "zero-bias").rows]
        u = z[0] * rows[0] + z[1] * rows[1]
        a = np.outer(outs[0], rows[0]) + np.outer(outs[1], rows[1])
        assert np.linalg.norm(u) == pytest.approx(1)
        assert np.linalg.norm(a @ u) == pytest.approx(np.linalg.svd(a, compute_uv=False)[0], rel=1e-9)


def exact_objective(z: np.ndarray, i: Side, j: Side, outs: np.ndarray, rho: float) -> float:
    """‖Σ K(u, k)·o_k‖/√K(u, u) of any direction in the span."""
    mean = z[0] * float(i.mean) + z[1] * float(j.mean)
    s_i, s_j = float(i.spread), float(j.spread)
    toward = (z[0] * s_i**2 + z[1] * rho * s_i * s_j, z[0] * rho * s_i * s_j + z[1] * s_j**2)
    spread = math.sqrt(max(z[0] * toward[0] + z[1] * toward[1], 0))
    reach = [
        float(
            kernels.exact(
                *tensor(
                    mean,
                    float(side.mean),
                    spread,
                    float(side.spread),
                    t / (spread * float(side.spread)),
                    0,
                    0,
                )
            )
        )
        for side, t in ((i, toward[0]), (j, toward[1]))
    ]
    return float(
        np.linalg.norm(reach[0] * outs[0] + reach[1] * outs[1])
        / math.sqrt(float(moments.energy(*tensor(mean, spread, 0))))
    )


def test_first_order_direction_is_within_three_percent_of_the_exact_maximum() -> None:
    """û maximises ‖Au‖; the exact objective can be a little higher elsewhere in the span."""
    rng = np.random.default_rng(3)
    gaps = []
    for _ in range(12):
        rows, outs, i, j = pair(rng, 0.3)
        found = found_parents(rows, outs, i, j, "exact")
        here = float(found.alignment)
        angles = np.linspace(0, 2 * np.pi, 181)
        best = max(
            exact_objective(np.array([math.cos(t), math.sin(t)]), i, j, outs, float(found.correlation))
            for t in angles
        )
        z = np.array([float(v) for v in found.rows])
        assert here == pytest.approx(exact_objective(z, i, j, outs, float(found.correlation)), rel=1e-9)
        gaps.append(best / here - 1)
    print(f"the exact objective is up to {max(gaps):.2%} higher elsewhere in the span")
    assert max(gaps) < 0.03


def test_whole_layer_alignments_equal_those_of_single_pairs() -> None:
    rng = np.random.default_rng(4)
    for close in (0.001, 0.3, 2.0):
        rows, outs, i, j = pair(rng, close)
        for kernel in ("zero-bias", "exact"):
            inner, outer = tensor(rows[0] @ rows[1], outs[0] @ outs[1])
            many = alignments(
                Side(*(t.reshape(1, 1) for t in i)),
                Side(*(t.reshape(1, 1) for t in j)),
                inner.reshape(1, 1),
                outer.reshape(1, 1),
                kernel=kernel,
            )
            assert float(many) == pytest.approx(
                float(found_parents(rows, outs, i, j, kernel).alignment), rel=1e-9
            )


def test_best_scale_and_cost_equal_a_line_search() -> None:
    rng = np.random.default_rng(5)
    for _ in range(30):
        e_i, e_j, rest = rng.uniform(0.1, 3, 3)
        a = e_i**2 + e_j**2
        b = rng.uniform(0.1, 1) * (e_i + e_j) / math.sqrt(2)

        def cost(s: float, a: float = a, b: float = b, rest: float = rest) -> float:
            return 7 * math.sqrt(2 * s * s - 2 * b * s + a) / (rest + s)

        search = optimize.minimize_scalar(
            cost, bounds=(1e-9, 100), method="bounded", options={"xatol": 1e-12}
        )
        found = costs.best_scale(*map(np.asarray, (a, b, rest)))
        assert cost(float(found)) <= search.fun * (1 + 1e-9)
        assert float(costs.merge_pair(7, *map(np.asarray, (a, b, rest)))) == pytest.approx(
            cost(float(found)), rel=1e-9
        )
        bound = 7 * math.sqrt(a - b * b / 2) / (rest + e_i + e_j)
        assert float(costs.merge_pair(7, *map(np.asarray, (a, b, rest)))) >= bound * (1 - 1e-12)


def test_recipe_keeps_the_frobenius_ratio_and_the_scale() -> None:
    rows, outs, i, j = pair(np.random.default_rng(6), 0.2)
    found = found_parents(rows, outs, i, j, "exact")
    made = recipe(found, i, j, 1.3)
    row = made.rows[0] * rows[0] + made.rows[1] * rows[1]
    out = made.outs[0] * outs[0] + made.outs[1] * outs[1]
    assert np.linalg.norm(row) / np.linalg.norm(out) == pytest.approx(
        np.linalg.norm(rows) / np.linalg.norm(outs), rel=1e-9
    )
    mean = made.rows[0] * float(i.mean) + made.rows[1] * float(j.mean)
    capacity = np.linalg.norm(out) * math.sqrt(float(moments.energy(*tensor(mean, made.spread, 0))))
    assert capacity == pytest.approx(1.3, rel=1e-9)


def test_opposite_twins_have_no_parent() -> None:
    rows = np.array([[1.0, 2.0, 0.5], [1.0, 2.0, 0.5]])
    outs = np.array([[1.0, -1.0], [-1.0, 1.0]])
    side = [Side(*tensor(0.2, 1, 0, 0.5, r[-1], r @ r, o @ o)) for r, o in zip(rows, outs, strict=True)]
    assert float(found_parents(rows, outs, *side, "exact").alignment) == pytest.approx(0, abs=1e-7)


# ---- the continuous formulation ----------------------------------------------------------------


def straight_cost(start: np.ndarray, end: np.ndarray) -> float:
    """J_proj along the straight path in H^N, c = N, by numerical integration."""
    speed = np.linalg.norm(end - start)
    neurons = len(start)

    def rate(t: float) -> float:
        return neurons * speed / np.linalg.norm(start + t * (end - start), axis=1).sum()

    return float(integrate.quad(rate, 0, 1)[0])


def test_discrete_cost_bounds_the_continuous_one() -> None:
    """Theorem "Discrete Transition Cost Bound", for prunes and for merges of correlated pairs."""
    rng = np.random.default_rng(7)
    for _ in range(20):
        layer = rng.normal(size=(6, 9))
        layer[1] = layer[0] + 0.1 * rng.normal(size=9)
        norms = np.linalg.norm(layer, axis=1)
        pruned = layer.copy()
        pruned[5] = 0
        cost = costs.prune(6, norms.sum(), norms[5])
        assert (
            straight_cost(layer, pruned) <= cost == pytest.approx(costs.bound(6, norms[5], norms[:5].sum()))
        )
        direction = (layer[0] + layer[1]) / np.linalg.norm(layer[0] + layer[1])
        a, b = norms[0] ** 2 + norms[1] ** 2, direction @ (layer[0] + layer[1])
        rest = norms[2:].sum()
        scale = float(costs.best_scale(*map(np.asarray, (a, b, rest))))
        merged = layer.copy()
        merged[:2] = scale * direction
        cost = float(costs.merge_pair(6, *map(np.asarray, (a, b, rest))))
        assert straight_cost(layer, merged) <= cost * (1 + 1e-9)
        assert cost == pytest.approx(costs.bound(6, np.linalg.norm(merged - layer), rest + scale), rel=1e-9)


def test_costs_are_scale_free_and_diverge_as_a_layer_dies() -> None:
    for k in (1e-6, 1.0, 1e6):
        assert costs.prune(5, 10 * k, 2 * k) == pytest.approx(costs.prune(5, 10, 2))
        assert costs.capacity_cost(5, 10 * k, 8 * k) == pytest.approx(costs.capacity_cost(5, 10, 8))
        assert costs.evict([3, 4], [2 * k, 5 * k], [7 * k, 7 * k]) == pytest.approx(
            costs.evict([3, 4], [2, 5], [7, 7])
        )
    assert costs.prune(2, 1.0, 1 - 1e-9) > 1e8
    assert costs.prune(1, 1.0, 1.0) == math.inf
    assert costs.capacity_cost(2, 1.0, 1e-12) > 50


def test_layer_capacity_does_not_depend_on_how_a_neuron_is_partitioned() -> None:
    layer = np.random.default_rng(8).normal(size=(3, 5))
    split = np.concatenate([layer[1:], np.repeat(layer[:1] / 4, 4, axis=0)])
    assert np.linalg.norm(split, axis=1).sum() == pytest.approx(np.linalg.norm(layer, axis=1).sum())


def test_eviction_costs_follow_the_paper() -> None:
    assert costs.evict([64, 32], [5.0, 3.0], [10.0, 10.0]) == pytest.approx((64 * 5 + 32 * 3) / 10)
    assert costs.evict([8], [2.0], [4.0]) == 4.0  # E_init form: half of the layer's capacity is left
    assert costs.identity_capacity(np.array([3.0, 0.0]), np.array([4.0, 1.0])) == 6.0
