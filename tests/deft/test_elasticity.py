"""The lock threshold: which prune costs it is a percentile of, and where its fall-backs begin."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import hope
from hope.deft.elasticity import lock_threshold, prune_costs
from hope.methods import Paper
from hope.methods.pairs import PairPath, PaperState
from tests.deft.nets import chain, images, made

LEAST = 1e-12  # ε of the paper's filter E_b > ε, written down here and not imported


def step(cost: float, left: float) -> hope.Prune:
    return hope.Prune("layer", (0,), cost=cost, release=1, left=left)


def test_costs_of_prunes_that_leave_no_capacity_are_left_out() -> None:
    steps = [step(1.0, 5.0), step(2.0, 2 * LEAST), step(3.0, LEAST), step(4.0, LEAST / 2), step(5.0, 0.0)]
    assert prune_costs(steps) == [1.0, 2.0]


@pytest.mark.parametrize(
    ("costs", "want"),
    [
        ([LEAST, LEAST, 7.0], (LEAST, "percentile")),  # J_P ≥ ε
        ([LEAST / 2, LEAST / 2, 7.0], (7.0, "supremum")),
        ([LEAST / 2, LEAST / 2, LEAST], (LEAST, "supremum")),
        ([LEAST / 2, LEAST / 2, LEAST / 2], (1.0, "one")),
        ([], (1.0, "one")),
    ],
)
def test_the_fall_backs_begin_below_epsilon(costs: list[float], want: tuple[float, str]) -> None:
    lock = lock_threshold(costs, 50)
    assert (lock.threshold, lock.reason) == want


def test_a_layer_without_capacity_does_not_move_the_threshold() -> None:
    """Its prunes cost what others do, N·‖f‖/E_b being scale-free, but E_b ≤ ε: extinction, not a cost."""
    net = made(chain())
    with torch.no_grad():
        net.get_submodule("1").weight.mul_(1e-15)
        net.get_submodule("1").bias.mul_(1e-15)
    part = hope.deft.partition(net, images(2), percentile=30, merge=False)
    plan = hope.schedule.search_space.SearchSpace.of(
        net, images(2), hope.inspect(net, images(2)), Paper(), evict=False
    )
    costs: dict[bool, list[float]] = {True: [], False: []}
    for state in plan.states:
        assert isinstance(state, PaperState)
        for move in PairPath(state, merge=None, kernel="zero-bias").steps():
            costs[state.capacity > 1e-9].append(move.cost)
    assert min(map(len, costs.values())) > 3
    assert part.threshold == pytest.approx(np.percentile(costs[True], 30), rel=1e-12)
    assert part.threshold != pytest.approx(np.percentile(costs[True] + costs[False], 30), rel=1e-3)
