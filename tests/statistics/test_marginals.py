"""Measured marginals against what forward hooks see, and capacities against Monte Carlo."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hope
from hope.statistics.marginals import measured_marginals
from tests.support import randomise

StoredStatistics = dict[str, list[Tensor]]


class Normalised(nn.Module):
    """A convolution, a normalisation or none, an in-place activation that is used twice, a hidden layer."""

    def __init__(self, norm: nn.Module, *, after: bool = False) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 6, 3, padding=1), norm
        self.act = nn.ReLU(inplace=True)
        self.second, self.last = nn.Conv2d(6, 5, 3), nn.Linear(5, 8)
        self.out, self.after = nn.Linear(8, 3), after

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        x = self.norm(self.act(x)) if self.after else self.act(self.norm(x))
        x = self.act(self.second(x)).mean((2, 3))
        return self.out(functional.gelu(self.last(x)))


NETS: dict[str, tuple[Callable[[], nn.Module], dict[str, str]]] = {
    # layer -> the module whose output is its signal before the activation
    "none": (lambda: Normalised(nn.Identity()), {"first": "norm", "second": "second", "last": "last"}),
    "groups": (
        lambda: Normalised(nn.GroupNorm(2, 6)),
        {"first": "norm", "second": "second", "last": "last"},
    ),
    "one group": (lambda: Normalised(nn.GroupNorm(1, 6)), {"second": "second", "last": "last"}),
    "layer": (lambda: Normalised(nn.LayerNorm([6, 8, 8])), {"second": "second", "last": "last"}),
    "instance": (
        lambda: Normalised(nn.InstanceNorm2d(6, affine=True)),
        {"first": "norm", "second": "second", "last": "last"},
    ),
    "bn": (lambda: Normalised(nn.BatchNorm2d(6)), {"first": "norm", "second": "second", "last": "last"}),
    "bn after": (
        lambda: Normalised(nn.BatchNorm2d(6), after=True),
        {"first": "first", "second": "second", "last": "last"},
    ),
}


def hooked(net: nn.Module, names: set[str], batches: list[Tensor]) -> dict[str, Tensor]:
    """Module -> all its outputs, copied before anything is done to them in place."""
    heard: StoredStatistics = {name: [] for name in names}
    for name in names:
        module = net.get_submodule(name)

        def keep(_: nn.Module, __: Any, out: Tensor, name: str = name) -> None:
            heard[name].append(out.clone().double())

        module.register_forward_hook(keep)
    with torch.no_grad():
        for batch in batches:
            net(batch)
    return {name: torch.cat(some) for name, some in heard.items()}


@pytest.mark.parametrize("key", NETS)
def test_marginals_are_what_hooks_see(key: str) -> None:
    make, signals = NETS[key]
    net = randomise(make()).eval()
    batches = [3 + 2 * torch.randn(n, 3, 8, 8) for n in (7, 7, 4)]
    anatomy = hope.inspect(net, batches[0][:1])
    assert {layer.name for layer in anatomy.layers} == signals.keys()
    found = measured_marginals(net, anatomy, batches)
    seen = hooked(net, set(signals.values()), batches)
    for layer in anatomy.layers:
        one = found[layer.name, layer.readers[0].weight]
        values = seen[signals[layer.name]].movedim(1, 0).flatten(1)
        assert one.mean == pytest.approx(values.mean(dim=1), rel=1e-5, abs=1e-6)
        assert one.spread == pytest.approx(values.std(dim=1, correction=0), rel=1e-5)
        assert one.tap.bn == ("norm" if key == "bn after" and layer.name == "first" else "")


def test_a_large_mean_does_not_swallow_a_small_deviation() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        net[0].bias.fill_(1e7)
    batches = [torch.randn(64, 3, dtype=torch.float64) for _ in range(4)]
    anatomy = hope.inspect(net, batches[0])
    found = measured_marginals(net, anatomy, batches)["0", "2.weight"]
    exact = torch.cat(batches) @ net[0].weight.T
    assert found.spread == pytest.approx(exact.std(dim=0, correction=0).detach(), rel=1e-6)


class Named(nn.Module):
    """Two inputs, given by name."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 6), nn.Linear(6, 2)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        return self.b(functional.relu(self.a(x) * scale))


def test_what_else_a_mask_brings_along_is_not_taken_for_the_signal() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(3)))
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            h = self.a(self.before(x))
            side = 0.0 if mask is None else (h + 100.0).mean() * 0.0
            return self.b(torch.relu(h + 0.1)) + side

    torch.manual_seed(0)
    model, x = Masked().eval(), torch.randn(64, 6)
    anatomy = hope.inspect(model, {"x": x[:2]})
    plain = measured_marginals(model, anatomy, [{"x": x}])
    try:
        found = measured_marginals(model, anatomy, [{"x": x, "mask": torch.ones(64)}])
    except hope.InvalidExample:
        return  # nothing, rather than something else
    for key, one in plain.items():
        torch.testing.assert_close(found[key].mean, one.mean)


def test_inputs_by_name_in_any_order() -> None:
    net = Named().eval()
    x, scale = torch.randn(9, 3), torch.full((9, 1), 3.0)
    anatomy = hope.inspect(net, {"x": x[:1], "scale": scale[:1]})
    (one,) = measured_marginals(net, anatomy, [{"scale": scale, "x": x}, {"x": x, "scale": scale}]).values()
    assert one.mean == pytest.approx((3 * net.a(x)).mean(dim=0).detach().double(), rel=1e-5)


# ---- capacities against Monte Carlo ------------------------------------------------------------------------


def empirical(net: nn.Module, reader: str, x: Tensor) -> Tensor:
    """‖w_out‖·√E z² of what a weight reads, over many inputs."""
    seen: list[Tensor] = []
    module = net.get_submodule(reader)
    handle = module.register_forward_pre_hook(lambda _, args: seen.append(args[0].detach().double()))
    with torch.no_grad():
        net(x)
    handle.remove()
    weight = module.get_parameter("weight").detach().double().movedim(1, 0).flatten(1)
    square = seen[0].movedim(1, 0).flatten(1).square().mean(dim=1)
    return (square * weight.square().sum(dim=1)).sqrt()


ACTIVATIONS = [nn.ReLU(), nn.LeakyReLU(0.2), nn.PReLU(6), nn.GELU(), nn.SiLU(), nn.Identity(), nn.Hardtanh()]


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("after", [False, True], ids=["plain", "bn after"])
def test_capacities_of_gaussian_signals_are_those_of_monte_carlo(activation: nn.Module, after: bool) -> None:
    torch.manual_seed(3)
    norm = nn.BatchNorm1d(6) if after else nn.Identity()
    net = randomise(nn.Sequential(nn.Linear(4, 6), activation, norm, nn.Linear(6, 5))).eval()
    x = torch.randn(200_000, 4)
    found = hope.capacities(net, x[:1], calibration=torch.split(x, 100_000))
    assert found["0"] == pytest.approx(empirical(net, "3", x), rel=0.01)


@pytest.mark.parametrize("norm", [nn.Identity(), nn.InstanceNorm2d(6, affine=True), nn.BatchNorm2d(6)])
def test_capacities_of_convolutions_are_those_of_monte_carlo(norm: nn.Module) -> None:
    torch.manual_seed(4)
    net = nn.Sequential(nn.Conv2d(3, 6, 1), norm, nn.ReLU(), nn.Conv2d(6, 4, 3, padding=1))
    net = randomise(net).eval()
    x = torch.randn(64, 3, 40, 40)
    found = hope.capacities(net, x[:1], calibration=[x[:32], x[32:]])
    assert found["0"] == pytest.approx(empirical(net, "3", x), rel=0.02)


def test_what_is_done_behind_the_activation_counts() -> None:
    """A learned scale and a second activation: energies are those of what the reader reads."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 6), nn.Linear(6, 3)
            self.scale = nn.Parameter(torch.linspace(0.1, 3, 6))

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.tanh(functional.relu(self.a(x))) * self.scale)

    net, x = Scaled().eval(), torch.randn(500, 4)
    assert hope.capacities(net, x[:1], calibration=[x])["a"] == pytest.approx(empirical(net, "b", x))


def test_measured_bns_say_what_their_own_statistics_say() -> None:
    """Where running statistics are those of the calibration inputs, nothing changes."""
    torch.manual_seed(5)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 7, 3), nn.BatchNorm2d(7), nn.ReLU(),
        nn.Conv2d(7, 2, 1),
    )  # fmt: skip
    batches = [torch.randn(32, 3, 12, 12) for _ in range(4)]
    net = hope.recalibrate_bn(randomise(net).eval(), batches)
    reported, heard = (hope.capacities(net, batches[0][:1], calibration=some) for some in (None, batches))
    assert reported.keys() == heard.keys() == {"0", "3"}
    for name in reported:
        assert heard[name] == pytest.approx(reported[name], rel=2e-3)
