"""The costs against the continuous formulation that they come from: neurons as explicit vectors of a Hilbert
space, transition costs by integrating along paths.

The space is L₂ of a finite sample of inputs: a neuron's function is the vector of its values there, so every
norm, inner product and distance below is exact.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import integrate

from hope.geometry import costs
from hope.methods.pairs import PairPath
from tests.geometry.explicit import Layer, Pair, pair_cost, random_layer

Array = NDArray[np.float64]
SAMPLE = 400


def functions(layer: Layer, seed: int = 0) -> Array:
    """(N, sample·c): f_k(x) = Ψ(w̃_k·x̃)·o_k over a sample of inputs, as vectors."""
    inputs = np.random.default_rng(seed).normal(size=(SAMPLE, layer.rows.shape[1]))
    inputs[:, -1] = 1
    signals = inputs @ layer.rows.T
    signals = np.where(signals > 0, signals, layer.slope * signals)
    return np.einsum("qk,kc->kqc", signals, layer.outs).reshape(len(layer), -1) / math.sqrt(SAMPLE)


def capacity(state: Array) -> float:
    """E(Φ) = Σ‖f_k‖."""
    return float(np.linalg.norm(state, axis=1).sum())


def along(start: Array, end: Array, t: float) -> Array:
    return (1 - t) * start + t * end


def projection_cost(start: Array, end: Array) -> float:
    """J_proj = ∫ c·ṡ/E dt along the straight path, c = N."""
    speed = float(np.linalg.norm(end - start))
    return integrate.quad(lambda t: len(start) * speed / capacity(along(start, end, t)), 0, 1)[0]


def capacity_cost(start: Array, end: Array) -> float:
    """J_capacity = ∫ −c·Ė/E dt along the straight path, with a numerical Ė."""

    def rate(t: float, h: float = 1e-6) -> float:
        ahead, behind = (capacity(along(start, end, t + d)) for d in (h, -h))
        return -len(start) * (ahead - behind) / (2 * h) / capacity(along(start, end, t))

    return integrate.quad(rate, 2e-6, 1 - 2e-6)[0]


def capacity_price(neurons: int, before: float, after: float) -> float:
    """N·ln(E_a/E_b): J_capacity in closed form while the number of neurons stays."""
    return neurons * math.log(before / after)


def bound(neurons: int, distance: float, after: float) -> float:
    """N·‖Φ_a − Φ_b‖/E(Φ_b): the theorem's bound of a transition's cost."""
    return neurons * distance / after


def pruned(state: Array, k: int) -> Array:
    end = state.copy()
    end[k] = 0
    return end


class Merged:
    """The straight path to [f_p, f_p], with the paper's parent of a pair in this space."""

    def __init__(self, layer: Layer, state: Array, i: int, j: int) -> None:
        parent = Pair(layer, i, j, "exact").parent()
        assert parent is not None
        one = Layer(
            parent.u[None], parent.v[None], *(part[[i]] for part in (layer.mean, layer.spread, layer.slope))
        )
        psi = functions(one)[0]
        if psi @ (state[i] + state[j]) < 0:
            psi = -psi
        psi /= np.linalg.norm(psi)
        sizes = np.linalg.norm(state[[i, j]], axis=1)
        self.a, self.b = float(sizes @ sizes), float(psi @ (state[i] + state[j]))
        self.rest = capacity(state) - float(sizes.sum())
        self.scale = float(costs.best_scale(*map(np.asarray, (self.a, self.b, self.rest))))
        self.end = state.copy()
        self.end[[i, j]] = self.scale * psi
        self.after = self.rest + self.scale  # E(Φ_b), with one neuron less
        self.cost = pair_cost(len(state), self.a, self.b, self.rest)


# ---- Theorem "Discrete Transition Cost Bound" -----------------------------------------------------------


@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_prune_cost_bounds_the_integral_along_its_path(slope: float) -> None:
    layer = random_layer(0, 8, slope=slope)
    state = functions(layer)
    sizes = np.linalg.norm(state, axis=1)
    for k in range(8):
        cost = costs.prune(8, float(sizes.sum()), float(sizes[k]))
        assert cost == pytest.approx(bound(8, sizes[k], sizes.sum() - sizes[k]), rel=1e-12)
        assert projection_cost(state, pruned(state, k)) <= cost


def test_along_a_prune_distance_and_capacity_are_one_and_the_same() -> None:
    """ṡ = −Ė there: J_proj = J_capacity = N·ln(E_a/E_b)."""
    state = functions(random_layer(1, 6))
    before = capacity(state)
    for k in range(6):
        end = pruned(state, k)
        closed = capacity_price(6, before, capacity(end))
        assert projection_cost(state, end) == pytest.approx(closed, rel=1e-9)
        assert capacity_cost(state, end) == pytest.approx(closed, rel=1e-4)


@pytest.mark.parametrize("noise", [0.01, 0.1, 0.2])
def test_merge_cost_of_a_correlated_pair_bounds_the_integral_along_its_path(noise: float) -> None:
    for seed in range(8):
        layer = random_layer(seed, 6, clusters=2, noise=noise)
        state = functions(layer)
        cosines = state @ state.T / np.outer(*[np.linalg.norm(state, axis=1)] * 2)
        i, j = np.unravel_index(np.argmax(np.triu(cosines, 1)), cosines.shape)
        merged = Merged(layer, state, int(i), int(j))
        path = [capacity(along(state, merged.end, t)) for t in np.linspace(0, 1, 101)]
        assert min(path) >= merged.after  # Lemma "Capacity Bound for Correlated Projections"
        distance = float(np.linalg.norm(merged.end - state))
        assert merged.cost == pytest.approx(bound(6, distance, merged.after), rel=1e-9)
        assert projection_cost(state, merged.end) <= merged.cost


def test_the_bound_needs_the_correlation() -> None:
    """Two neurons that nearly cancel: E dips below E(Φ_b) on the way, and the theorem does not hold."""
    layer = random_layer(2, 2)
    layer.rows[1], layer.mean[1], layer.spread[1] = layer.rows[0], layer.mean[0], layer.spread[0]
    layer.outs[1] = -0.9 * layer.outs[0]
    state = functions(layer)
    merged = Merged(layer, state, 0, 1)
    assert capacity(state) < merged.after
    assert projection_cost(state, merged.end) > merged.cost


def test_the_error_is_local() -> None:
    """Corollary "Locality of the Projection Error": the others count through their capacity alone."""
    layer = random_layer(3, 7, clusters=2, noise=0.1)
    state = functions(layer)
    merged = Merged(layer, state, 0, 1)
    moved = np.linalg.norm(merged.end - state, axis=1)
    assert np.flatnonzero(moved).tolist() == [0, 1]
    assert merged.cost == pytest.approx(7 * math.hypot(*moved[:2]) / merged.after, rel=1e-9)


# ---- axioms --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("factor", [1e-5, 1e5])
@pytest.mark.parametrize(("merge", "kernel"), [(None, "exact"), ("pair", "zero-bias"), ("sum", "exact")])
def test_magnitude_neutrality_holds_for_whole_paths(factor: float, merge: str | None, kernel: str) -> None:
    """Axiom 1: J(kΦ_a, kΦ_b) = J(Φ_a, Φ_b); a path is that of the scaled layer."""
    layer = random_layer(4, 9, clusters=4, noise=0.2)
    grown = layer.take(list(range(9)))
    grown.outs *= factor
    one, other = (list(PairPath(x.state(), merge=merge, kernel=kernel).steps()) for x in (layer, grown))
    assert [m.neurons for m in one] == [m.neurons for m in other]
    assert [m.cost for m in one] == pytest.approx([m.cost for m in other], rel=1e-6)
    assert [factor * m.left for m in one] == pytest.approx([m.left for m in other], rel=1e-9)


def test_every_cost_is_scale_free() -> None:
    for k in (1e-6, 3.0, 1e6):
        assert costs.prune(5, 10 * k, 2 * k) == pytest.approx(costs.prune(5, 10, 2), rel=1e-12)
        assert capacity_price(5, 10 * k, 8 * k) == pytest.approx(capacity_price(5, 10, 8), rel=1e-12)
        assert bound(5, 2 * k, 8 * k) == pytest.approx(bound(5, 2, 8), rel=1e-12)
        assert pair_cost(5, 5 * k**2, 2.5 * k, 3 * k) == pytest.approx(pair_cost(5, 5, 2.5, 3))
        assert costs.evict([3, 4], [2 * k, 5 * k], [7 * k] * 2) == pytest.approx(
            costs.evict([3, 4], [2, 5], [7, 7])
        )


def test_connectivity_is_preserved() -> None:
    """Axiom 2: J → ∞ as E(Φ_b) → 0, and the last neuron is never worth removing."""
    left = 10.0 ** -np.arange(0, 13, 3)
    for cost in (
        [costs.prune(2, 1 + e, 1.0) for e in left],
        [capacity_price(2, 1 + e, e) for e in left],
        [bound(2, 1.0, e) for e in left],
    ):
        assert (np.diff(cost) > 0).all()
        assert cost[-1] > 50
    assert costs.prune(1, 1.0, 1.0) == math.inf
    assert costs.prune(2, 1.0, 1.0) == math.inf
    assert costs.prune(2, 1.0, 0.0) == 0
    assert costs.prune(2, 0.0, 0.0) == 0  # a dead layer may be emptied, but for one


def test_a_whole_layer_cannot_be_merged_away_for_nothing() -> None:
    """Two unrelated neurons alone: E_rem = 0, and s* = a/b."""
    a, b = np.asarray(2.0), np.asarray(0.8)
    rest = costs.remaining(2.0, np.asarray(1.0), np.asarray(1.0))
    assert float(rest) == costs.LEAST
    assert costs.best_scale(a, b, rest) == pytest.approx(float(a / b), rel=1e-9)
    assert pair_cost(2, float(a), float(b), float(rest)) == pytest.approx(
        2 * math.sqrt((2 - 0.32) / 1), rel=1e-9
    )


def test_capacity_cost_is_additive_along_a_path() -> None:
    """Axiom 3, while the number of neurons stays."""
    whole = capacity_price(6, 9.0, 2.0)
    assert capacity_price(6, 9.0, 5.0) + capacity_price(6, 5.0, 2.0) == pytest.approx(whole, rel=1e-12)
    assert capacity_price(6, 9.0, 9.0) == 0


@pytest.mark.parametrize("parts", [2, 5])
def test_layer_capacity_does_not_depend_on_how_a_neuron_is_partitioned(parts: int) -> None:
    """Lemma "Uniqueness of the L₁ Capacity": f into f/M, M times, by its outgoing weights; no other norm of
    the capacities does that.
    """
    layer = random_layer(5, 4)
    split = layer.take([0, 1, 2, *[3] * parts])
    split.outs[3:] /= parts
    whole, pieces = (x.state().capacities.numpy() for x in (layer, split))
    assert pieces.sum() == pytest.approx(whole.sum(), rel=1e-12)
    assert capacity(functions(split)) == pytest.approx(capacity(functions(layer)), rel=1e-12)
    for p in (0.5, 2.0):
        assert (pieces**p).sum() ** (1 / p) != pytest.approx((whole**p).sum() ** (1 / p), rel=1e-3)


# ---- eviction ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("active", [1e-3, 0.7, 40.0])
def test_eviction_cost_bounds_the_integral_to_extinction(active: float) -> None:
    """∫₀^E N·dE/(E + E_identity) = N·ln(1 + E/E_identity) ≤ J_evict: finite, for the skip survives."""
    identity, neurons = 3.0, 12
    integral = integrate.quad(lambda e: neurons / (e + identity), 0, active)[0]
    cost = costs.evict([neurons], [active], [identity])
    assert integral == pytest.approx(neurons * math.log1p(active / identity), rel=1e-9)
    assert integral <= cost == pytest.approx(neurons * active / identity, rel=1e-12)
    assert cost <= integral * (1 + active / identity)


def test_eviction_adds_up_over_layers_and_falls_as_they_empty() -> None:
    assert costs.evict([64, 32], [5.0, 3.0], [10.0, 10.0]) == pytest.approx((64 * 5 + 32 * 3) / 10)
    assert costs.evict([8], [2.0], [4.0]) == 4.0  # without a skip: E_init, half of which is left
    assert costs.evict([8], [4.0], [4.0]) == 8.0
    prices = [costs.evict([n], [0.5 * n], [6.0]) for n in range(12, 0, -1)]
    assert (np.diff(prices) < 0).all()
    assert costs.evict([8], [4.0], [0.0]) == math.inf


def test_identity_capacity_is_the_rms_energy_of_what_the_skip_carries() -> None:
    scale, shift = np.array([3.0, -0.5, 0.0]), np.array([4.0, 0.2, -1.0])
    signal = shift + scale * np.random.default_rng(0).normal(size=(200_000, 3))
    rms = np.sqrt((signal**2).mean(axis=0)).sum()
    assert costs.identity_capacity(scale, shift) == pytest.approx(rms, rel=5e-3)
