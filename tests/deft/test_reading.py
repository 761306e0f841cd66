"""What DEFT reads off a network: all its units, whoever read them, and each BN's own epsilon."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.deft import Partition
from hope.storage.run import read_run
from tests.deft.nets import Residual, images, made


class Written(nn.Module):
    """A width that stands in the code, and a block that cannot be evicted: its code asks its last layer."""

    def __init__(self) -> None:
        super().__init__()
        self.free, self.bn1 = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.fixed, self.bn2 = nn.Conv2d(8, 12, 3, padding=1), nn.BatchNorm2d(12)
        self.inner, self.bn3 = nn.Conv2d(12, 6, 1), nn.BatchNorm2d(6)
        self.outer, self.bn4 = nn.Conv2d(6, 10, 1), nn.BatchNorm2d(10)
        self.skip, self.bn5 = nn.Conv2d(12, 10, 1), nn.BatchNorm2d(10)
        self.head = nn.Linear(10, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn2(self.fixed(torch.relu(self.bn1(self.free(x))))))
        x = x.view(x.shape[0], 12, 8, 8)
        branch = self.bn4(self.outer(torch.relu(self.bn3(self.inner(x)))))
        branch = branch[:, : self.outer.out_channels]
        return self.head(torch.relu(self.bn5(self.skip(x)) + branch).mean((2, 3)))


def facts(part: Partition) -> dict[str, object]:
    """All that a partition says, beyond the anatomy itself."""
    return {
        **{name: value for name, value in vars(part).items() if name not in ("anatomy", "bounds")},
        "bounds": asdict(part.bounds),
        "masks": (part.frozen, part.severed, part.head_columns),
    }


def assert_same(one: object, other: object) -> None:
    if isinstance(one, Tensor):
        assert isinstance(other, Tensor)
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert isinstance(other, dict)
        assert list(one) == list(other)
        for name, value in one.items():
            assert_same(value, other[name])
    elif isinstance(one, (tuple, list)):
        assert isinstance(other, (tuple, list))
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            assert_same(a, b)
    else:
        assert one == other


@pytest.mark.parametrize("make", [Written, Residual])
@pytest.mark.parametrize("by", ["prune-cost", "capacity"])
def test_an_inspected_anatomy_gives_the_same_partition(make: type[nn.Module], by: str) -> None:
    net = made(make())
    anatomy = hope.inspect(net, images(2))
    own = hope.deft.partition(net, images(2), percentile=50, by=by)
    given = hope.deft.partition(net, images(2), percentile=50, by=by, anatomy=anatomy)
    assert own.core["fixed" if make is Written else "stem.0"].any()
    assert_same(facts(own), facts(given))


def test_a_layer_of_a_fixed_width_is_a_unit_that_the_encoder_leaves_alone() -> None:
    net = made(Written())
    anatomy = hope.inspect(net, images(2))
    assert [one.kind for one in anatomy.skipped if one.name == "fixed"] == ["layer"]
    assert anatomy.unit("fixed").fixed is not None
    assert "fixed" not in [layer.name for layer in anatomy.layers]
    with pytest.raises(hope.InvalidAction, match="got 'fixed'"):
        hope.cut(net, anatomy, [hope.Prune("fixed", [0])])
    encoding = hope.encode(net, images(2), density=0.5, anatomy=anatomy)
    assert encoding.model.get_submodule("fixed").out_channels == 12
    part = hope.deft.partition(net, images(2), percentile=50, anatomy=anatomy)
    assert 0 < int(part.core["fixed"].sum()) < 12
    tuning = hope.deft.prepare(net, part, head=4)
    assert tuple(tuning.model(images()).shape) == (8, 4)


def test_a_saved_run_knows_which_widths_are_fixed(tmp_path: Path) -> None:
    net = made(Written())
    encoding = hope.encode(net, images(2), density=0.5)
    again = read_run(encoding.save(tmp_path)).anatomy
    assert [unit.name for unit in again.units] == [unit.name for unit in encoding.anatomy.units]
    assert [layer.name for layer in again.layers] == ["free", "inner"]
    assert again.size() == encoding.anatomy.size()


class Wavy(nn.Module):
    """A stream behind a function whose moments are not known: what its BNs write has to do."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.left, self.bn1 = nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8, eps=eps)
        self.right, self.bn2 = nn.Conv2d(3, 8, 1), nn.BatchNorm2d(8, eps=eps)
        self.inner, self.bn3 = nn.Conv2d(8, 6, 1), nn.BatchNorm2d(6, eps=eps)
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sin(self.bn1(self.left(x)) + self.bn2(self.right(x)))
        return self.head(torch.relu(self.bn3(self.inner(x))).mean((2, 3)))


def _squares(weight: Tensor) -> Tensor:
    """‖W_c‖² of what reads each channel."""
    return weight.detach().double().square().flatten(2).sum(2).sum(0)


@pytest.mark.parametrize("eps", [1e-5, 0.1, 1.0])
def test_energies_of_streams_and_layers_are_those_of_each_bns_own_epsilon(eps: float) -> None:
    net = made(Wavy(eps))
    spread, shift = {}, {}
    for name in ("bn1", "bn2", "bn3"):
        bn = net.get_submodule(name)
        shift[name] = bn.bias.detach().double()
        spread[name] = (bn.weight**2 * bn.running_var / (bn.running_var + eps)).detach().double().sqrt()
    part = hope.deft.partition(net, images(2), merge=False)
    written = sum(spread[name] ** 2 + shift[name] ** 2 for name in ("bn1", "bn2"))
    stream = (_squares(net.get_parameter("inner.weight")) * written).sqrt()
    torch.testing.assert_close(part.capacities["left"], stream, rtol=1e-6, atol=0)
    normal, at = torch.distributions.Normal(0.0, 1.0), shift["bn3"] / spread["bn3"]
    energy = (shift["bn3"] ** 2 + spread["bn3"] ** 2) * normal.cdf(at)
    energy += shift["bn3"] * spread["bn3"] * normal.log_prob(at).exp()
    layer = (net.get_parameter("head.weight").detach().double().square().sum(0) * energy).sqrt()
    torch.testing.assert_close(part.capacities["inner"], layer, rtol=1e-6, atol=0)


def test_a_table_names_five_of_what_is_core_as_a_whole() -> None:
    blocks = [(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.ReLU()) for _ in range(8)]
    net = made(nn.Sequential(*(module for block in blocks for module in block), nn.Linear(6, 3)))
    for count, words in ((5, "0, 12, 3, 6, 9"), (6, "0, 12, 15, 3, 6 and 1 more")):
        core = [str(3 * k) for k in range(count)]
        lines = str(hope.deft.partition(net, torch.zeros(2, 6), core=core)).splitlines()
        assert lines[-1].rstrip() == f"completely core: {words}"
