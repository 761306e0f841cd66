"""Capacities read off real networks, against sampled signals."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.methods.pairs import PaperState
from hope.reasons import Reason
from tests.methods.layers import IMAGES, conv, energies, linear, outgoing, read, state_of
from tests.support import assert_same, randomise, run

ACTIVATIONS = [
    nn.ReLU(), nn.LeakyReLU(0.2), nn.LeakyReLU(-0.3), nn.PReLU(7), nn.PReLU(), nn.Identity(),
    nn.SiLU(), nn.GELU(), nn.ReLU6(), nn.Hardswish(), nn.ELU(),
    pytest.param(nn.ELU(0.2), id="ELU(0.2)"), pytest.param(nn.CELU(0.3), id="CELU(0.3)"),
]  # fmt: skip


@pytest.mark.parametrize("activation", ACTIVATIONS, ids=str)
@pytest.mark.parametrize("make", [conv, linear])
def test_capacity_is_the_norm_of_the_neurons_function(make: Callable[..., nn.Sequential], activation) -> None:
    net = make(copy.deepcopy(activation).double())
    want = (energies(net[4], net[5]) * outgoing(net[6].weight).square().sum(dim=1)).sqrt()
    assert state_of(net).capacities.numpy() == pytest.approx(want.numpy(), rel=0.01)


def test_eps_is_part_of_the_signal() -> None:
    """With σ² as small as ε the signal is quieter than γ says, by √(σ²/(σ² + ε))."""
    net = conv()
    with torch.no_grad():
        net[4].running_var.fill_(net[4].eps)
    state = state_of(net)
    assert torch.allclose(state.spread, net[4].weight.abs().detach() / 2**0.5, rtol=1e-12)
    want = (energies(net[4], net[5]) * outgoing(net[6].weight).square().sum(dim=1)).sqrt()
    assert state.capacities.numpy() == pytest.approx(want.numpy(), rel=0.01)
    net[4].eps = 0.0
    assert (state_of(net).capacities != state.capacities).all()


class Readers(nn.Module):
    """One layer, three readers: a convolution, a transposed one, and a linear layer behind a flattening."""

    def __init__(self) -> None:
        super().__init__()
        self.filter, self.bn = nn.Conv2d(3, 5, 3, padding=1), nn.BatchNorm2d(5)
        self.one, self.two, self.three = nn.Conv2d(5, 4, 3), nn.ConvTranspose2d(5, 3, 2), nn.Linear(5 * 36, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        x = torch.relu(self.bn(self.filter(x)))
        return self.one(x), self.two(x), self.three(x.flatten(1))


def test_outgoing_weights_of_all_readers_count() -> None:
    net = randomise(Readers().double()).eval()
    state = state_of(net, "filter", IMAGES)
    flat = net.three.weight.reshape(2, 5, 36)
    outs = outgoing(net.one.weight, net.two.weight.transpose(0, 1), flat)
    assert state.outer.numpy() == pytest.approx((outs @ outs.T).numpy(), abs=1e-12)
    want = (energies(net.bn, torch.relu) * outs.square().sum(dim=1)).sqrt()
    assert state.capacities.numpy() == pytest.approx(want.numpy(), rel=0.01)
    assert state.release == 27 + 1 + 4 + 4 * 9 + 3 * 4 + 2 * 36


class Scaled(nn.Module):
    """A scale per channel between activation and reader."""

    def __init__(self) -> None:
        super().__init__()
        self.filter, self.bn, self.reader = nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.Conv2d(5, 2, 2)
        self.scale = nn.Parameter(torch.ones(5, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return self.reader(torch.relu(self.bn(self.filter(x))) * self.scale)


def test_a_scale_behind_the_activation_counts_like_outgoing_weights() -> None:
    """Moving it into the reader changes no output, so it changes no capacity (if the layer has one)."""
    net = randomise(Scaled().double()).eval()
    moved = copy.deepcopy(net)
    with torch.no_grad():
        moved.reader.weight *= net.scale[None]
        moved.scale.fill_(1)
    assert_same(run(moved, IMAGES), run(net, IMAGES), 1e-12)
    anatomy = hope.inspect(net, IMAGES)
    one, two = (read(x, anatomy, "filter") for x in (net, moved))
    if isinstance(one, PaperState) and isinstance(two, PaperState):
        assert torch.allclose(one.capacities, two.capacities, rtol=1e-9)
    else:
        assert isinstance(one, Reason)
        assert isinstance(two, Reason)


class TrainingHead(nn.Module):
    """A head that only training uses, as in GoogLeNet."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.out = nn.Conv2d(3, 4, 1), nn.Conv2d(4, 2, 1)
        self.aux, self.bn, self.more = nn.Conv2d(4, 6, 1), nn.BatchNorm2d(6, eps=1e-2), nn.Conv2d(6, 2, 1)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = torch.relu(self.stem(x))
        if self.training:
            return self.out(x), self.more(torch.relu(self.bn(self.aux(x))))
        return self.out(x)


def test_neurons_of_a_head_that_only_training_uses_have_capacities() -> None:
    net = randomise(TrainingHead().double()).eval()
    want = (energies(net.bn, torch.relu) * outgoing(net.more.weight).square().sum(dim=1)).sqrt()
    found = hope.capacities(net, IMAGES)["aux"]
    assert found.numpy() == pytest.approx(want.detach().numpy(), rel=0.01)


@pytest.mark.parametrize("hidden", [4, 9])  # 4: as many neurons as there are channels, and slopes
def test_neurons_with_a_slope_per_channel_that_they_mix_have_no_capacity(hidden: int) -> None:
    class Mixer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.act, self.last = nn.Linear(5, hidden), nn.PReLU(4), nn.Linear(hidden, 5)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.act(self.first(x)))  # type: ignore[no-any-return]

    net = Mixer().eval()
    inputs = [torch.randn(32, 4, 5)]
    with pytest.raises(hope.errors.InvalidExample, match="activations whose moments are not known"):
        hope.capacities(net, inputs[0], calibration=inputs)
    net.act = nn.PReLU()
    assert hope.capacities(net, inputs[0], calibration=inputs)["first"].shape == (hidden,)
