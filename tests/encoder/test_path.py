"""A layer's path against a loop that looks at every prune and every pair at every step, with explicit vectors
and the formulas as the paper prints them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch import nn

import hope
from hope.encoder.path import LayerPath, Move
from hope.encoder.state import LayerState
from hope.surrogate.signals import layer_state
from tests.geometry.explicit import FLOOR, Array, Layer, Pair, Parent, random_layer
from tests.support import randomise

MERGES = [(None, "zero-bias"), ("pair", "zero-bias"), ("pair", "exact"), ("sum", "zero-bias"), ("sum", "exact")]


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
