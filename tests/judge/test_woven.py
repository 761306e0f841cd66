"""What an eviction is compared with, and what does not depend on how it is looked up."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import hope
from hope.judge.evictions import _Weaver
from hope.run.plan import Plan
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
    plan = Plan(net, EXAMPLE, hope.inspect(net, EXAMPLE), hope.Absorb(calibration=None, refit=False))
    weaver = _Weaver(plan, list(plan.steps()))
    weaver.evicted = [(2, 1)]
    weaver.woven = weaver.weave(weaver.evicted)
    for length in range(4, len(weaver.woven)):
        steps = weaver.woven[:length]
        left = plan.amounts([*steps, weaver._step(0)])[-1]
        met = (plan.amounts(weaver.woven) <= left).nonzero()[0]
        assert weaver._same_size(steps, 0) == (int(met[0]) if len(met) else None)
    biased = [branch for branch in plan.branches if branch.bias is not None]
    assert biased  # or nothing was tested
