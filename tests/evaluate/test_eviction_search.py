"""What an eviction is compared with, and what does not depend on how it is looked up."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.evaluate.eviction_search import _EvictionSearch
from hope.schedule.search_space import SearchSpace
from tests.support import randomise

EXAMPLE = torch.zeros(1, 3, 6, 6)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x))))))


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 4, 1), nn.Sequential(*(Block() for _ in range(4)))
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.blocks(torch.relu(self.stem(x))).mean((2, 3)))
        return scores


def test_sizes_after_evictions_count_the_biases_that_stay() -> None:
    torch.manual_seed(0)
    net = randomise(Small()).eval()
    plan = SearchSpace.of(
        net, EXAMPLE, hope.inspect(net, EXAMPLE), hope.Absorb(calibration=None, refit=False)
    )
    search = _EvictionSearch(plan, list(plan.steps()))
    search.evicted = [(2, 1)]
    search.steps = search.interleave(search.evicted)
    for length in range(4, len(search.steps)):
        steps = search.steps[:length]
        left = plan.amounts([*steps, search._step(0)])[-1]
        met = (plan.amounts(search.steps) <= left).nonzero()[0]
        assert search._same_size(steps, 0) == (int(met[0]) if len(met) else None)
    biased = [branch for branch in plan.branches if branch.bias is not None]
    assert biased  # or nothing was tested


class Alone(nn.Module):
    """A branch whose only convolution writes into the stream: no neuron of it can go alone."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.bn = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.relu(self.bn(self.conv(x)))


@pytest.mark.parametrize("budget", [{"params": 0.6}, {"macs": 0.6}, {"params": 0.3}, {"steps": 2}])
def test_where_absorption_does_not_come_down_blocks_go(budget: dict[str, Any]) -> None:
    torch.manual_seed(0)
    parts = [nn.Conv2d(3, 8, 3), *(Alone() for _ in range(4)), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net = randomise(nn.Sequential(*parts, nn.Linear(8, 4))).eval()
    with torch.no_grad():
        net[2].bn.weight.mul_(1e-3)  # type: ignore[union-attr]
        net[2].bn.bias.mul_(1e-3)  # type: ignore[union-attr]
    encoding = hope.encode(net, torch.randn(2, 3, 8, 8), **budget)
    assert {step.kind for step in encoding.trajectory} == {"evict"}
    left = sum(parameter.numel() for parameter in encoding.model.parameters())
    assert left == encoding.size.parameters
    assert left <= budget.get("params", 0.7) * encoding.trajectory.size(0).parameters
    assert encoding.trajectory.steps[0].name.startswith("2")  # it says nearly nothing
