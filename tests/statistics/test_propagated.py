"""The propagated surrogate: against sampled signals, its invariances, and where it gives up."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hope
from hope.statistics.propagated import Propagated
from hope.trace.capture import capture
from hope.trace.program import read_program
from tests.support import randomise


class Mlp(nn.Module):
    """A residual network without space, whose inputs are exactly as the surrogate takes them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn0 = nn.Linear(6, 10), nn.BatchNorm1d(10)
        self.a, self.bn1 = nn.Linear(10, 14), nn.BatchNorm1d(14)
        self.b, self.bn2 = nn.Linear(14, 10), nn.BatchNorm1d(10)
        self.c, self.bn3 = nn.Linear(24, 8), nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn0(self.stem(x)))
        inner = torch.relu(self.bn1(self.a(x)))
        x = torch.relu(self.bn2(self.b(inner)) + x)
        x = torch.relu(self.bn3(self.c(torch.cat([x, inner], dim=1))))
        return self.head(x)  # type: ignore[no-any-return]


def settled(net: nn.Module, x: Tensor, seed: int) -> nn.Module:
    randomise(net, seed)
    net.train()
    for bn in (m for m in net.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm)):
        bn.reset_running_stats()
        bn.momentum = None
    with torch.no_grad():
        net(x)
    return net.eval()


def follow(net: nn.Module, example: Tensor, **options: bool) -> Propagated:
    tensors = {n: t.detach() for n, t in [*net.named_parameters(), *net.named_buffers()]}
    return Propagated(read_program(capture(net, example)), tensors, **options)


def measured(net: nn.Module, x: Tensor, module: str) -> Tensor:
    seen: list[Tensor] = []
    handle = net.get_submodule(module).register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    with torch.no_grad():
        net(x)
    handle.remove()
    return seen[0].double()


def correlations(covariance: Tensor) -> Tensor:
    scale = covariance.diagonal().clamp(min=1e-12).sqrt()
    rho = covariance / torch.outer(scale, scale)
    return rho[tuple(torch.triu_indices(len(rho), len(rho), 1))]


@pytest.mark.parametrize("seed", range(3))
def test_moments_are_those_of_sampled_signals(seed: int) -> None:
    x = torch.randn(40_000, 6, generator=torch.Generator().manual_seed(seed))
    net = settled(Mlp(), x, seed)
    found = follow(net, x[:2])
    alone = follow(net, x[:2], crosses=False)
    for module, least in (("a", 0.999), ("b", 0.85), ("c", 0.8), ("head", 0.5)):
        signal = found.readings[f"{module}.weight"].signal
        real = measured(net, x, module)
        scale = float(real.std(dim=0).mean())
        assert float((signal.mean - real.mean(dim=0)).abs().mean()) < 0.12 * scale, module
        both = torch.stack([correlations(signal.covariance), correlations(torch.cov(real.T))])
        assert float(torch.corrcoef(both)[0, 1]) > least, module
    real = correlations(torch.cov(measured(net, x, "c").T))
    errors = [
        float((correlations(s.readings["c.weight"].signal.covariance) - real).norm()) for s in (found, alone)
    ]
    assert errors[0] < 0.7 * errors[1]  # what a branch has in common with its skip matters


def test_rescaling_the_layer_before_changes_nothing() -> None:
    """λ and 1/λ across a neuron of the layer before: the paper's isotropic prior feels it, this does not."""
    x = torch.randn(20_000, 6, generator=torch.Generator().manual_seed(5))
    net = settled(Mlp(), x, 5)
    before = follow(net, x[:2]).readings["b.weight"].signal
    with torch.no_grad():
        factor = torch.linspace(0.2, 5, 10)
        net.bn0.weight *= factor  # type: ignore[union-attr, operator]
        net.bn0.bias *= factor  # type: ignore[union-attr, operator]
        net.a.weight /= factor  # type: ignore[union-attr, operator]
    after = follow(net, x[:2]).readings["b.weight"].signal
    assert torch.allclose(before.covariance, after.covariance, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("q", [0.2, 0.5, 0.8])
def test_the_checkpoint_tells_how_neighbours_relate(q: float) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(4, 40, 3, bias=False), nn.BatchNorm2d(40), nn.ReLU()).eval()
    grid = torch.stack(torch.meshgrid(torch.arange(3), torch.arange(3), indexing="ij"), -1).reshape(9, 2)
    taps = q ** torch.cdist(grid.double(), grid.double())
    weight = net[0].weight.detach().double().flatten(2)  # type: ignore[union-attr, operator]
    variance = torch.einsum("oit,ts,ois->o", weight, taps, weight)
    net[1].running_var.copy_(variance)  # type: ignore[union-attr, operator]
    assert follow(net, torch.zeros(1, 4, 8, 8)).readings["0.weight"].decay == pytest.approx(q)


def test_what_cannot_be_followed_falls_back_and_is_reported() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
            self.two = nn.Sequential(nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.ReLU())
            self.head = nn.Conv2d(8, 2, 1)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.two(torch.sort(self.one(x), dim=2).values))  # type: ignore[no-any-return]

    net = settled(Odd(), torch.randn(32, 3, 12, 12), 0)
    closed = hope.Absorb(calibration=None)
    encoding = hope.encode(net, torch.zeros(1, 3, 12, 12), steps=2, method=closed)
    assert {step.name for step in encoding.trajectory} == {"two.0"}
    assert "taken pair by pair instead: the inputs of two.1" in str(encoding)


def test_pools_pads_gates_and_groups_are_followed() -> None:
    class Many(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU())
            self.dw = nn.Sequential(nn.Conv2d(8, 8, 3, groups=8), nn.BatchNorm2d(8), nn.ReLU6())
            self.gp = nn.Sequential(nn.Conv2d(8, 12, 1, groups=2), nn.BatchNorm2d(12), nn.LeakyReLU(0.1))
            self.gate = nn.Linear(12, 12)
            self.b = nn.Sequential(nn.Conv2d(12, 16, 1), nn.BatchNorm2d(16), nn.PReLU(16))
            self.head = nn.Linear(20 * 9, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = functional.max_pool2d(self.a(x), 2)
            x = self.gp(self.dw(x))
            x = x * torch.sigmoid(self.gate(x.mean((2, 3))))[:, :, None, None]
            x = functional.pad(self.b(x), (0, 0, 0, 0, 2, 2))
            return self.head(functional.adaptive_avg_pool2d(x, 3).flatten(1))  # type: ignore[no-any-return]

    net = settled(Many(), torch.randn(32, 3, 12, 12), 0)
    found = follow(net, torch.zeros(1, 3, 12, 12))
    forms = [
        (form, signal) for form, signal in zip(found.forms, found.signals, strict=True) if form is not None
    ]
    assert [form.operation.name for form, signal in forms if signal is None] == []
    signal = found.readings["head.weight"].signal
    assert signal.repeat == 9
    assert len(signal.mean) == 20
    assert float(signal.covariance[:2].abs().max()) == 0
    assert all(torch.isfinite(s.covariance).all() for s in found.signals if s is not None)
