"""A layer's path against a loop that looks at every prune and every pair at every step, with explicit vectors
and the formulas as the paper prints them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import hope
from hope.actions import Action, Merge
from hope.methods.pairs import PairPath, PaperState
from hope.methods.paper import paper_state
from hope.statistics.checkpoint import Checkpoint
from tests.geometry.explicit import FLOOR, Array, Layer, Pair, Parent, random_layer
from tests.support import randomise


class Wanted(NamedTuple):
    """A move, and the layer after it."""

    cost: float
    neurons: tuple[int, ...]
    count: int
    capacity: float
    alive: list[int]
    layer: Layer
    distortion: float


def best_scale(a: float, b: float, rest: float) -> float:
    return (a + b * rest) / (2 * rest + b)


def naive_path(layer: Layer, merge: str | None, kernel: str) -> Iterator[Wanted]:
    """All moves down to one neuron, everything from scratch at every one."""
    layer = layer.take(list(range(len(layer))))
    alive = list(range(len(layer)))
    while len(alive) > 1:
        size = layer.capacities()
        total = sum(size[k] for k in alive)
        n = len(alive)
        found: list[tuple[float, int, int, int, Parent | None, float, float]] = [
            (n * size[k] / (total - size[k]), 0, k, -1, None, 0.0, 0.0) for k in alive
        ]
        for at, i in enumerate(alive if merge else []):
            for j in alive[at + 1 :]:
                parent = Pair(layer, i, j, "exact" if merge == "sum" else kernel).parent()
                if parent is None:
                    continue
                a, b = size[i] ** 2 + size[j] ** 2, parent.b
                rest = max(total - size[i] - size[j], FLOOR)
                if merge == "sum":
                    scale = b
                    square = a + 2 * parent.overlap - 2 * scale * b + scale**2
                else:
                    scale = best_scale(a, b, rest)
                    square = a - 2 * scale * b + 2 * scale**2
                lost = math.sqrt(max(square, 0.0))
                found.append((n * lost / (rest + scale), 1, i, j, parent, scale, lost))
        cost, _, i, j, parent, scale, lost = min(found, key=lambda move: move[:4])
        alive.remove(i if parent is None else j)
        if parent is not None:
            write_parent(layer, i, j, parent, scale)
        size = layer.capacities()
        total = sum(size[k] for k in alive)
        yield Wanted(
            cost,
            (i,) if parent is None else (i, j),
            len(alive),
            total,
            list(alive),
            layer.take(list(range(len(layer)))),
            lost,
        )


def write_parent(layer: Layer, i: int, j: int, parent: Parent, scale: float) -> None:
    """The parent's effective parameters (paper, Sections "Input/Output Scaling" and "Raw Input…")."""
    ratio = np.linalg.norm(layer.rows[[i, j]]) / np.linalg.norm(layer.outs[[i, j]])
    into = math.sqrt(scale * ratio) * parent.energy**-0.25
    layer.rows[i] = into * parent.u
    layer.outs[i] = math.sqrt(scale / ratio) * parent.energy**-0.25 * parent.v
    layer.mean[i], layer.spread[i] = into * parent.mean, into * parent.spread


def walk(layer: Layer, merge: str | None, kernel: str) -> list[Action]:
    return list(PairPath(layer.state(), merge=merge, kernel=kernel).steps())


RUNS = [
    # neurons, clusters, noise, slope, merge, kernel
    (24, None, 0.0, 0.0, None, "exact"),
    (24, None, 0.0, 0.0, "pair", "zero-bias"),
    (24, None, 0.0, 0.0, "sum", "exact"),
    (14, 4, 0.1, 0.0, "pair", "zero-bias"),
    (14, 4, 0.1, 0.0, "pair", "exact"),
    (14, 4, 0.2, 0.0, "sum", "zero-bias"),  # the sum is always exact
    (12, 4, 0.3, 0.25, "pair", "zero-bias"),
    (12, 4, 0.3, 0.25, "pair", "exact"),
    (12, 4, 0.3, 0.25, "sum", "exact"),
    (10, 3, 0.2, -0.5, "pair", "exact"),
    (10, 3, 0.2, 1.0, "sum", "exact"),
]


@pytest.mark.parametrize(("neurons", "clusters", "noise", "slope", "merge", "kernel"), RUNS)
def test_path_is_that_of_a_naive_rescan(
    neurons: int, clusters: int | None, noise: float, slope: float, merge: str | None, kernel: str
) -> None:
    """The same moves at the same costs, and after each the layer that explicit vectors would be."""
    layer = random_layer(neurons, neurons, clusters=clusters, noise=noise, slope=slope)
    path = PairPath(layer.state(), merge=merge, kernel=kernel)
    merges = 0
    for wanted in naive_path(layer, merge, kernel):
        move = path.step()
        assert (move.neurons, path.neurons) == (wanted.neurons, wanted.count)
        assert move.cost == pytest.approx(wanted.cost, rel=1e-9)
        assert move.left == pytest.approx(wanted.capacity, rel=1e-9)
        assert np.flatnonzero(path.alive).tolist() == wanted.alive
        assert_same_state(path.state, path.capacities, wanted.layer, wanted.alive)
        merges += isinstance(move, Merge)
        if isinstance(move, Merge):
            assert move.distortion == pytest.approx(wanted.distortion, rel=1e-6)
    assert path.neurons == 1
    assert merges > 0 or merge is None


def assert_same_state(state: PaperState, capacities: Array, layer: Layer, alive: list[int]) -> None:
    """Up to the sign of linear neurons, which are their own mirror images."""
    want = layer.take(alive).state()
    assert capacities[alive] == pytest.approx(want.capacities.numpy(), rel=1e-9)
    sign = np.ones(len(alive))
    if (layer.slope == 1).all():
        sign = np.sign(state.mean.numpy()[alive] * want.mean.numpy())
    both = np.outer(sign, sign)
    for name in ("mean", "spread", "energy", "bias", "inner", "outer"):
        got, size = getattr(state, name).numpy(), 1.0
        if got.ndim == 2:
            got, size = got[np.ix_(alive, alive)] * both, np.abs(got).max()
        else:
            got = got[alive] * (sign if name in ("mean", "bias") else 1)
        assert got == pytest.approx(getattr(want, name).numpy(), rel=1e-7, abs=1e-9 * size), name


# ---- order ---------------------------------------------------------------------------------------------


def families(moves: list[Action], names: Array) -> list[tuple[str, frozenset[int]]]:
    """Moves in terms of the original neurons that each one stands for, whatever places they have."""
    members = {place: frozenset([int(name)]) for place, name in enumerate(names)}
    reported = []
    for move in moves:
        if isinstance(move, Merge):
            members[move.keep] = members[move.keep] | members.pop(move.drop)
            reported.append(("merge", members[move.keep]))
        else:
            reported.append(("prune", members.pop(*move.removed)))
    return reported


@pytest.mark.parametrize(("merge", "kernel"), [(None, "exact"), ("pair", "zero-bias"), ("sum", "exact")])
def test_permuting_neurons_permutes_the_path(merge: str | None, kernel: str) -> None:
    layer = random_layer(7, 16, clusters=5, noise=0.2)
    straight = walk(layer, merge, kernel)
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(layer))
        mixed = walk(layer.take(order), merge, kernel)
        assert families(mixed, order) == families(straight, np.arange(len(layer)))
        assert [m.cost for m in mixed] == pytest.approx([m.cost for m in straight], rel=1e-8)
        assert [m.left for m in mixed] == pytest.approx([m.left for m in straight], rel=1e-9)


@pytest.mark.parametrize("merge", [None, "pair", "sum"])
def test_dead_neurons_go_first_at_no_cost(merge: str | None) -> None:
    """Nobody reads it; it never fires; it is the constant 0. Ties go to the lowest number."""
    layer = random_layer(3, 9)
    layer.outs[6] = 0
    layer.mean[4] = -60 * layer.spread[4]
    layer.rows[1], layer.mean[1], layer.spread[1] = 0, 0, 0
    moves = walk(layer, merge, "zero-bias")
    assert [(m.neurons, m.cost) for m in moves[:3]] == [((1,), 0), ((4,), 0), ((6,), 0)]
    assert moves[3].cost > 0


@pytest.mark.parametrize("merge", ["pair", "sum"])
@pytest.mark.parametrize("scale", [1.0, 0.3])
@pytest.mark.parametrize("kernel", ["zero-bias", "exact"])
def test_planted_twins_go_first_at_no_cost(merge: str, scale: float, kernel: str) -> None:
    """Equal in and out for "pair"; equal in is enough for "sum". Dead neurons go before them: prunes come
    first. λ across a neuron does not hide a twin.
    """
    for seed in range(5):
        layer = random_layer(seed, 10)
        for one, other in ((2, 6), (3, 8)):
            layer.rows[other], layer.mean[other], layer.spread[other] = (
                scale * part[one] for part in (layer.rows, layer.mean, layer.spread)
            )
            if merge == "pair":
                layer.outs[other] = layer.outs[one] / scale
        layer.outs[9] = 0
        moves = walk(layer, merge, kernel)
        assert [m.neurons for m in moves[:3]] == [(9,), (2, 6), (3, 8)]
        assert [m.cost for m in moves[:3]] == [0, 0, 0]
        assert moves[3].cost > 1e-3


@pytest.mark.parametrize("merge", ["pair", "sum"])
@pytest.mark.parametrize("error", [0.0, 1e-15, 1e-12, 1e-9])
def test_opposite_twins_are_no_candidates_whatever_their_scale(merge: str, error: float) -> None:
    """A = 0 has no parent, and what rounding leaves of A = 0 is 0: the path is the same for all λ."""
    for seed in range(12):
        rng = np.random.default_rng(seed)
        reported = []
        for scale in (1.0, rng.uniform(0.3, 3)):
            layer = random_layer(seed, 6)
            layer.rows[5], layer.mean[5], layer.spread[5] = (
                scale * part[2] for part in (layer.rows, layer.mean, layer.spread)
            )
            layer.outs[5] = -layer.outs[2] / scale + error * rng.normal(size=7)
            moves = walk(layer, merge, "exact")
            assert all(np.isfinite([m.cost, m.left]).all() for m in moves)
            assert moves[0].neurons != (2, 5)
            reported.append([m.neurons for m in moves])
        assert reported[0] == reported[1] or error > 1e-15  # their sizes differ then, and with them the order


@pytest.mark.parametrize("merge", [None, "pair", "sum"])
def test_a_layer_that_says_nothing_goes_by_number_at_no_cost(merge: str | None) -> None:
    """E = 0: nothing is divided by it."""
    layer = random_layer(4, 5)
    layer.outs[:] = 0
    moves = walk(layer, merge, "zero-bias")
    assert [(m.kind, m.neurons, m.cost, m.left) for m in moves] == [("prune", (k,), 0, 0) for k in range(4)]


def test_equal_costs_go_by_number() -> None:
    layer = random_layer(0, 6).take([0] * 6)
    moves = walk(layer, None, "exact")
    assert [m.neurons for m in moves] == [(0,), (1,), (2,), (3,), (4,)]
    moves = walk(layer, "pair", "exact")
    assert [m.neurons for m in moves] == [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]


def test_the_state_that_was_given_is_not_changed() -> None:
    layer = random_layer(5, 10, clusters=3, noise=0.05)
    state = layer.state()
    before = {name: value.clone() for name, value in vars(state).items() if hasattr(value, "clone")}
    moves = list(PairPath(state, merge="sum", kernel="exact").steps())
    assert any(isinstance(move, Merge) for move in moves)
    assert all((before[name] == getattr(state, name)).all() for name in before)


# ---- against surgery -----------------------------------------------------------------------------------


@pytest.mark.parametrize("merge", ["pair", "sum"])
@pytest.mark.parametrize("activation", [nn.ReLU(), nn.LeakyReLU(0.2)], ids=str)
def test_capacities_along_the_path_are_those_of_the_smaller_networks(
    merge: str, activation: nn.Module
) -> None:
    """What surgery makes of real weights, read again, are the neurons that the path went on with."""
    net = nn.Sequential(nn.Linear(6, 9), nn.BatchNorm1d(9, eps=1e-3), activation, nn.Linear(9, 5))
    net = randomise(net.double(), seed=5).eval()
    with torch.no_grad():  # something to merge
        for tensor in (net[0].weight, net[0].bias, net[1].weight, net[1].bias, net[1].running_mean):
            tensor[5:] = tensor[:4] + 0.1 * torch.randn_like(tensor[:4])
        net[3].weight[:, 5:] = net[3].weight[:, :4] + 0.1 * torch.randn(5, 4, dtype=torch.float64)
    example = torch.zeros(3, 6, dtype=torch.float64)
    encoding = hope.encode(net, example, steps=7, method=hope.Paper(merge=merge, kernel="exact"))
    state = paper_state(encoding.anatomy.layers[0], Checkpoint.of(net, encoding.anatomy), 1)
    assert isinstance(state, PaperState)
    path = PairPath(state, merge=merge, kernel="exact")
    kinds = set()
    for step in range(1, 8):
        move = path.step()
        kinds.add(isinstance(move, Merge))
        found = hope.capacities(encoding.at(steps=step), example)["0"]
        assert found.numpy() == pytest.approx(path.capacities[path.alive], rel=1e-9)
        assert encoding.trajectory[step - 1].cost == pytest.approx(move.cost, rel=1e-12)
    assert kinds == {True, False} or merge == "sum"
