"""A trajectory's bookkeeping: how far it has come, by which budget, and in multiples."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hope
from hope.schedule.budget import Budget
from hope.schedule.trajectory import Trajectory

EXAMPLE = torch.zeros(2, 3)


@pytest.fixture(scope="module")
def encoding() -> hope.Encoding:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).eval()
    return hope.encode(net, EXAMPLE, density=1, method="l1-in", progress=False)


def test_progress_goes_from_none_to_all_by_every_budget(encoding: hope.Encoding) -> None:
    steps = encoding.trajectory.steps
    assert len(steps) == 7  # down to one neuron of eight
    for taken in range(len(steps) + 1):
        part = Trajectory.of(encoding.anatomy, steps[:taken])
        assert part.progress(Budget("steps", 7)) == pytest.approx(taken / 7)
        assert part.progress(Budget("steps", 1)) == taken
        assert part.progress(Budget("density", 3)) == pytest.approx(taken / 5)
        assert part.progress(Budget("density", 0.5)) == pytest.approx(taken / 4)
        assert part.progress(Budget("fidelity", 0.9)) == pytest.approx(taken / 8)
    assert Trajectory.of(encoding.anatomy, ()).progress(Budget("steps", 0)) == 0


@pytest.mark.parametrize(
    ("multiple", "stops"), [(1, {8, 7, 6, 5, 4, 3, 2, 1}), (2, {8, 6, 4, 2}), (3, {8, 6, 3})]
)
def test_a_run_may_end_where_layers_are_multiples(
    encoding: hope.Encoding, multiple: int, stops: set[int]
) -> None:
    aligned = Trajectory.of(encoding.anatomy, encoding.trajectory.steps, multiple)
    ends = aligned.stops or range(len(aligned) + 1)
    assert {aligned.size(end).neurons for end in ends} == stops
