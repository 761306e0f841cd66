"""Stand-ins: networks in the statistics of the inputs that they are shown."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import hope
from hope.rewrite.refit import refit_layers
from hope.statistics.bn_recalibration import recalibrated_copy, transfer_bn_stats


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.bn = nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.inner, self.mid = nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.conv, self.norm = nn.Conv2d(8, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.head = nn.Linear(6, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.bn(self.stem(x)).relu()
        x = (x + self.norm(self.conv(self.mid(self.inner(x)).relu()))).relu()
        return self.head(x.mean(dim=(2, 3)))


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    net = Residual().eval()
    for bn in (net.bn, net.mid, net.norm):
        bn.running_mean.normal_()
        bn.running_var.uniform_(0.5, 2.0)
        nn.init.normal_(bn.weight, 1.0, 0.3)
        nn.init.normal_(bn.bias)
    return net


def test_the_statistics_are_those_of_all_batches_layer_after_layer() -> None:
    net, x = network(), 3 * torch.randn(640, 3, 8, 8) + 1
    stand = recalibrated_copy(net, list(x.split(200)), synthetic=True)
    heard: dict[str, torch.Tensor] = {}
    for name in ("bn", "mid", "norm"):
        stand.get_submodule(name).register_forward_hook(lambda _m, _i, out, n=name: heard.update({n: out}))
    stand(x)
    for name in ("bn", "mid", "norm"):  # as in training mode on one batch, but for one sample in 10,000
        bn = net.get_submodule(name)
        torch.testing.assert_close(heard[name].mean(dim=(0, 2, 3)), bn.bias, atol=2e-3, rtol=0)
        torch.testing.assert_close(heard[name].std(dim=(0, 2, 3)), bn.weight.abs(), atol=2e-3, rtol=0)
    assert torch.equal(net.norm.running_mean, network().norm.running_mean)  # the original is as it was


def test_what_a_bn_remembers_counts_as_one_more_input() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).eval()
    nn.init.constant_(net[1].running_mean, 5.0)
    nn.init.constant_(net[1].running_var, 9.0)
    stand = recalibrated_copy(net, [torch.ones(1, 2)], synthetic=True)
    said = net[0](torch.ones(1, 2))[0]
    torch.testing.assert_close(stand[1].running_mean, (said + 5) / 2)
    torch.testing.assert_close(stand[1].running_var, torch.full((3,), 4.5))


def test_carried_there_and_back_is_where_it_was() -> None:
    net, x = network(), torch.randn(64, 3, 8, 8)
    stand, left = recalibrated_copy(net, [x]), torch.tensor([0, 2, 5])
    small = hope.cut(net, hope.inspect(net, x[:1]), [])
    for bn in (small.bn, small.norm):
        bn.running_mean = bn.running_mean[left] + torch.tensor([0.0, 0.5, -1.0])
        bn.running_var = bn.running_var[left] * torch.tensor([1.0, 0.5, 3.0])
    rows = {"bn.running_mean": left, "norm.running_mean": left}
    before = {name: value.clone() for name, value in small.named_buffers()}
    transfer_bn_stats(small, net, stand, rows)
    torch.testing.assert_close(
        small.bn.running_mean - stand.bn.running_mean[left], torch.tensor([0, 0.5, -1])
    )
    torch.testing.assert_close(
        small.norm.running_var / stand.norm.running_var[left], torch.tensor([1, 0.5, 3])
    )
    assert small.bn.running_mean[0] == stand.bn.running_mean[0]  # to the bit, where nothing sets them apart
    transfer_bn_stats(small, stand, net, rows)
    for name, value in small.named_buffers():
        torch.testing.assert_close(value, before[name])
    assert small.norm.running_var[0] == net.norm.running_var[0]


def test_inputs_of_another_scale_lead_to_the_same_network() -> None:
    """What a stand-in learns does not depend on the scale of what it is shown."""
    net, x = network(), torch.randn(256, 3, 8, 8)
    nn.init.zeros_(net.stem.bias)
    nn.init.zeros_(net.bn.running_mean)
    small = hope.cut(net, hope.inspect(net, x[:1]), [hope.Prune("inner", [1, 4])])
    fitted = [copy.deepcopy(small) for _ in range(2)]
    rows = {"inner.weight": torch.tensor([0, 2, 3, 5, 6, 7])}
    for one, scale in zip(fitted, (1.0, 20.0), strict=True):
        refit_layers(net, one, [scale * x], lambda _: rows, synthetic=True, progress=False)
    assert not torch.allclose(fitted[0].conv.weight, small.conv.weight, atol=1e-2)
    for a, b in zip(*(net.parameters() for net in fitted), strict=True):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=2e-3)


def test_bad_batches_are_refused_in_words() -> None:
    net = network()
    with pytest.raises(hope.InvalidExample, match="batch 1 must have finite entries"):
        recalibrated_copy(net, [torch.zeros(2, 3, 8, 8), torch.full((2, 3, 8, 8), float("nan"))])
    with pytest.raises(hope.InvalidExample, match="that the model runs on, got batch 0"):
        recalibrated_copy(net, [torch.zeros(2, 5, 8, 8)])


def test_of_what_a_users_inputs_differ_by_the_part_that_chance_explains_is_taken_over() -> None:
    net, x = nn.Sequential(nn.Linear(4, 50), nn.BatchNorm1d(50)).eval(), torch.randn(20_000, 4)
    with torch.no_grad():
        said = net[0](x)
    net[1].running_mean.copy_(said.mean(dim=0))
    net[1].running_var.copy_(said.var(dim=0))
    few = recalibrated_copy(net, [x[:16]])
    near = said[:16].mean(dim=0) - net[1].running_mean
    assert (few[1].running_mean - net[1].running_mean).norm() > 0.5 * near.norm()  # by chance: nearly all
    shifted = recalibrated_copy(net, [x[:2000] + 3.0])
    far = net[0](x[:2000] + 3.0).mean(dim=0) - net[1].running_mean
    assert (shifted[1].running_mean - net[1].running_mean).norm() < 0.01 * far.norm()  # for a reason: hardly
