"""One layer under the paper's method: its whole sequence of prunes and merges, down to a single neuron,
independent of every other layer.

A path need not look at all pairs at each step. For the paper's merge, D_min² = a − b²/2 does not depend on
the live capacity and J_merge ≥ N·D_min/E; for the sum, J ≥ N·D_sum/E. A row's smallest distance is therefore
a valid lower bound for all its pairs, and stays one when neurons leave. Rows are looked at in the order of
their bounds until the next bound exceeds the best cost found.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hope.anatomy.steps import Merge, Prune, Step
from hope.geometry import costs, gaussian
from hope.geometry.parent import Recipe, Side, alignments, overlaps, parents, recipe

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


@dataclass
class PaperState:
    """A layer as the paper sees it. All tensors are float64, one entry per neuron unless said otherwise.

    Attributes:
        name: the layer's name.
        capacities: ‖f_i‖.
        release: ΔP of one neuron, static.
        mean, spread, slope, energy, bias: of the signal (see `geometry.parent.Side`); empty where only
            pruning is possible.
        inner: (N, N) Gram matrix of effective filters with biases.
        outer: (N, N) Gram matrix of outgoing weights.
    """

    name: str
    capacities: Tensor
    release: int
    mean: Tensor = field(default_factory=lambda: torch.empty(0))
    spread: Tensor = field(default_factory=lambda: torch.empty(0))
    slope: Tensor = field(default_factory=lambda: torch.empty(0))
    energy: Tensor = field(default_factory=lambda: torch.empty(0))
    bias: Tensor = field(default_factory=lambda: torch.empty(0))
    inner: Tensor = field(default_factory=lambda: torch.empty(0))
    outer: Tensor = field(default_factory=lambda: torch.empty(0))

    @property
    def neurons(self) -> int:
        """N, before the first move."""
        return len(self.capacities)

    @property
    def capacity(self) -> float:
        """E, before the first move."""
        return float(self.capacities.sum())

    @property
    def mergeable(self) -> bool:
        """Whether pair geometry is known."""
        return self.inner.numel() > 0

    def side(self, which: Tensor | slice | int) -> Side:
        """Some neurons, for the geometry of pairs."""
        diagonal = (self.inner.diagonal()[which], self.outer.diagonal()[which])
        return Side(
            self.mean[which],
            self.spread[which],
            self.slope[which],
            self.energy[which],
            self.bias[which],
            *diagonal,
        )


class PairPath:
    """A layer on its way down. `step()` does the cheapest thing and says what it was."""

    def __init__(self, state: PaperState, *, merge: str | None, kernel: str) -> None:
        self.state = state
        self.merge = merge if state.mergeable else None
        self.kernel = "exact" if merge == "sum" else kernel
        self.capacities: Array = state.capacities.numpy().copy()
        self.alive = np.ones(len(self.capacities), dtype=bool)
        self.neurons = len(self.capacities)
        self._keyed = self.capacities.copy()  # infinite once gone
        if self.merge is not None:
            self._owned = False
            self._pairs()

    @property
    def left(self) -> float:
        """E, the layer's capacity."""
        return float(self.capacities[self.alive].sum())

    # ---- pair geometry ---------------------------------------------------------------------------

    def _pairs(self) -> None:
        """Alignment b and distance D of all pairs, in tiles of rows."""
        n = self.neurons
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
            cost = costs.merge_sum(self.neurons, self.distance[i], self.alignment[i], rest)
        else:
            squares = self.capacities[i] ** 2 + self.capacities**2
            cost = costs.merge_pair(self.neurons, self.distance[i], self.alignment[i], rest, squares)
        cost[~self.alive] = np.inf
        cost[i] = np.inf
        return cost

    # ---- the walk --------------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        """All steps down to one neuron."""
        while self.neurons > 1:
            yield self.step()

    def step(self) -> Step:
        """Take the cheapest step: a prune before a merge of the same cost, then the lowest numbers."""
        self._total = self.left
        pruned = int(np.argmin(self._keyed))
        least = self._keyed[pruned]
        ties = np.flatnonzero(self._keyed <= least * (1 + TIE))
        pruned = int(ties[0])
        cost = costs.prune(self.neurons, self._total, float(self.capacities[pruned]))
        merge = self._best_merge(cost) if self.merge is not None else None
        if merge is None:
            return self._prune(pruned, cost)
        return self._merge(*merge)

    def follow(self, step: Step) -> None:
        """Take a step that an earlier run has found to be the cheapest, without looking for it."""
        self._total = self.left
        if isinstance(step, Merge):
            self._merge(0.0, step.keep, step.drop)
        else:
            self._gone(*step.gone)

    def _best_merge(self, limit: float) -> tuple[float, int, int] | None:
        """The cheapest merge, if it is cheaper than `limit`."""
        scale = self.neurons / self._total if self._total > 0 else math.inf
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

    def _prune(self, i: int, cost: float) -> Step:
        self._gone(i)
        return Prune(self.state.name, (i,), cost=cost, release=self.state.release, left=self.left)

    def _gone(self, i: int) -> None:
        self.alive[i] = False
        self._keyed[i] = np.inf
        self.neurons -= 1
        if self.merge is not None:
            self._bounds[i] = np.inf

    def _merge(self, cost: float, i: int, j: int) -> Step:
        made, capacity = self._parent(i, j)
        delta = self._distortion(i, j, capacity)
        self._gone(j)
        self._replace(i, j, made, capacity)
        release = self.state.release
        return Merge(self.state.name, i, j, *made, delta, cost=cost, release=release, left=self.left)

    def _distortion(self, i: int, j: int, scale: float) -> float:
        """‖f_i + f_j − f_p‖ of a sum; √(‖f_i − f_p‖² + ‖f_j − f_p‖²) of a pair, as the paper has it."""
        if self.merge == "sum":
            return float(self.distance[i, j])
        squares = self.capacities[i] ** 2 + self.capacities[j] ** 2
        alignment = float(self.alignment[i, j])
        return math.sqrt(max(squares - 2 * scale * alignment + 2 * scale**2, 0.0))

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
            self.state = state = PaperState(
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
        state.energy[i] = gaussian.energy(state.mean[i], state.spread[i], state.slope[i])
        self.capacities[i] = self._keyed[i] = capacity
        alignment, distance = self._geometry(slice(i, i + 1), slice(0, len(self.capacities)))
        distance[0, i] = np.inf
        self.alignment[i], self.alignment[:, i] = alignment[0], alignment[0]
        self.distance[i], self.distance[:, i] = distance[0], distance[0]
        np.minimum(self._bounds, distance[0], out=self._bounds, where=self.alive)
        alive = distance[0][self.alive]
        self._bounds[i] = alive.min() if len(alive) else np.inf
