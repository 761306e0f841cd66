"""Wider networks: fresh slack next to an untouched core."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.errors import InvalidPartition
from tests.deft.nets import Residual, assert_core_kept, chain, core_entries, images, made, train


class Separable(nn.Module):
    """Depthwise convolutions, a concatenation and a flattened map: positions of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.one = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU())
        self.deep = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8), nn.BatchNorm2d(8), nn.ReLU())
        self.other = nn.Sequential(nn.Conv2d(3, 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU())
        self.pool = nn.AdaptiveAvgPool2d(2)
        self.head = nn.Linear(14 * 4, 5)

    def forward(self, x: Tensor) -> Tensor:
        both = torch.cat([self.deep(self.one(x)), self.other(x)], dim=1)
        return self.head(self.pool(both).flatten(1))


@pytest.mark.parametrize("make", [chain, Residual, Separable])
def test_the_source_stays_the_same_to_the_bit(make: type[nn.Module], tmp_path: Path) -> None:
    net, x = made(make()), images()
    part = hope.deft.partition(net, images(2), grow=0.1)
    tuning = hope.deft.prepare(net, part, head=4)
    assert sum(p.numel() for p in tuning.model.parameters()) > sum(p.numel() for p in net.parameters())
    with tuning.source(masked=False) as network:  # as it is, before training
        torch.testing.assert_close(network(x), net(x), rtol=1e-5, atol=1e-5)
    before = core_entries(tuning)
    train(tuning.model, torch.optim.AdamW(tuning.model.parameters(), lr=0.05, weight_decay=0.1))
    assert_core_kept(before, core_entries(tuning))
    with tuning.source() as network:
        assert torch.equal(network(x), net(x))
        assert sum(p.numel() for p in network.parameters()) == sum(p.numel() for p in net.parameters())
    again = hope.deft.load(tuning.save_pretrained(tmp_path), net)
    assert torch.equal(again.model.eval()(x), tuning.model.eval()(x))
    with again.source() as network:
        assert torch.equal(network(x), net(x))


def test_every_layer_and_stream_grows_by_the_share() -> None:
    part = hope.deft.partition(made(Residual()), images(2), grow=0.25)
    assert {name: (len(core), int((~core).sum())) for name, core in part.core.items()} == {
        "first.conv1": (13, 3),
        "second.conv1": (13, 3),
        "third.conv1": (13, 3),
        "stem.0": (10, 2),
        "second.conv2": (20, 4),
    }
    some = hope.deft.partition(made(Residual()), images(2), grow=0.25, core=["first.*"])
    assert [name for name, core in some.core.items() if core.all()] == ["first.conv1", "stem.0"]


def test_a_grown_network_is_shrinkable_and_exports(tmp_path: Path) -> None:
    net = made(chain())
    tuning = hope.deft.wrap(net, images(2), grow=0.5, head=4)
    train(tuning.model, torch.optim.SGD(tuning.model.parameters(), lr=0.1))
    small = hope.encode(tuning.model.eval(), images(2), density=0.5).model
    assert small(images()).shape == (8, 4)
    hope.export_program(tuning.model.eval(), images(2), tmp_path / "wide.pt2")


@pytest.mark.parametrize("options", [{"grow": 0}, {"grow": 0.1, "free": 0.1}, {"grow": 0.1, "sever": "mask"}])
def test_what_does_not_go_with_growth_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidPartition, match="grow"):
        hope.deft.partition(made(chain()), images(2), **options)  # type: ignore[arg-type]
