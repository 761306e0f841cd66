"""Tokens count by one over the size of the stream that is read through a norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import hope
from hope.rewrite.normal_equations import FLOOR, NormalEquations
from hope.statistics.measured import measured_statistics, unexplained_share
from hope.statistics.token_weights import normed_adds
from hope.trace.capture import capture
from hope.trace.program import read_program


class Block(nn.Module):
    """An MLP beside a stream.

    Args:
        norm: in front of it.
        scale: what its result is multiplied by.
    """

    def __init__(self, norm: nn.Module, scale: float = 1.0) -> None:
        super().__init__()
        self.norm, self.up, self.down = norm, nn.Linear(6, 9), nn.Linear(9, 6)
        self.scale = nn.Parameter(torch.full((6,), scale)) if scale != 1.0 else None

    def forward(self, x: Tensor) -> Tensor:
        out = self.down(F.gelu(self.up(self.norm(x))))
        return x + (out if self.scale is None else self.scale * out)


class Rms(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Plain(nn.Module):
    """A stream, and a norm at its end or not."""

    def __init__(self, *blocks: nn.Module, end: nn.Module) -> None:
        super().__init__()
        self.blocks, self.end, self.head = nn.Sequential(*blocks), end, nn.Linear(6, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.end(self.blocks(x)))


def test_a_bias_that_is_added_apart_is_no_stream() -> None:
    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.up, self.weight = (
                nn.LayerNorm(6),
                nn.Linear(6, 9),
                nn.Parameter(torch.randn(6, 9)),
            )
            self.bias = nn.Parameter(torch.randn(6))

        def forward(self, x: Tensor) -> Tensor:
            return x + (F.gelu(self.up(self.norm(x))) @ self.weight.T + self.bias)

    program = read_program(capture(Plain(Apart(), Apart(), end=nn.LayerNorm(6)), torch.randn(2, 4, 6)))
    found = normed_adds(program)
    assert sorted(found) == ["blocks.0.weight", "blocks.1.weight"]
    for position in found.values():
        assert not program[position].tensors  # of two signals


def adds(net: nn.Module) -> list[str]:
    return sorted(normed_adds(read_program(capture(net, torch.randn(2, 4, 6)))))


def test_which_weights_write_into_a_stream_that_a_norm_reads() -> None:
    both = ["blocks.0.down.weight", "blocks.1.down.weight"]
    assert adds(Plain(Block(Rms()), Block(Rms()), end=Rms())) == both
    assert adds(Plain(Block(nn.LayerNorm(6)), Block(nn.LayerNorm(6), 0.1), end=nn.LayerNorm(6))) == both
    assert adds(Plain(Block(Rms()), Block(Rms()), end=nn.Identity())) == both[:1]
    assert adds(Plain(Block(nn.Identity()), Block(nn.Identity()), end=nn.Identity())) == []


def test_moments_are_those_of_places_by_what_they_count() -> None:
    torch.manual_seed(0)
    net = Plain(Block(Rms()), end=Rms()).eval()
    x = torch.randn(5, 4, 6)
    x[:, 0] *= 300  # one place that carries nearly all of the plain second moments
    anatomy = hope.inspect(net, x)
    statistics = measured_statistics(net, anatomy, [x[:2], x[2:]], {})["blocks.0.down.weight"]
    block = net.blocks[0]
    read = F.gelu(block.up(block.norm(x))).double().flatten(0, 1)
    count = 1 / block(x).double().square().mean(-1).flatten()
    mean = (count[:, None] * read).sum(0) / count.sum()
    square = (count[:, None] * read).T @ read / count.sum()
    torch.testing.assert_close(statistics.mean, mean, rtol=1e-4, atol=1e-6)
    covariance = square - torch.outer(mean, mean)
    left = unexplained_share(covariance.detach(), 20)  # what is not trusted is taken to be independent
    trust = 5 * (1 - left) / (5 * (1 - left) + 9 * left)
    covariance = trust * covariance + (1 - trust) * covariance.diagonal().diag()
    torch.testing.assert_close(statistics.covariance, covariance, rtol=1e-4, atol=1e-6)


def test_a_weighted_fit_is_weighted_least_squares() -> None:
    torch.manual_seed(0)
    net = nn.Linear(4, 3)
    x, lack, count = torch.randn(2, 900, 4), torch.randn(2, 900, 3), torch.rand(2, 900) + 0.01
    program = read_program(capture(net, x))
    (linear,) = (operation for operation in program if operation.operator == "linear")
    sums = NormalEquations(linear, net.weight, 1800)
    for some in range(2):
        sums.add(x[some : some + 1], lack[some : some + 1], count[some : some + 1])
    change, shift = sums.solve(constant=True)
    rows = torch.cat([x.flatten(0, 1), torch.ones(1800, 1)], dim=1).double()
    root = count.flatten().double().sqrt()[:, None]
    dense = torch.linalg.lstsq(root * rows, root * lack.flatten(0, 1).double()).solution
    assert sums.prior < 0.02 + FLOOR
    torch.testing.assert_close(change, dense[:4].T, atol=0.02 * float(dense.abs().max()), rtol=0.0)
    torch.testing.assert_close(shift, dense[4], atol=0.02 * float(dense.abs().max()), rtol=0.0)


def test_a_sink_does_not_decide_what_goes() -> None:
    """At one place of a huge stream only neuron 0 is active: by plain moments it would be all there is."""
    torch.manual_seed(0)
    net = Plain(Block(Rms()), end=Rms()).eval()
    with torch.no_grad():
        net.blocks[0].up.weight[0] = 0.0
        net.blocks[0].up.weight[0, 0] = 3.0
    x = torch.randn(64, 4, 6)
    x[:, :, 0] *= 0.01
    x[:, 0] = torch.tensor([1e4, 0.0, 0.0, 0.0, 0.0, 0.0])
    encoding = hope.encode(net, x[:1], steps=1, method=hope.Absorb(calibration=[x]), evict=False)
    assert encoding.trajectory.steps[0].removed == (0,)
