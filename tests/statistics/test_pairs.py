"""Two networks followed together: against sampled signals, and what must hold of any two."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hope
from hope.evaluate.closed import ClosedForm, correlation
from hope.rewrite.apply import outcome
from hope.statistics.propagated import Propagated
from hope.trace.capture import capture
from hope.trace.program import read_program
from tests.statistics.test_propagate import Mlp, measured, settled
from tests.support import randomise


def tensors(net: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach() for name, t in [*net.named_parameters(), *net.named_buffers()]}


def together(net: nn.Module, beside: Mapping[str, Tensor], example: Tensor) -> Propagated:
    return Propagated(read_program(capture(net, example)), tensors(net), beside=beside)


def changed(net: nn.Module, seed: int, amount: float = 0.5) -> nn.Module:
    """A copy with other weights and other BN numbers."""
    other = hope.cut(net, hope.inspect(net, torch.zeros(2, 6)), [])
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter += amount * parameter.std() * torch.randn(parameter.shape, generator=generator)
    return other


@pytest.mark.parametrize("seed", range(3))
def test_behind_one_layer_the_closed_forms_are_exact(seed: int) -> None:
    """What the stem computes of Gaussian inputs is jointly Gaussian over both networks."""
    x = torch.randn(200_000, 6, generator=torch.Generator().manual_seed(seed))
    net = settled(Mlp(), x, seed)
    other = changed(net, seed)
    signal = together(net, tensors(other), x[:2]).readings["a.weight"].signal
    both = torch.stack([measured(net, x, "a"), measured(other, x, "a")], dim=2).flatten(1)
    assert torch.allclose(signal.mean, both.mean(dim=0), atol=0.01)
    assert torch.allclose(signal.covariance, torch.cov(both.T), atol=0.02)
    apart = signal.covariance[::2, 1::2] - signal.covariance[::2, ::2]
    assert float(apart.abs().max()) > 0.1  # the two differ by much more than is allowed for


def test_further_on_they_are_near() -> None:
    x = torch.randn(40_000, 6, generator=torch.Generator().manual_seed(7))
    net = settled(Mlp(), x, 7)
    other = changed(net, 7, amount=0.3)
    found = together(net, tensors(other), x[:2])
    for module in ("b", "c", "head"):
        signal = found.readings[f"{module}.weight"].signal
        both = torch.stack([measured(net, x, module), measured(other, x, module)], dim=2).flatten(1)
        real = torch.cov(both.T)
        for a, b in ((0, 1), (1, 1)):
            told, said = signal.covariance[a::2, b::2], real[a::2, b::2]
            shape = torch.stack([told.flatten(), said.flatten()])
            assert float(torch.corrcoef(shape)[0, 1]) > (0.75 if module == "head" else 0.9), (module, a, b)
            assert float(told.trace() / said.trace()) == pytest.approx(1, abs=0.25), (module, a, b)


class Many(nn.Module):
    """Padded channels, a depthwise convolution with several outputs each, a gate, slopes, a concatenation, a
    part of the channels.
    """

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.SiLU())
        self.dw = nn.Sequential(nn.Conv2d(8, 16, 3, groups=8), nn.BatchNorm2d(16), nn.ReLU6())
        self.gp = nn.Sequential(nn.Conv2d(16, 12, 1, groups=2), nn.BatchNorm2d(12), nn.LeakyReLU(0.1))
        self.gate = nn.Linear(12, 12)
        self.b = nn.Sequential(nn.Conv2d(12, 16, 1), nn.BatchNorm2d(16), nn.PReLU(16))
        self.head = nn.Linear(25 * 9, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.max_pool2d(self.a(x), 2)
        x = self.gp(self.dw(x))
        x = x * torch.sigmoid(self.gate(x.mean((2, 3))))[:, :, None, None]
        x = torch.cat([functional.pad(self.b(x), (0, 0, 0, 0, 2, 1)), x[:, ::2]], dim=1)
        return self.head(functional.adaptive_avg_pool2d(x, 3).flatten(1))  # type: ignore[no-any-return]


def test_a_network_beside_itself_is_the_same_twice() -> None:
    """Whatever the operator: no signal of the second differs from the first's, which is that of one alone."""
    net, x = settled(Many(), torch.randn(32, 3, 12, 12), 0), torch.zeros(1, 3, 12, 12)
    with torch.no_grad():
        net.b[2].weight.copy_(torch.linspace(-0.3, 0.6, 16))  # type: ignore[index, union-attr, operator]
    alone = Propagated(read_program(capture(net, x)), tensors(net))
    both = together(net, tensors(net), x)
    for one, two in zip(alone.signals, both.signals, strict=True):
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            for a in (0, 1):
                assert torch.allclose(two.mean[a::2], one.mean, atol=1e-9)
                for b in (
                    (0, 1) if one is not alone.signals[-2] else ()
                ):  # of the last, one alone has variances
                    assert torch.allclose(two.covariance[a::2, b::2], one.covariance, atol=1e-5)


def test_channels_of_the_second_network_stay_its_own() -> None:
    """Silencing a channel of the second network's first layer shows in that channel alone, and in no signal
    of the first.
    """
    net, x = settled(Many(), torch.randn(32, 3, 12, 12), 0), torch.zeros(1, 3, 12, 12)
    beside = {name: t.clone() for name, t in tensors(net).items()}
    beside["a.0.weight"][5] = 0
    beside["a.0.bias"][5] = beside["a.1.running_mean"][5]
    found = together(net, beside, x)
    behind = next(
        signal
        for form, signal in zip(found.forms, found.signals, strict=True)
        if form is not None and form.operation.operator == "silu"
    )
    assert behind is not None
    variance = behind.covariance.diagonal()
    assert float(variance[11]) == 0
    assert float(variance[10]) > 0
    same = [k for k in range(16) if k not in (10, 11)]
    assert torch.allclose(variance[same][::2], variance[same][1::2], atol=1e-9)


class Residual(nn.Module):
    """Two blocks on a stream of Gaussian inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.n0 = nn.Linear(24, 48), nn.BatchNorm1d(48)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Linear(48, 40), nn.BatchNorm1d(40), nn.ReLU(), nn.Linear(40, 48), nn.BatchNorm1d(48)
            )
            for _ in range(2)
        )
        self.head = nn.Linear(48, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.n0(self.stem(x)).relu()
        for block in self.blocks:
            x = (x + block(x)).relu()
        return self.head(x)  # type: ignore[no-any-return]


def sampled(net: nn.Module, small: nn.Module, x: Tensor) -> float:
    with torch.no_grad():
        both = torch.stack([net(x), small(x)], dim=2).flatten(1).double()
    return correlation(torch.cov(both.T))


@pytest.mark.parametrize("evict", [False, True])
def test_the_closed_form_fidelity_is_that_of_sampled_answers(evict: bool) -> None:
    x = torch.randn(20_000, 24, generator=torch.Generator().manual_seed(3))
    net = settled(Residual(), x, 3)
    anatomy = hope.inspect(net, x[:2])
    block = anatomy.blocks[1]
    bias = tuple(net.blocks[1][4].bias.tolist()) if block.bias else None  # type: ignore[index, union-attr]
    second = hope.Evict(block.name, bias) if evict else hope.Prune("blocks.1.0", list(range(12)))
    steps = [hope.Prune("blocks.0.0", list(range(15, 35))), second]
    small = hope.cut(net, anatomy, steps)
    told = hope.fidelity(net, small, x[:2], closed_form=True)
    assert told == ClosedForm(net, anatomy)(small, outcome(anatomy, steps))
    real = sampled(net, small, x)
    assert real - 0.12 < told < real + 0.02  # errors are taken as more than they are, never as less


def test_what_is_left_is_found_or_asked_for() -> None:
    x = torch.randn(64, 24)
    net = settled(Residual(), x, 3)
    small = hope.cut(net, hope.inspect(net, x), [hope.Prune("blocks.0.0", [1, 4])])
    with torch.no_grad():
        for tensor in [*small.blocks[0].parameters(), *small.blocks[0].buffers()]:  # type: ignore[index, union-attr]
            if tensor.is_floating_point():
                tensor *= 1.01
    with pytest.raises(hope.InvalidAction, match=r"which outputs of blocks\.0\.0 are left"):
        hope.fidelity(net, small, x, closed_form=True)
    left = [k for k in range(40) if k not in (1, 4)]
    assert hope.fidelity(net, small, x, closed_form=True, kept={"blocks.0.0": left}) > 0.5
    with pytest.raises(hope.InvalidAction, match="another order"):
        hope.fidelity(net, small, x, closed_form=True, kept={"blocks.0.0": left[::-1]})


def test_other_networks_and_other_names_are_refused() -> None:
    x = torch.randn(64, 24)
    net = settled(Residual(), x, 3)
    with pytest.raises(hope.InvalidAction, match=r"kept names 'nobody'"):
        hope.fidelity(net, net, x, closed_form=True, kept={"nobody": [0]})
    wide = settled(Residual(), x, 4)
    wide.head = nn.Linear(48, 7)
    with pytest.raises(hope.InvalidAction, match=r"head\.weight"):
        hope.fidelity(net, wide, x, closed_form=True)


def test_a_network_that_cannot_be_followed_says_so() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(6, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            return torch.sort(self.b(torch.relu(self.a(x))), dim=1).values

    net = randomise(Odd()).eval()
    with pytest.raises(hope.UnsupportedModel, match="no closed form"):
        hope.fidelity(net, net, torch.zeros(2, 6), closed_form=True)
