"""Sizes of blocks within blocks: what an inner one leaves behind goes with the outer one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.structure.sizes import sizes


class Residual(nn.Module):
    """A branch beside an identity; around another one if it is given."""

    def __init__(self, channels: int, width: int, inner: nn.Module | None = None) -> None:
        super().__init__()
        self.enter, self.leave = nn.Conv2d(channels, width, 1), nn.Conv2d(width, channels, 1)
        self.bn, self.inner = nn.BatchNorm2d(channels), inner or nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bn(self.leave(self.inner(self.enter(x))))


@pytest.mark.parametrize("order", [["1.inner", "1"], ["1", "1.inner"]], ids=["inner first", "outer first"])
def test_the_bias_of_an_inner_block_goes_with_the_outer_one(order: list[str]) -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 1), Residual(4, 6, Residual(6, 5)), nn.Conv2d(4, 2, 1)).eval()
    anatomy = hope.inspect(net, torch.zeros(1, 3, 4, 4))
    steps = [hope.Evict(name, [0.1] * anatomy.block(name).channels) for name in order]
    table = sizes(anatomy, steps)[:, 1].tolist()
    for count in range(3):
        small = hope.cut(net, anatomy, steps[:count])
        assert table[count] == sum(p.numel() for p in small.parameters())
        assert table[count] == anatomy.size({}, order[:count], order[:count]).parameters
