"""One run answers every budget."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hope
from hope.schedule.budget import Budget
from tests.support import randomise
from zoo.networks import CifarResNet

EXAMPLE = torch.zeros(1, 3, 12, 12)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return randomise(CifarResNet(8)).eval()


def same_weights(one: nn.Module, other: nn.Module) -> bool:
    first, second = one.state_dict(), other.state_dict()
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_a_run_with_judged_evictions_answers_smaller_budgets_too(model: nn.Module) -> None:
    anatomy = hope.inspect(model, EXAMPLE)
    large = hope.encode(model, EXAMPLE, params=0.6, anatomy=anatomy)
    small = hope.encode(model, EXAMPLE, params=0.3, anatomy=anatomy)
    assert large.trajectory.mix()["evict"] > 0
    assert large.trajectory.steps == small.trajectory.steps
    assert large.steps < small.steps
    assert same_weights(large.at(params=0.3), small.model)
    assert same_weights(small.at(params=0.6), large.model)


def test_another_end_of_a_run_is_the_same_run(model: nn.Module) -> None:
    encoding = hope.encode(model, EXAMPLE, params=0.6, method="paper", evict=False)
    other = encoding.truncated(Budget("params", 0.8))
    assert other.trajectory is encoding.trajectory
    assert other.steps < encoding.steps
    assert same_weights(other.model, encoding.at(params=0.8))
