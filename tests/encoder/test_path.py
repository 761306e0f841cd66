"""A layer's path against a loop that looks at every prune and every pair at every step, with explicit vectors
and the formulas as the paper prints them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pytest

from hope.encoder.path import LayerPath, Move
from tests.geometry.explicit import FLOOR, Layer, Pair, Parent, random_layer

MERGES = [
    (None, "zero-bias"),
    ("pair", "zero-bias"),
    ("pair", "exact"),
    ("sum", "zero-bias"),
    ("sum", "exact"),
]


class Step(NamedTuple):
    cost: float
    neuron: int
    other: int
    neurons: int
    capacity: float


def best_scale(a: float, b: float, rest: float) -> float:
    return (a + b * rest) / (2 * rest + b)


def naive_path(layer: Layer, merge: str | None, kernel: str) -> Iterator[Step]:
    """All moves down to one neuron, everything from scratch at every one."""
    layer = layer.take(list(range(len(layer))))
    alive = list(range(len(layer)))
    while len(alive) > 1:
        size = layer.capacities()
        total = sum(size[k] for k in alive)
        n = len(alive)
        found: list[tuple[float, int, int, int, Parent | None, float]] = [
            (n * size[k] / (total - size[k]), 0, k, -1, None, 0.0) for k in alive
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
                cost = n * math.sqrt(max(square, 0.0)) / (rest + scale)
                found.append((cost, 1, i, j, parent, scale))
        cost, _, i, j, parent, scale = min(found, key=lambda move: move[:4])
        alive.remove(i if parent is None else j)
        if parent is not None:
            write_parent(layer, i, j, parent, scale)
        size = layer.capacities()
        yield Step(cost, i, j, len(alive), sum(size[k] for k in alive))


def write_parent(layer: Layer, i: int, j: int, parent: Parent, scale: float) -> None:
    """The parent's effective parameters (paper, Sections "Input/Output Scaling" and "Raw Input…")."""
    ratio = np.linalg.norm(layer.rows[[i, j]]) / np.linalg.norm(layer.outs[[i, j]])
    into = math.sqrt(scale * ratio) * parent.energy**-0.25
    layer.rows[i] = into * parent.u
    layer.outs[i] = math.sqrt(scale / ratio) * parent.energy**-0.25 * parent.v
    layer.mean[i], layer.spread[i] = into * parent.mean, into * parent.spread


def walk(layer: Layer, merge: str | None, kernel: str) -> list[Move]:
    return list(LayerPath(layer.state(), merge=merge, kernel=kernel).moves())


@pytest.mark.parametrize(("merge", "kernel"), MERGES)
@pytest.mark.parametrize("seed", range(4))
def test_bounded_path_equals_a_naive_rescan(seed: int, merge: str | None, kernel: str) -> None:
    layer = random_layer(seed, 9, clusters=3 if seed % 2 else None, noise=0.15)
    found, wanted = walk(layer, merge, kernel), list(naive_path(layer, merge, kernel))
    assert [(m.neuron, m.other, m.neurons) for m in found] == [(s.neuron, s.other, s.neurons) for s in wanted]
    assert [m.cost for m in found] == pytest.approx([s.cost for s in wanted], rel=1e-7, abs=1e-9)
    assert [m.capacity for m in found] == pytest.approx([s.capacity for s in wanted], rel=1e-7)
    if merge is not None and seed % 2:
        assert any(move.other >= 0 for move in found)


@pytest.mark.parametrize("merge", [None, "pair", "sum"])
def test_permuting_neurons_permutes_the_path(merge: str | None) -> None:
    layer = random_layer(7, 10, clusters=4, noise=0.2)
    order = np.random.default_rng(0).permutation(len(layer))
    straight, mixed = walk(layer, merge, "zero-bias"), walk(layer.take(order), merge, "zero-bias")
    assert [m.cost for m in mixed] == pytest.approx([m.cost for m in straight], rel=1e-9)
    if merge is None:
        assert [int(order[m.neuron]) for m in mixed] == [m.neuron for m in straight]


def test_a_dead_neuron_goes_first_at_no_cost() -> None:
    layer = random_layer(3, 8)
    layer.outs[5] = 0
    move = walk(layer, "pair", "zero-bias")[0]
    assert (move.neuron, move.other, move.cost) == (5, -1, 0)


@pytest.mark.parametrize("merge", ["pair", "sum"])
def test_planted_twins_are_the_first_action(merge: str) -> None:
    """For "pair" equal in and out; for "sum" equal in is enough."""
    layer = random_layer(4, 8)
    layer.rows[6], layer.mean[6], layer.spread[6] = layer.rows[2], layer.mean[2], layer.spread[2]
    if merge == "pair":
        layer.outs[6] = layer.outs[2]
    move = walk(layer, merge, "zero-bias")[0]
    assert (move.neuron, move.other) == (2, 6)
    assert move.cost == pytest.approx(0, abs=1e-6)


def test_the_state_that_was_given_is_not_changed() -> None:
    layer = random_layer(5, 10, clusters=3, noise=0.05)
    state = layer.state()
    before = {name: value.clone() for name, value in vars(state).items() if hasattr(value, "clone")}
    moves = list(LayerPath(state, merge="sum", kernel="exact").moves())
    assert any(move.other >= 0 for move in moves)
    assert all((before[name] == getattr(state, name)).all() for name in before)
