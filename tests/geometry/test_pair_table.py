"""The table of pairs: bounds hold, and a pair comes to the same whenever it is worked out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from hope.actions import Merge
from hope.geometry import gaussian, kernels
from hope.geometry.pair_table import BATCH, Layer, PairTable
from hope.methods.pairs import PairPath, PaperState
from tests.geometry.explicit import random_layer

LAYERS: dict[str, dict[str, Any]] = {
    "random": {"neurons": 40},
    "near": {"neurons": 24, "clusters": 4, "noise": 0.1},
    "twins": {"neurons": 12, "clusters": 3, "noise": 1e-7},
    "leaky": {"neurons": 24, "clusters": 5, "noise": 0.3, "slope": 0.25},
    "identity": {"neurons": 12, "clusters": 3, "noise": 0.3, "slope": 1.0},
}


def states() -> list[PaperState]:
    found = [random_layer(seed, **options).state() for seed, options in enumerate(LAYERS.values())]
    odd = random_layer(9, 20, clusters=4, noise=0.2)
    odd.spread[3] = 0.0  # does not move
    odd.mean[5] = -60 * odd.spread[5]  # next to never speaks
    odd.mean[6] = 1e14 * odd.spread[6]  # the series comes to nothing
    return [*found, odd.state()]


def table(state: PaperState, merge: str) -> PairTable:
    layer = Layer(state.side(slice(None)), state.inner, state.outer)
    return PairTable(layer, state.capacities.numpy().copy(), merge=merge, kernel="exact")


@pytest.mark.parametrize("merge", ["pair", "sum"])
def test_bounds_hold_and_say_something(merge: str) -> None:
    ratios = []
    for state in states():
        bounds, pairs = table(state, merge), table(state, merge)
        pairs.evaluate_below(np.inf)
        assert bounds.open.sum() == state.neurons * (state.neurons - 1)
        assert not pairs.open.any()
        off = ~np.eye(state.neurons, dtype=bool)
        assert (bounds.distance[off] <= pairs.distance[off]).all()
        assert (bounds.alignment[off] >= pairs.alignment[off]).all()
        there = off & (pairs.distance > 1e-3 * state.capacities.numpy().max()) & np.isfinite(pairs.distance)
        ratios.append(bounds.distance[there] / pairs.distance[there])
    assert np.median(np.concatenate(ratios)) > 0.8


def test_a_pair_comes_to_the_same_bits_whenever_and_with_whomever_it_is_worked_out() -> None:
    state = random_layer(0, 40, clusters=7, noise=0.3).state()
    together, apart = table(state, "sum"), table(state, "sum")
    together.evaluate_below(np.inf)
    rng = np.random.default_rng(0)
    while apart.open.any():
        i, j = np.nonzero(apart.open)
        some = rng.permutation(len(i))[: int(rng.integers(1, 3 * BATCH))]
        apart.evaluate(i[some], j[some])
    assert (apart.distance == together.distance).all()
    assert (apart.alignment == together.alignment).all()


def test_a_path_that_goes_on_from_a_prefix_is_the_same_to_the_bit() -> None:
    state = random_layer(1, 30, clusters=6, noise=0.3).state()
    whole = list(PairPath(state, merge="sum", kernel="exact").steps())
    path = PairPath(state, merge="sum", kernel="exact")
    for step in whole[:11]:
        path.follow(step)
    assert list(path.steps()) == whole[11:]
    assert any(isinstance(step, Merge) for step in whole[:11])


def test_a_walk_does_not_work_out_what_bounds_rule_out() -> None:
    state = random_layer(2, 48).state()
    for merge, share in (("pair", 0.05), ("sum", 0.8)):
        path = PairPath(state, merge=merge, kernel="exact")
        for _ in range(10):
            path.step()
        assert path._table.open.mean() > 1 - share


def test_both_signs_of_a_signal_are_worked_out_at_once() -> None:
    rng = torch.Generator().manual_seed(0)
    m_i, m_j, s_i, s_j, rho = torch.randn(5, 50, generator=rng, dtype=torch.float64)
    m_i[:3], m_j[3:6], s_i[6:9] = 0, 0, 0
    s_i, s_j, rho, slope = s_i.abs(), s_j.abs(), torch.tanh(rho), torch.full_like(rho, 0.2)
    for a in (slope, torch.zeros_like(slope)):
        plus, minus = kernels.exact_signs(m_i, m_j, s_i, s_j, rho, a, a)
        other, same = kernels.exact_signs(-m_i, m_j, s_i, s_j, -rho, a, a)
        assert torch.allclose(plus, same, rtol=1e-13, atol=0)
        assert torch.allclose(minus, other, rtol=1e-13, atol=0)
        assert torch.equal(gaussian.energies(m_i, s_i, a)[1], gaussian.energy(-m_i, s_i, a))
    assert torch.equal(gaussian.ramp_means(m_i)[1], gaussian.ramp_mean(-m_i))
