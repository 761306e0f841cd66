"""One layer's path: its whole sequence of prunes and merges, down to a single neuron, independent of every
other layer.

A path need not look at all pairs at each step. For the paper's merge, D_min² = a − b²/2 does not depend on
the live capacity and J_merge ≥ N·D_min/E; for the sum, J ≥ N·D_sum/E. A row's smallest distance is therefore
a valid lower bound for all its pairs, and stays one when neurons leave. Rows are looked at in the order of
their bounds until the next bound exceeds the best cost found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from hope.methods import costs
from hope.methods.parent import Recipe, Side, alignments, overlaps, parents, recipe
from hope.methods.state import LayerState
from hope.signals import gaussian as moments

Array = NDArray[np.float64]
TIE = 1e-12
TILE = 1 << 15  # pairs whose geometry is worked out at a time


@contextmanager
def _one_thread() -> Iterator[None]:
    """Tiles fit a core's cache; handing them to several threads costs more than it brings."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Move(NamedTuple):
    """One step of a layer's path.

    Attributes:
        cost: J.
        neuron: who goes (a prune), or whose place the parent takes (a merge).
        other: who goes in a merge, -1 in a prune.
        neurons, capacity: N and E of the layer afterwards.
        recipe: how the parent of a merge is made.
    """

    cost: float
    neuron: int
    other: int
    neurons: int
    capacity: float
    recipe: Recipe | None


class LayerPath:
    """A layer on its way down. `step()` does the cheapest thing and says what it was."""

    def __init__(self, state: LayerState, *, merge: str | None, kernel: str) -> None:
        self.state = state
        self.merge = merge if state.mergeable else None
        self.kernel = "exact" if merge == "sum" else kernel
        self.capacities: Array = state.capacities.numpy().copy()
        self.alive = np.ones(len(self.capacities), dtype=bool)
        self.count = len(self.capacities)
        self._keyed = self.capacities.copy()  # infinite once gone
        if self.merge is not None:
            self._owned = False
            self._pairs()

    @property
    def total(self) -> float:
        """E, the layer's capacity."""
        return float(self.capacities[self.alive].sum())

    @property
    def capacity(self) -> float:
        """The same, by the name that every path has for it."""
        return self.total

    # ---- pair geometry ---------------------------------------------------------------------------

    def _pairs(self) -> None:
        """Alignment b and distance D of all pairs, in tiles of rows."""
        n = self.count
        self.alignment: Array = np.zeros((n, n))
        self.distance: Array = np.full((n, n), np.inf)
        rows = max(1, TILE // n)
        with _one_thread():
            for start in range(0, n, rows):
                block = slice(start, min(start + rows, n))
                columns = slice(start, n)  # pairs are undirected
                alignment, distance = self._geometry(block, columns)
                self.alignment[block, columns], self.distance[block, columns] = alignment, distance
                self.alignment[columns, block], self.distance[columns, block] = alignment.T, distance.T
        np.fill_diagonal(self.distance, np.inf)
        self._bounds = self.distance.min(axis=1) if n > 1 else np.full(n, np.inf)

    def _geometry(self, rows: slice, columns: slice) -> tuple[Array, Array]:
        state = self.state
        i = Side(*(t[:, None] for t in state.side(rows)))
        j = Side(*(t[None, :] for t in state.side(columns)))
        inner, outer = state.inner[rows, columns], state.outer[rows, columns]
        alignment = alignments(i, j, inner, outer, kernel=self.kernel).numpy()
        squares = self._squares(rows, columns)
        if self.merge == "sum":
            below = squares + 2 * overlaps(i, j, inner, outer).numpy() - alignment**2
        else:
            below = squares - alignment**2 / 2
        # what rounding leaves of a lossless merge is lossless
        distance = np.sqrt(np.where(below > 1e-12 * squares, below, 0))
        distance[alignment <= 0] = np.inf
        return alignment, distance

    def _squares(self, rows: slice, columns: slice) -> Array:
        square = self.capacities**2
        sums: Array = square[rows, None] + square[None, columns]
        return sums

    def _row(self, i: int) -> Array:
        """J of merging neuron i with each other neuron."""
        rest = costs.remaining(self._total, self.capacities[i], self.capacities)
        if self.merge == "sum":
            cost = costs.merge_sum(self.count, self.distance[i], self.alignment[i], rest)
        else:
            squares = self.capacities[i] ** 2 + self.capacities**2
            cost = self.count * self.distance[i] / np.sqrt(rest**2 + self.alignment[i] * rest + squares / 2)
        cost[~self.alive] = np.inf
        cost[i] = np.inf
        return cost

    # ---- the walk --------------------------------------------------------------------------------

    def moves(self) -> Iterator[Move]:
        """All moves down to one neuron."""
        while self.count > 1:
            yield self.step()

    def step(self) -> Move:
        """Do the cheapest move: a prune before a merge of the same cost, then the lowest numbers."""
        self._total = self.total
        pruned = int(np.argmin(self._keyed))
        least = self._keyed[pruned]
        ties = np.flatnonzero(self._keyed <= least * (1 + TIE))
        pruned = int(ties[0])
        cost = costs.prune(self.count, self._total, float(self.capacities[pruned]))
        merge = self._best_merge(cost) if self.merge is not None else None
        if merge is None:
            return self._prune(pruned, cost)
        return self._merge(*merge)

    def follow(self, neuron: int, other: int) -> None:
        """Do what an earlier run has found to be the cheapest move, without looking for it."""
        self._total = self.total
        if other < 0:
            self._gone(neuron)
        else:
            self._merge(0.0, neuron, other)

    def _best_merge(self, limit: float) -> tuple[float, int, int] | None:
        """The cheapest merge, if it is cheaper than `limit`."""
        scale = self.count / self._total if self._total > 0 else math.inf
        best: tuple[float, int, int] | None = None
        bounds = self._bounds
        while True:
            row = int(np.argmin(bounds))
            ceiling = best[0] * (1 + TIE) if best is not None else limit * (1 - TIE)
            if not bounds[row] * scale <= ceiling or (best is None and bounds[row] * scale >= limit):
                break
            cost = self._row(row)
            cheapest = float(cost.min())
            if cheapest < limit * (1 - TIE) and (best is None or cheapest <= best[0] * (1 + TIE)):
                columns = np.flatnonzero(cost <= cheapest * (1 + TIE))
                pair = min((min(row, int(c)), max(row, int(c))) for c in columns)
                if best is None or cheapest < best[0] * (1 - TIE) or pair < best[1:]:
                    best = (cheapest, *pair)
            if bounds is self._bounds:
                bounds = self._bounds.copy()
            alive = self.distance[row][self.alive]
            self._bounds[row] = alive.min() if len(alive) else np.inf
            bounds[row] = np.inf  # looked at
        return best

    def _prune(self, i: int, cost: float) -> Move:
        self._gone(i)
        return Move(cost, i, -1, self.count, self.total, None)

    def _gone(self, i: int) -> None:
        self.alive[i] = False
        self._keyed[i] = np.inf
        self.count -= 1
        if self.merge is not None:
            self._bounds[i] = np.inf

    def _merge(self, cost: float, i: int, j: int) -> Move:
        made, capacity = self._parent(i, j)
        self._gone(j)
        self._replace(i, j, made, capacity)
        return Move(cost, i, j, self.count, self.total, made)

    def _parent(self, i: int, j: int) -> tuple[Recipe, float]:
        """The winning pair's parent, made just in time, and its capacity."""
        state = self.state
        one, other = state.side(i), state.side(j)
        found = parents(one, other, state.inner[i, j], state.outer[i, j], kernel=self.kernel)
        b = float(found.alignment)
        if self.merge == "sum":
            scale = b
        else:
            a = np.asarray(self.capacities[i] ** 2 + self.capacities[j] ** 2)
            rest = costs.remaining(self._total, self.capacities[i], self.capacities[j])
            scale = float(costs.best_scale(a, np.asarray(b), rest))
        return recipe(found, one, other, scale), scale

    def _replace(self, i: int, j: int, made: Recipe, capacity: float) -> None:
        """Write the parent into row i of the state, and work out its pairs."""
        state = self.state
        if not self._owned:  # merges write; the caller's state stays as it was
            names = ("mean", "spread", "slope", "energy", "bias", "inner", "outer", "capacities")
            self.state = state = LayerState(
                state.name, release=state.release, **{name: getattr(state, name).clone() for name in names}
            )
            self._owned = True
        (c1, c2), (d1, d2) = made.rows, made.outs
        for gram, first, second in ((state.inner, c1, c2), (state.outer, d1, d2)):
            row = first * gram[i] + second * gram[j]
            corner = first * row[i] + second * row[j]
            gram[i], gram[:, i] = row, row
            gram[i, i] = corner
        state.mean[i] = c1 * state.mean[i] + c2 * state.mean[j]
        state.bias[i] = c1 * state.bias[i] + c2 * state.bias[j]
        state.spread[i] = made.spread
        state.energy[i] = moments.energy(state.mean[i], state.spread[i], state.slope[i])
        self.capacities[i] = self._keyed[i] = capacity
        alignment, distance = self._geometry(slice(i, i + 1), slice(0, len(self.capacities)))
        distance[0, i] = np.inf
        self.alignment[i], self.alignment[:, i] = alignment[0], alignment[0]
        self.distance[i], self.distance[:, i] = distance[0], distance[0]
        np.minimum(self._bounds, distance[0], out=self._bounds, where=self.alive)
        alive = distance[0][self.alive]
        self._bounds[i] = alive.min() if len(alive) else np.inf


def layer_path(state: LayerState, *, merge: str | None, kernel: str) -> LayerPath:
    """A layer's path, for the loop."""
    return LayerPath(state, merge=merge, kernel=kernel)
