"""Which units are core and which are slack: the two definitions that the paper gives.

By prune cost (Section "DEFT"): each neuron's J_prune = N·‖f_i‖/E_b is recorded when it leaves while encoding;
those below the lock threshold, a percentile of all of them, are slack. By capacity (Algorithm "DEFT"): those
whose ‖f_i‖ is at most the percentile of all capacities, on the merged network, are slack. Evictions are off,
and the last neuron of a layer is core.

Redundancy is resolved within the core (Figure "Dynamic Resolution of Redundancy"): of each layer, the neurons
whose J_prune is at or above the lock threshold go along a path of their own, with merges, as if the layer had
no others. What that path merges is merged, up to its first prune or its first move at a cost at or above the
threshold, whichever comes first; what it would merge later on is not. J_prune itself is that of a path
without merges, so that every neuron has one. (On a path with sum merges most neurons leave by a merge and few
are ever pruned: the percentile of those few costs is so high that nearly everything would be merged.)
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from hope.anatomy.steps import Merge
from hope.methods.path import LayerPath, Move
from hope.methods.state import LayerState

EPSILON = 1e-12


@dataclass(frozen=True)
class Step:
    """One move of a path.

    Attributes:
        move: what was done.
        distortion: δ of a merge, 0 for a prune.
    """

    move: Move
    distortion: float = 0.0


class _Path(LayerPath):
    """A layer's path that also tells how far each parent is from what it stands for."""

    def steps(self) -> Iterable[Step]:
        """All moves down to one neuron."""
        while self.count > 1:
            before = self.capacities.copy()
            move = self.step()
            if move.other < 0:
                yield Step(move)
                continue
            i, j = move.neuron, move.other
            scale = float(self.capacities[i])
            yield Step(move, self._distortion(before[i] ** 2 + before[j] ** 2, scale))

    def _merge(self, cost: float, i: int, j: int) -> Move:
        self._overlap = float(self.alignment[i, j]), float(self.distance[i, j])
        return super()._merge(cost, i, j)

    def _distortion(self, squares: float, scale: float) -> float:
        """‖f_i + f_j − f_p‖ of a sum; √(‖f_i − f_p‖² + ‖f_j − f_p‖²) of a pair, as the paper has it."""
        alignment, distance = self._overlap
        if self.merge == "sum":
            return distance
        return math.sqrt(max(squares - 2 * scale * alignment + 2 * scale**2, 0.0))


def walk(state: LayerState) -> list[Step]:
    """A layer's whole path, prunes only."""
    return list(_Path(state, merge=None, kernel="zero-bias").steps())


@dataclass(frozen=True)
class Lock:
    """The threshold between slack and core.

    Attributes:
        threshold: J_lock, the least prune cost that is core.
        reason: "percentile", or the fall-back that was taken: "supremum" or "one".
    """

    threshold: float
    reason: str


def lock_threshold(costs: Sequence[float], percentile: float) -> Lock:
    """J_lock of the paper: the percentile of all prune costs, with its two fall-backs.

    >>> lock_threshold([1.0, 2.0, 3.0], 50)
    Lock(threshold=2.0, reason='percentile')
    >>> lock_threshold([0.0, 0.0, 3.0], 50), lock_threshold([0.0, 0.0], 50)
    (Lock(threshold=3.0, reason='supremum'), Lock(threshold=1.0, reason='one'))
    """
    if len(costs):
        at = float(np.percentile(np.asarray(costs, dtype=np.float64), percentile))
        if at >= EPSILON:
            return Lock(at, "percentile")
        if max(costs) >= EPSILON:
            return Lock(float(max(costs)), "supremum")
    return Lock(1.0, "one")


def prune_costs(steps: Sequence[Step]) -> list[float]:
    """𝒞 of the paper: the costs of all prunes, those that leave a layer without capacity left out."""
    return [s.move.cost for s in steps if s.move.capacity > EPSILON]


@dataclass(frozen=True)
class Fate:
    """What became of one group.

    Attributes:
        core: (units,) True where frozen.
        merges: what is merged, in order, with its δ.
        freed: the vessels that merging releases.
        costs: (units,) J_prune when each unit left; infinite for the last one.
    """

    core: Tensor
    merges: tuple[tuple[Merge, float], ...]
    freed: tuple[int, ...]
    costs: Tensor


def _part(state: LayerState, at: Tensor) -> LayerState:
    """Some neurons of a layer."""
    vectors = ("capacities", "mean", "spread", "slope", "energy", "bias")
    some = {name: getattr(state, name)[at] for name in vectors}
    return LayerState(
        state.name, release=state.release, inner=state.inner[at][:, at], outer=state.outer[at][:, at], **some
    )


def by_prune_cost(state: LayerState, steps: Sequence[Step], lock: float, merge: str | None) -> Fate:
    """Slack: J_prune < J_lock; and what merging within the rest releases.

    Args:
        state: a layer or stream.
        steps: its path without merges.
        lock: J_lock.
        merge: "sum", "pair" or None.
    """
    costs = torch.full((state.neurons,), math.inf, dtype=torch.float64)
    for step in steps:
        costs[step.move.neuron] = step.move.cost
    core = ~(costs < lock)  # the last neuron, too
    merges: list[tuple[Merge, float]] = []
    if merge is not None and state.mergeable:
        at = core.nonzero()[:, 0]
        for step in _Path(_part(state, at), merge=merge, kernel="zero-bias").steps():
            move = step.move
            if move.recipe is None or move.cost >= lock:
                break
            keep, drop = int(at[move.neuron]), int(at[move.other])
            recipe = move.recipe
            merges.append(
                (Merge(state.name, keep, drop, recipe.rows, recipe.outs, recipe.spread), step.distortion)
            )
            core[drop] = False
    freed = tuple(sorted(one.drop for one, _ in merges))
    return Fate(core, tuple(merges), freed, costs)


def by_capacity(
    capacities: Mapping[str, Tensor], freed: Mapping[str, Sequence[int]], percentile: float
) -> tuple[float, dict[str, Tensor]]:
    """Slack: ‖f_i‖ ≤ τ, the percentile of the capacities of all units that merging leaves.

    Args:
        capacities: layer or stream -> (units,) ‖f_i‖ on the merged network.
        freed: layer -> its freed vessels; they are slack, and no part of the percentile.
        percentile: P.

    Returns:
        τ, and layer or stream -> (units,) True where core.
    """
    left = {name: torch.ones(len(values), dtype=torch.bool) for name, values in capacities.items()}
    for name, neurons in freed.items():
        left[name][list(neurons)] = False
    tau = float(
        np.percentile(np.concatenate([c[left[n]].numpy() for n, c in capacities.items()]), percentile)
    )
    core = {}
    for name, values in capacities.items():
        core[name] = (values > tau) & left[name]
        core[name][int(values.masked_fill(~left[name], -1).argmax())] = True
    return tau, core
