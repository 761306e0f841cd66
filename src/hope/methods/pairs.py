"""One layer under the paper's method: its whole sequence of prunes and merges, down to a single neuron,
independent of every other layer.

A path need not evaluate all pairs at each step. For the paper's merge, D_min² = a − b²/2 does not depend on
the current capacity and J_merge ≥ N·D_min/E; for the sum, J ≥ N·D_sum/E. A row's smallest distance is
therefore a lower bound for all its pairs, and remains one when neurons are removed. Rows are evaluated in the
order of their bounds until the next bound exceeds the best cost found. Pairs with only a bound are computed
unless the bound rules them out, together with pairs that will be needed soon.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hope.actions import Action, Merge, Prune
from hope.geometry import costs, gaussian
from hope.geometry.pair_table import Indices, Layer, PairTable
from hope.geometry.parent import Recipe, Side, parents, recipe

Array = NDArray[np.float64]
TIE = 1e-12
AHEAD = 1.25  # how much more a pair may cost that is computed in advance
ROWS = 32  # neurons whose pairs are evaluated together


@dataclass(frozen=True, eq=False)
class PaperState:
    """A layer's state under the paper's method. All tensors are float64, one entry per neuron unless stated
    otherwise.
    """

    name: str  # the layer's name
    capacities: Tensor  # ‖f_i‖
    release: int  # ΔP of one neuron, static
    # mean, spread, slope, energy, bias: of the signal (see `geometry.parent.Side`); empty where only pruning
    # is possible
    mean: Tensor = field(default_factory=lambda: torch.empty(0))
    spread: Tensor = field(default_factory=lambda: torch.empty(0))
    slope: Tensor = field(default_factory=lambda: torch.empty(0))
    energy: Tensor = field(default_factory=lambda: torch.empty(0))
    bias: Tensor = field(default_factory=lambda: torch.empty(0))
    # (N, N) Gram matrix of effective filters with biases
    inner: Tensor = field(default_factory=lambda: torch.empty(0))
    outer: Tensor = field(default_factory=lambda: torch.empty(0))  # (N, N) Gram matrix of outgoing weights

    @property
    def neurons(self) -> int:
        """N, before the first step."""
        return len(self.capacities)

    @property
    def capacity(self) -> float:
        """E, before the first step."""
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
    """A layer's path. `step()` applies the cheapest step and returns it."""

    def __init__(self, state: PaperState, *, merge: str | None, kernel: str) -> None:
        self.state = state
        self.merge = merge if state.mergeable else None
        self.kernel = "exact" if merge == "sum" else kernel
        self.capacities: Array = state.capacities.numpy().copy()
        self.alive = np.ones(len(self.capacities), dtype=bool)
        self.neurons = len(self.capacities)
        self._keyed = self.capacities.copy()  # infinite once removed
        if self.merge is not None:
            self._owned = False
            self._table = PairTable(self._layer, self.capacities, merge=self.merge, kernel=self.kernel)
            self._bounds = self._table.distance.min(axis=1)

    @property
    def left(self) -> float:
        """E, the layer's capacity."""
        return float(self.capacities[self.alive].sum())

    # ---- pair geometry ---------------------------------------------------------------------------

    @property
    def _layer(self) -> Layer:
        return Layer(self.state.side(slice(None)), self.state.inner, self.state.outer)

    @property
    def alignment(self) -> Array:
        """(N, N) b = ⟨ψ*, f_i + f_j⟩ of all pairs."""
        self._table.evaluate_below(math.inf)
        return self._table.alignment

    @property
    def distance(self) -> Array:
        """(N, N) D of all pairs, infinite where there is no parent."""
        self._table.evaluate_below(math.inf)
        return self._table.distance

    def _costs(self, rows: Indices, ceiling: float) -> Array:
        """J of merging some neurons with each other one; above the ceiling, a lower bound."""
        table, sizes = self._table, self.capacities
        rest = costs.remaining(self._total, sizes[rows, None], sizes)
        squares = sizes[rows, None] ** 2 + sizes**2
        while True:
            distance, alignment = table.distance[rows], table.alignment[rows]
            if self.merge == "sum":
                cost = costs.merge_sum(self.neurons, distance, alignment, rest)
            else:
                cost = costs.merge_pair(self.neurons, distance, alignment, rest, squares)
            cost[:, ~self.alive] = np.inf
            cost[np.arange(len(rows)), rows] = np.inf
            left = table.open[rows]
            if not left.any():
                return cost
            least = np.where(left, cost, np.inf)
            ceiling = min(ceiling, float(np.where(left, np.inf, cost).min()))
            if not least.min() <= ceiling * (1 + 1e-9):
                return cost
            # J ≥ N·D/(E + the floor of E_rem): only pairs below this matter
            table.evaluate_below(AHEAD * ceiling * (self._total + costs.LEAST) / self.neurons, self.alive)

    # ---- the path --------------------------------------------------------------------------------

    def steps(self) -> Iterator[Action]:
        """All steps down to one neuron."""
        while self.neurons > 1:
            yield self.step()

    @torch.inference_mode()
    def step(self) -> Action:
        """Apply the cheapest step: a prune before a merge of the same cost, then the lowest indices."""
        pruned, cost, merge = self._cheapest()
        return self._prune(pruned, cost) if merge is None else self._merge(*merge)

    def merges(self) -> Iterator[Merge]:
        """Merges, as long as one is cheaper than every prune."""
        while self.neurons > 1:
            with torch.inference_mode():
                _, _, merge = self._cheapest()
                if merge is None:
                    return
                made = self._merge(*merge)
            yield made

    def _cheapest(self) -> tuple[int, float, tuple[float, int, int] | None]:
        """The cheapest prune, its cost, and the cheapest merge if that is cheaper."""
        self._total = self.left
        pruned = int(np.argmin(self._keyed))
        least = self._keyed[pruned]
        ties = np.flatnonzero(self._keyed <= least * (1 + TIE))
        pruned = int(ties[0])
        cost = costs.prune(self.neurons, self._total, float(self.capacities[pruned]))
        return pruned, cost, self._best_merge(cost) if self.merge is not None else None

    @torch.inference_mode()
    def follow(self, step: Action) -> None:
        """Apply a step that an earlier run found to be the cheapest, without searching."""
        self._total = self.left
        if step.parent is not None:
            self._merge(0.0, step.parent, *step.removed)
        else:
            self._remove(*step.removed)

    def _best_merge(self, limit: float) -> tuple[float, int, int] | None:
        """The cheapest merge, if it is cheaper than `limit`."""
        scale = self.neurons / max(self._total, 1e-300)
        ceiling = limit * (1 - TIE)
        least = self._bounds * scale
        rows = np.flatnonzero((least <= ceiling) & (least < limit))
        rows = rows[np.argsort(least[rows], kind="stable")]
        best: tuple[float, int, int] | None = None
        for first in range(0, len(rows), ROWS):
            some = rows[first : first + ROWS]
            some = some[least[some] <= ceiling]
            if not len(some):
                break
            cost = self._costs(some, ceiling)
            self._bounds[some] = self._table.distance[some].min(axis=1, where=self.alive, initial=np.inf)
            cheapest = float(cost.min())
            if cheapest < limit * (1 - TIE) and cheapest <= ceiling:
                at, columns = np.nonzero(cost <= cheapest * (1 + TIE))
                ends = zip(some[at].tolist(), columns.tolist(), strict=True)
                found = [(min(pair), max(pair)) for pair in ends]
                pair = min(found)
                if best is None or cheapest < best[0] * (1 - TIE) or pair < best[1:]:
                    place = found.index(pair)  # of its two positions, the first to be evaluated
                    best = (float(cost[at[place], columns[place]]), *pair)
                ceiling = best[0] * (1 + TIE)
        return best

    def _prune(self, i: int, cost: float) -> Action:
        self._remove(i)
        return Prune(self.state.name, (i,), cost=cost, release=self.state.release, left=self.left)

    def _remove(self, i: int) -> None:
        self.alive[i] = False
        self._keyed[i] = np.inf
        self.neurons -= 1
        if self.merge is not None:
            self._bounds[i] = np.inf

    def _merge(self, cost: float, i: int, j: int) -> Merge:
        if self._table.open[i, j]:
            self._table.evaluate(np.array([i]), np.array([j]))
        made, capacity = self._parent(i, j)
        delta = self._distortion(i, j, capacity)
        self._remove(j)
        self._replace(i, j, made, capacity)
        release = self.state.release
        return Merge(self.state.name, i, j, *made, delta, cost=cost, release=release, left=self.left)

    def _distortion(self, i: int, j: int, scale: float) -> float:
        """‖f_i + f_j − f_p‖ for a sum; √(‖f_i − f_p‖² + ‖f_j − f_p‖²) for a pair, as in the paper."""
        if self.merge == "sum":
            return float(self._table.distance[i, j])
        squares = self.capacities[i] ** 2 + self.capacities[j] ** 2
        alignment = float(self._table.alignment[i, j])
        return math.sqrt(max(squares - 2 * scale * alignment + 2 * scale**2, 0.0))

    def _parent(self, i: int, j: int) -> tuple[Recipe, float]:
        """The parent of the chosen pair, and its capacity."""
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
        """Write the parent into row i of the state, and compute its pairs."""
        state = self.state
        if not self._owned:  # merges write; the caller's state is unchanged
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
        self._table.replace(i, self._layer, self.alive)
        distance = self._table.distance[i]
        np.minimum(self._bounds, distance, out=self._bounds, where=self.alive)
        alive = distance[self.alive]
        self._bounds[i] = alive.min() if len(alive) else np.inf
