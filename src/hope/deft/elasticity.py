"""Which neurons are core and which are slack: the paper's two definitions.

By prune cost (Section "DEFT"): each neuron's J_prune = N·‖f_i‖/E_b is recorded when encoding removes it;
neurons below the lock threshold, a percentile of all these costs, are slack. By capacity (Algorithm "DEFT"):
neurons whose ‖f_i‖ is at most the percentile of all capacities, on the merged network, are slack. Evictions
are off, and the last neuron of a layer is core.

Redundancy is resolved within the core (Figure "Dynamic Resolution of Redundancy"). In each layer, the neurons
whose J_prune is at or above the lock threshold form a separate path with merges, as if the layer had no
others. Its merges are applied up to its first prune or its first step at a cost at or above the threshold,
whichever comes first. J_prune itself is that of a path without merges, so that every neuron has one. (On a
path with sum merges most neurons are merged and few are pruned: the percentile of those few costs is so high
that nearly everything would be merged.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from msgspec.structs import replace
from torch import Tensor

from hope.actions import Action, Merge
from hope.methods.pairs import PairPath, PaperState

EPSILON = 1e-12


def walk(state: PaperState) -> list[Action]:
    """A layer's whole path, prunes only: no kernel of pairs is needed."""
    return list(PairPath(state, merge=None, kernel="zero-bias").steps())


@dataclass(frozen=True)
class Lock:
    """The threshold between slack and core."""

    threshold: float  # J_lock, the least prune cost that is core
    reason: str  # "percentile", or the fall-back that was taken: "supremum" or "one"


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


def least_percentile(costs: Mapping[str, Tensor]) -> int:
    """The lowest whole percentile at which J_lock is above zero.

    >>> least_percentile({"0": torch.tensor([0.0, 0.0, 3.0, math.inf])})
    67
    """
    every = torch.cat([some[some < math.inf] for some in costs.values()])
    return min(100, math.ceil(100 * float((every < EPSILON).double().mean())))


def prune_costs(steps: Sequence[Action]) -> list[float]:
    """𝒞 of the paper: the costs of all prunes, except those that leave a layer without capacity."""
    return [step.cost for step in steps if step.left > EPSILON]


@dataclass(frozen=True)
class UnitPartition:
    """What became of one unit."""

    core: Tensor  # (neurons,) True where frozen
    merges: tuple[Merge, ...]  # what is merged, in order
    freed: tuple[int, ...]  # the neurons that merging frees
    costs: Tensor  # (neurons,) J_prune when each of them left; infinite for the last one


def _part(state: PaperState, at: Tensor) -> PaperState:
    """Some neurons of a layer."""
    vectors = ("capacities", "mean", "spread", "slope", "energy", "bias")
    some = {name: getattr(state, name)[at] for name in vectors}
    return PaperState(
        state.name, release=state.release, inner=state.inner[at][:, at], outer=state.outer[at][:, at], **some
    )


def by_prune_cost(
    state: PaperState, steps: Sequence[Action], lock: float, path: Callable[[PaperState], PairPath] | None
) -> UnitPartition:
    """Slack: J_prune < J_lock; and the neurons freed by merging within the rest.

    Args:
        path: with merges; None merges nothing.
    """
    costs = torch.full((state.neurons,), math.inf, dtype=torch.float64)
    for step in steps:
        costs[list(step.removed)] = step.cost
    core = ~(costs < lock)  # the last neuron, too
    merges: list[Merge] = []
    if path is not None and state.mergeable:
        at = core.nonzero()[:, 0]
        for step in path(_part(state, at)).merges():
            if step.cost >= lock:
                break
            merges.append(replace(step, keep=int(at[step.keep]), drop=int(at[step.drop])))
            core[merges[-1].drop] = False
    return UnitPartition(core, tuple(merges), tuple(sorted(one.drop for one in merges)), costs)


def by_capacity(
    capacities: Mapping[str, Tensor], freed: Mapping[str, Sequence[int]], percentile: float
) -> tuple[float, dict[str, Tensor]]:
    """Slack: ‖f_i‖ ≤ τ, the percentile of the capacities of all neurons after merging.

    Args:
        capacities: layer or stream -> (neurons,) ‖f_i‖ on the merged network.
        freed: layer -> its freed neurons; they are slack, and not part of the percentile.

    Returns:
        τ, and layer or stream -> (neurons,) True if core.
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


def unit_partitions(
    states: Sequence[PaperState],
    paths: Sequence[Sequence[Action]],
    percentile: float,
    merges: Callable[[PaperState], PairPath] | None,
) -> tuple[Lock, dict[str, UnitPartition]]:
    """J_lock over the paths of all units, and the partition of each unit."""
    lock = lock_threshold([cost for steps in paths for cost in prune_costs(steps)], percentile)
    return lock, {
        state.name: by_prune_cost(state, steps, lock.threshold, merges)
        for state, steps in zip(states, paths, strict=True)
    }
