"""Absorption paths against dense solves, and their invariances."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch

from hope.geometry.projection import RIDGE, compensation, ridged
from hope.methods import absorption_path
from hope.methods.absorb import MOST, taken
from hope.methods.absorption_path import LEFT, AbsorbPath, AbsorbState, LazyMatrices


def random_state(
    seed: int, n: int = 10, channels: int = 1, readers: int = 1, rank: int | None = None
) -> AbsorbState:
    generator = torch.Generator().manual_seed(seed)
    moments, outers = [], []
    for _ in range(readers):
        size = n * channels
        factor = torch.randn(size, rank or 3 * size, generator=generator, dtype=torch.float64)
        weight = torch.randn(size, 40, generator=generator, dtype=torch.float64)
        covariance = factor @ factor.T / factor.shape[1]
        outer = weight @ weight.T
        moments.append(ridged(covariance))
        outers.append(outer / (outer * covariance).sum())
    return AbsorbState("layer", n, 10, 0.6, moments, outers)


def loss(state: AbsorbState, gone: list[int], reader: int) -> float:
    """What removing neurons loses, by a dense solve on the original matrices."""
    c, h = state.moments[reader], state.outer[reader]
    p = len(c) // state.neurons
    out = torch.zeros(state.neurons, dtype=torch.bool)
    out[gone] = True
    places = out.repeat_interleave(p)
    keep, left = (~places).nonzero()[:, 0], places.nonzero()[:, 0]
    schur = c[left][:, left] - c[left][:, keep] @ torch.linalg.solve(c[keep][:, keep], c[keep][:, left])
    return float((schur * h[left][:, left]).sum())


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("readers", [1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_losses_along_a_path_are_those_of_dense_solves(seed: int, channels: int, readers: int) -> None:
    state = random_state(seed, channels=channels, readers=readers)
    path = AbsorbPath(state)
    gone: list[int] = []
    total = 0.0
    for move in path.steps():
        gone += move.removed
        total += move.cost
        left = [max(1 - loss(state, gone, k), LEFT) for k in range(readers)]
        assert total == pytest.approx(-state.share * sum(np.log(left)), rel=1e-6)
        assert move.left == pytest.approx(min(left), rel=1e-6)
    assert len(gone) == state.neurons - 1


@pytest.mark.parametrize("seed", range(4))
def test_each_step_is_the_cheapest(seed: int) -> None:
    state = random_state(seed, n=7)
    gone: list[int] = []
    for move in AbsorbPath(state).steps():
        others = [i for i in range(state.neurons) if i not in gone]
        losses = {i: loss(state, [*gone, i], 0) for i in others}
        assert losses[move.removed[0]] <= min(losses.values()) * (1 + 1e-9)
        gone += move.removed


def test_downdated_inverses_match_fresh_ones() -> None:
    state = random_state(1, n=60)
    path = AbsorbPath(state)
    for _ in range(50):
        path.step()
    alive = torch.tensor(path.alive)
    fresh = np.linalg.inv(state.moments[0][alive][:, alive].numpy())
    assert np.allclose(path._sides[0].inverse, fresh, rtol=1e-8, atol=1e-8 * np.abs(fresh).max())


@pytest.mark.parametrize("readers", [1, 2])
def test_removals_that_are_gathered_are_those_made_one_by_one(
    readers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = random_state(1, n=200, readers=readers)
    plain = list(AbsorbPath(state).steps())
    monkeypatch.setattr(absorption_path, "WIDE", 1)
    path = AbsorbPath(state)
    found = [path.step() for _ in range(90)]  # one round of 64, and some that wait
    assert path._sides[0]._waiting == 26
    fresh = torch.linalg.inv(state.moments[0][path.alive][:, path.alive])
    assert torch.allclose(path._sides[0].inverse, fresh, rtol=1e-8)
    found += path.steps()
    assert [step.removed for step in found] == [step.removed for step in plain]
    assert [step.cost for step in found] == pytest.approx([step.cost for step in plain], rel=1e-9)


def test_a_layer_whose_matrices_are_made_late_goes_the_same_way() -> None:
    state = random_state(2)
    late = replace(
        state, moments=LazyMatrices([lambda: state.moments[0]]), outer=LazyMatrices([lambda: state.outer[0]])
    )
    for one in (late, pickle.loads(pickle.dumps(late))):
        assert list(AbsorbPath(one).steps()) == list(AbsorbPath(state).steps())


def test_one_by_one_equals_all_at_once() -> None:
    covariance = random_state(2, n=9).moments[0]
    weight = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    keep, step = torch.arange(9), weight.clone()
    for gone in (4, 0, 7):
        rest = keep[keep != gone]
        step[rest] += compensation(covariance, rest, torch.tensor([gone])) @ step[[gone]]
        keep = rest
    removed = torch.tensor([0, 4, 7])
    at_once = weight[keep] + compensation(covariance, keep, removed) @ weight[removed]
    assert torch.allclose(step[keep], at_once, rtol=1e-10)


def test_twins_constants_and_the_dead_go_first_and_cost_nothing() -> None:
    generator = torch.Generator().manual_seed(3)
    factor = torch.randn(8, 30, generator=generator, dtype=torch.float64)
    factor[5] = factor[2]  # a twin
    factor[7] = 0  # a constant
    factor[6] = 0.5 * factor[0] - 2 * factor[1]  # a combination
    weight = torch.randn(8, 5, generator=generator, dtype=torch.float64)
    covariance = factor @ factor.T / 30
    outer = weight @ weight.T / float((weight @ weight.T * covariance).sum())
    moves = list(AbsorbPath(AbsorbState("x", 8, 1, 1.0, [ridged(covariance)], [outer])).steps())
    first = {move.removed[0] for move in moves[:3]}
    assert 7 in first
    assert first & {2, 5}
    assert first & {0, 1, 6}
    assert all(move.cost < 5 * RIDGE for move in moves[:3])
    assert moves[3].cost > 1e-2


@pytest.mark.parametrize("kind", ["rank one", "zero", "indefinite", "near twins"])
def test_ill_conditioned_covariances_stay_finite(kind: str) -> None:
    n = 12
    generator = torch.Generator().manual_seed(4)
    v = torch.randn(n, 1, generator=generator, dtype=torch.float64)
    covariance = {
        "rank one": v @ v.T,
        "zero": torch.zeros(n, n, dtype=torch.float64),
        "indefinite": v @ v.T - 0.3 * torch.eye(n, dtype=torch.float64),
        "near twins": torch.ones(n, n, dtype=torch.float64)
        + 1e-13 * torch.randn(n, n, generator=generator, dtype=torch.float64),
    }[kind]
    state = AbsorbState("x", n, 1, 1.0, [ridged(covariance)], [torch.eye(n, dtype=torch.float64) / n])
    moves = list(AbsorbPath(state).steps())
    assert len({move.removed[0] for move in moves}) == n - 1
    assert all(np.isfinite([move.cost, move.left]).all() for move in moves)
    shares = compensation(state.moments[0], torch.arange(6), torch.arange(6, n))
    assert torch.isfinite(shares).all()
    assert shares.abs().max() < 1 / RIDGE


def test_permuting_neurons_permutes_the_path() -> None:
    state = random_state(5, n=9)
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    other = AbsorbState(
        "layer",
        9,
        10,
        0.6,
        [c[order][:, order] for c in state.moments],
        [h[order][:, order] for h in state.outer],
    )
    moves, moved = list(AbsorbPath(state).steps()), list(AbsorbPath(other).steps())
    assert [int(order[m.removed[0]]) for m in moved] == [m.removed[0] for m in moves]


def test_batches_are_kept_until_they_hold_enough_inputs() -> None:
    """A batch counts by its longest tensor, whatever else is in it."""

    def batch(inputs: int) -> dict[str, object]:
        return {"x": torch.zeros(inputs, 2), "mask": torch.zeros(1), "scale": torch.tensor(0.5), "layers": 7}

    given = [batch(MOST - 1), batch(1), batch(1)]
    rest = iter(given)
    assert taken(rest, MOST) == given[:2]
    assert list(rest) == given[2:]
