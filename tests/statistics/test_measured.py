"""Few inputs and no BN: what was measured is held against neurons that have nothing in common."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.statistics.measured import apart, measured_statistics, unexplained_share


class Mlp(nn.Module):
    """An MLP behind a norm, of whose signals nothing is known without inputs."""

    def __init__(self, width: int, inputs: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(inputs)
        self.up, self.act, self.down = nn.Linear(inputs, width), nn.SiLU(), nn.Linear(width, 6)

    def signals(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.up(self.norm(x)))
        return out

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(self.signals(x))
        return out


def made(width: int, seed: int = 0, inputs: int = 12) -> Mlp:
    torch.manual_seed(seed)
    return Mlp(width, inputs).eval()


def off(net: Mlp, small: nn.Module) -> float:
    """The squared error on inputs that nobody has seen, as a share of the answers' variance."""
    x = torch.randn(4000, net.up.in_features, generator=torch.Generator().manual_seed(99))
    with torch.no_grad():
        full, less = net(x), small(x)
    return float((less - full).square().sum() / (full - full.mean(dim=0)).square().sum())


def test_what_is_not_trusted_is_taken_to_be_independent() -> None:
    net, x = made(10), torch.randn(30, 12, generator=torch.Generator().manual_seed(1))
    statistics = measured_statistics(net, hope.inspect(net, x[:1]), [x[:20], x[20:]], {})["down.weight"]
    with torch.no_grad():
        read = net.signals(x).double()
    plain = torch.cov(read.T, correction=0)
    reported = [1 - plain[i, i] ** -1 * torch.linalg.inv(plain)[i, i] ** -1 for i in range(10)]
    left = 1 - float(sum(reported)) / 10
    ratio = 10 / 30 * left * 1.5 / (1 - left * 1.5)  # one sample per channel, as far as others tell no more
    wanted = (plain + ratio * plain.diagonal().diag()) / (1 + ratio)
    torch.testing.assert_close(statistics.covariance.double(), wanted, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(statistics.mean.double(), read.mean(dim=0), rtol=1e-4, atol=1e-7)


def test_multiples_of_one_signal_stay_what_they_are() -> None:
    torch.manual_seed(0)
    x = torch.randn(50, 5).double()
    x = torch.cat([x, -3 * x[:, :1], 0 * x[:, :1]], dim=1)
    covariance = torch.cov(x.T, correction=0)
    target = apart(covariance)
    assert float(target[0, 5]) == float(covariance[0, 5]) != 0
    others = target - target.diagonal().diag()
    others[0, 5] = others[5, 0] = 0
    assert not others.any()
    assert float(torch.linalg.eigvalsh(target).min()) > -1e-12
    assert torch.equal(apart(covariance, samples=2), covariance.diagonal().diag())


def test_chains_of_signals_that_are_nearly_one_are_still_covariances() -> None:
    angles = torch.arange(40).double() * 4e-5  # each the twin of the next, the first and the last not
    covariance = torch.cos(angles[:, None] - angles)
    assert float(torch.linalg.eigvalsh(covariance).min()) > -1e-12
    assert float(torch.linalg.eigvalsh(apart(covariance)).min()) > -1e-12


def test_twins_are_absorbed_without_a_trace_however_few_inputs_there_are() -> None:
    net, x = made(16), torch.randn(9, 12, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        net.up.weight[8:], net.up.bias[8:] = net.up.weight[:8], net.up.bias[:8]
    small = hope.encode(net, x[:1], density=0.5, method=hope.Absorb(calibration=[x]), progress=False).model
    assert small.up.out_features == 8
    assert off(net, small) < 1e-5  # covariances are ridged a little


def test_with_few_inputs_less_goes_wrong_than_by_plain_moments() -> None:
    for seed in range(3):
        net = made(96, seed, inputs=200)
        x = torch.randn(150, 200, generator=torch.Generator().manual_seed(seed))
        method = hope.Absorb(calibration=[x], refit=False)
        small = hope.encode(net, x[:1], density=0.6, method=method, progress=False).model
        kept = [int((net.up.weight == row).all(dim=1).nonzero()[0]) for row in small.up.weight]
        with torch.no_grad():
            signals = net.signals(x)
            beside = torch.cat([signals[:, kept], torch.ones(len(x), 1)], dim=1)
            found = torch.linalg.lstsq(beside, signals @ net.down.weight.T).solution
            plain = made(96, seed, inputs=200)
            plain.down.weight.zero_()
            plain.down.weight[:, kept] = found[:-1].T
            plain.down.bias += found[-1]
        assert off(net, small) < 0.8 * off(net, plain)


@pytest.mark.parametrize("inputs", [200, 64, 12])
def test_what_others_tell_of_a_neuron_is_known_from_few_inputs(inputs: int) -> None:
    net = made(96, inputs=inputs)
    few, many = (
        net.signals(torch.randn(n, inputs, generator=torch.Generator().manual_seed(3))).detach().double()
        for n in (150, 100_000)
    )
    truth = unexplained_share(torch.cov(many.T), len(many))
    assert abs(unexplained_share(torch.cov(few.T), len(few)) - truth) < 0.25 * truth + 0.01
    assert unexplained_share(torch.cov(few.T), 100) == 0.5


def test_neurons_that_others_tell_all_of_are_taken_as_they_are_measured() -> None:
    net = made(96)  # of twelve inputs
    x = torch.randn(400, 12, generator=torch.Generator().manual_seed(1))
    statistics = measured_statistics(net, hope.inspect(net, x[:1]), [x], {})["down.weight"]
    plain = torch.cov(net.signals(x).detach().double().T, correction=0)
    assert float((statistics.covariance.double() - plain).norm() / plain.norm()) < 0.01
