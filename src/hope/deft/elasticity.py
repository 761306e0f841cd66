"""Which units are core and which are slack: the two definitions that the paper gives.

By prune cost (Section "DEFT"): each neuron's J_prune = N·‖f_i‖/E_b is recorded when it leaves while encoding;
those below the lock threshold, a percentile of all of them, are slack. By capacity (Algorithm "DEFT"): those
whose ‖f_i‖ is at most the percentile of all capacities are slack. Evictions are off, and the last neuron of
a layer is core.

Redundant neurons are merged on the way: the merges that a layer's path chooses at a cost below the lock
threshold. A merge of the path that is not carried out was cheaper than pruning either of its two, so both of
them are core.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hope.encoder.actions import Merge
from hope.encoder.path import LayerPath, Move
from hope.encoder.state import LayerState

EPSILON = 1e-12


@dataclass(frozen=True)
class Step:
    """One move of a path.

    Attributes:
        move: what was done.
        distortion: δ of a merge, 0 for a prune.
        scale: the parent's capacity, 0 for a prune.
    """

    move: Move
    distortion: float = 0.0
    scale: float = 0.0


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
            yield Step(move, self._distortion(before[i] ** 2 + before[j] ** 2, scale), scale)

    def _merge(self, cost: float, i: int, j: int) -> Move:
        self._overlap = float(self.alignment[i, j]), float(self.distance[i, j])
        return super()._merge(cost, i, j)

    def _distortion(self, squares: float, scale: float) -> float:
        """‖f_i + f_j − f_p‖ of a sum; √(‖f_i − f_p‖² + ‖f_j − f_p‖²) of a pair, as the paper has it."""
        alignment, distance = self._overlap
        if self.merge == "sum":
            return distance
        return math.sqrt(max(squares - 2 * scale * alignment + 2 * scale**2, 0.0))


def walk(state: LayerState, merge: str | None) -> list[Step]:
    """A layer's whole path."""
    return list(_Path(state, merge=merge, kernel="zero-bias").steps())


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
    return [s.move.cost for s in steps if s.move.other < 0 and s.move.capacity > EPSILON]


@dataclass(frozen=True)
class Fate:
    """What became of one group.

    Attributes:
        core: (units,) True where frozen.
        merges: what is merged, in order, with its δ.
        freed: the vessels that merging releases.
        costs: (units,) J_prune when each unit left; infinite for the last one, NaN for what left by a merge.
        capacities: (units,) ‖f_i‖ after the merges, 0 for freed vessels.
    """

    core: Tensor
    merges: tuple[tuple[Merge, float], ...]
    freed: tuple[int, ...]
    costs: Tensor
    capacities: Tensor


def _kept_merges(steps: Sequence[Step], lock: float) -> tuple[list[Step], set[int]]:
    """The merges below the lock, and the units of those that are not carried out."""
    done: list[Step] = []
    broken: set[int] = set()
    for step in steps:
        pair = {step.move.neuron, step.move.other}
        if step.move.other < 0:
            continue
        if step.move.cost < lock and not pair & broken:
            done.append(step)
        else:
            broken |= pair
    return done, broken


def _fate(
    state: LayerState, core: NDArray[np.bool_], done: Sequence[Step], costs: NDArray[np.float64]
) -> Fate:
    capacities = state.capacities.clone()
    merges = []
    for step in done:
        move = step.move
        assert move.recipe is not None
        capacities[move.neuron], capacities[move.other] = step.scale, 0.0
        recipe = move.recipe
        merge = Merge(state.name, move.neuron, move.other, recipe.rows, recipe.outs, recipe.spread)
        merges.append((merge, step.distortion))
    freed = tuple(sorted(step.move.other for step in done))
    core = core.copy()
    core[list(freed)] = False
    return Fate(torch.from_numpy(core), tuple(merges), freed, torch.from_numpy(costs), capacities)


def _costs(state: LayerState, steps: Sequence[Step]) -> NDArray[np.float64]:
    costs = np.full(state.neurons, np.inf)
    for step in steps:
        move = step.move
        costs[move.other if move.other >= 0 else move.neuron] = np.nan if move.other >= 0 else move.cost
    return costs


def by_prune_cost(state: LayerState, steps: Sequence[Step], lock: float) -> Fate:
    """Slack: J_prune < J_lock. Merges are carried out where their parent stays core; a family whose parent
    would be slack is slack as it is, unmerged: what it knows may serve the new task.
    """
    costs = _costs(state, steps)
    done, broken = _kept_merges(steps, lock)
    core = ~(costs < lock)  # the last neuron, too
    core[list(broken)] = True
    kept: list[Step] = []
    for step in reversed(done):  # a family's last merge tells its fate; members pass it on
        if core[step.move.neuron]:
            kept.insert(0, step)
        else:
            core[step.move.other] = False
    return _fate(state, core, kept, costs)


def by_capacity(
    states: Sequence[LayerState], paths: Sequence[Sequence[Step]], lock: float, percentile: float
) -> tuple[float, list[Fate]]:
    """Merge first, then slack: ‖f_i‖ ≤ τ, the percentile of all capacities that are left."""
    merged = []
    for state, steps in zip(states, paths, strict=True):
        done, _ = _kept_merges(steps, lock)
        merged.append(_fate(state, np.ones(state.neurons, dtype=bool), done, _costs(state, steps)))
    active = [fate.capacities[fate.core].numpy() for fate in merged]
    tau = float(np.percentile(np.concatenate(active), percentile)) if active else 0.0
    fates = []
    for fate in merged:
        core = fate.core & (fate.capacities > tau)
        core[int(fate.capacities.argmax())] = True
        fates.append(Fate(core, fate.merges, fate.freed, fate.costs, fate.capacities))
    return tau, fates
