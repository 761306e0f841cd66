"""Runs that are ranked by the MACs that steps save."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hope
from hope.demo import DigitsNet
from hope.schedule.cost_model import MacCost
from tests.support import randomise

EXAMPLE = torch.zeros(1, 1, 8, 8)
CLOSED = hope.Absorb(calibration=None)


class Funnel(nn.Module):
    """A layer on many places with few weights, and one on few places with many."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bn1 = nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12)
        self.pool = nn.AvgPool2d(8)
        self.second, self.bn2 = nn.Conv2d(12, 64, 1), nn.BatchNorm2d(64)
        self.head = nn.Linear(64, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(torch.relu(self.bn1(self.first(x))))
        scores: torch.Tensor = self.head(torch.relu(self.bn2(self.second(x))).flatten(1))
        return scores


@pytest.mark.parametrize("streams", [False, True])
def test_savings_are_what_one_neuron_or_block_less_saves(streams: bool) -> None:
    model = randomise(DigitsNet()).eval()
    anatomy = hope.inspect(model, EXAMPLE, streams=streams)
    saved = MacCost(anatomy).savings()
    whole = anatomy.size().macs
    for unit in anatomy.layers:
        small = hope.cut(model, anatomy, [hope.Prune(unit.name, 0)])
        assert saved.unit(unit.name) == whole - hope.inspect(small, EXAMPLE).size().macs
    for block in anatomy.blocks:
        small = hope.cut(model, anatomy, [hope.Evict(block.name)])
        assert saved.block(block.name) == whole - hope.inspect(small, EXAMPLE).size().macs


def test_a_budget_in_macs_takes_neurons_where_macs_are() -> None:
    torch.manual_seed(0)
    model = randomise(Funnel()).eval()
    how: dict[str, Any] = {"method": CLOSED, "evict": False, "progress": False}
    by_macs = hope.encode(model, EXAMPLE, macs=0.6, **how)
    by_parameters = hope.encode(model, EXAMPLE, params=0.1, **how)
    at = by_parameters.at(macs=0.6)
    assert by_macs.size.macs <= 0.6 * by_macs.trajectory.size(0).macs
    assert by_macs.trajectory.times is None
    assert by_macs.settings["ranked"] == "macs"
    assert "ranked" not in by_parameters.settings
    assert by_macs.model.second.out_channels > at.second.out_channels
    prices = [by_macs.trajectory.price(hope.schedule.budget.Budget("macs", 0.6))]
    prices.append(by_parameters.trajectory.price(hope.schedule.budget.Budget("macs", 0.6)))
    assert prices[0] < prices[1]


def test_the_papers_run_is_ranked_by_parameters_whatever_the_budget() -> None:
    model = randomise(DigitsNet()).eval()
    runs = [hope.encode(model, EXAMPLE, method="paper", **one) for one in ({"macs": 0.6}, {"params": 0.3})]
    shared = min(len(run.trajectory) for run in runs)
    assert runs[0].trajectory.steps[:shared] == runs[1].trajectory.steps[:shared]
    assert "ranked" not in runs[0].settings


def test_a_checkpoint_of_another_ranking_is_not_gone_on_with(tmp_path: Any) -> None:
    model = randomise(DigitsNet()).eval()
    how: dict[str, Any] = {"method": CLOSED, "evict": False, "progress": False}
    file = tmp_path / "run.checkpoint"
    hope.api.encode_resumable(
        model, EXAMPLE, hope.schedule.budget.Budget("params", 0.5), checkpoint=file, **how
    )
    fresh = hope.encode(model, EXAMPLE, macs=0.5, **how)
    assert file.exists()
    again = hope.encode(model, EXAMPLE, macs=0.5, checkpoint=file, **how)
    assert again.trajectory.steps == fresh.trajectory.steps
