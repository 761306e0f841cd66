"""Few inputs and no BN: what was measured is held against neurons that have nothing in common."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import hope
from hope.signals.measure import apart, measured_intakes


class Mlp(nn.Module):
    """Two layers behind a mixing one: neurons that others tell something of, none of them all."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.act, self.down = nn.Linear(12, width), nn.SiLU(), nn.Linear(width, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.act(self.up(x)))


def made(width: int, seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return Mlp(width).eval()


def off(net: nn.Module, small: nn.Module) -> float:
    """The squared error on inputs that nobody has seen, as a share of the answers' variance."""
    x = torch.randn(4000, 12, generator=torch.Generator().manual_seed(99))
    with torch.no_grad():
        full, less = net(x), small(x)
    return float((less - full).square().sum() / (full - full.mean(dim=0)).square().sum())


def test_what_is_not_trusted_is_taken_to_be_independent() -> None:
    net, x = made(10), torch.randn(30, 12, generator=torch.Generator().manual_seed(1))
    intake = measured_intakes(net, hope.inspect(net, x[:1]), [x[:20], x[20:]], {})["down.weight"]
    with torch.no_grad():
        read = net.act(net.up(x)).double()
    plain = torch.cov(read.T, correction=0)
    wanted = 0.75 * plain + 0.25 * plain.diagonal().diag()  # 30 inputs beside one per channel
    torch.testing.assert_close(intake.covariance.double(), wanted, rtol=1e-4, atol=1e-7)
    torch.testing.assert_close(intake.mean.double(), read.mean(dim=0), rtol=1e-4, atol=1e-7)


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


def test_twins_are_absorbed_without_a_trace_however_few_inputs_there_are() -> None:
    net, x = made(16), torch.randn(9, 12, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        net.up.weight[8:], net.up.bias[8:] = net.up.weight[:8], net.up.bias[:8]
    small = hope.encode(net, x[:1], density=0.5, method=hope.Absorb(calibration=[x]), progress=False).model
    assert small.up.out_features == 8
    assert off(net, small) < 1e-5  # covariances are ridged a little


def test_with_fewer_inputs_than_neurons_less_goes_wrong_than_by_plain_moments() -> None:
    for seed in range(3):
        net = made(96, seed)
        x = torch.randn(110, 12, generator=torch.Generator().manual_seed(seed))
        small = hope.encode(
            net, x[:1], density=0.6, method=hope.Absorb(calibration=[x]), progress=False
        ).model
        kept = [int((net.up.weight == row).all(dim=1).nonzero()[0]) for row in small.up.weight]
        with torch.no_grad():
            signals = net.act(net.up(x))
            beside = torch.cat([signals[:, kept], torch.ones(len(x), 1)], dim=1)
            found = torch.linalg.lstsq(beside, signals @ net.down.weight.T).solution
            plain = made(96, seed)
            plain.down.weight.zero_()
            plain.down.weight[:, kept] = found[:-1].T
            plain.down.bias += found[-1]
        assert off(net, small) < 0.8 * off(net, plain)
