"""What people meet at a prompt is one short line."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import hope
from hope.anatomy.steps import Absorption
from tests.support import randomise
from zoo.networks import CifarResNet

EXAMPLE = torch.zeros(2, 3, 12, 12)
MANY = tuple(range(400))
STEPS = [
    hope.Prune("layer1.0.conv1", 3),
    hope.Prune("layer1.0.conv1", MANY, cost=1 / 3, release=2345, left=2 / 3),
    Absorption("layer1.0.conv1", MANY),
    hope.Merge("layer4.0.branch.conv1", 1, 3, (1 / 3, 2 / 3), (1 / 7, 3 / 7), 1 / 9, 1 / 11, cost=1 / 13),
    hope.Evict("layer1.0", [1 / 3] * 400),
]
METHODS = [
    hope.Paper(),
    hope.Score("random"),
    hope.Absorb(calibration=[torch.randn(64, 3, 32, 32)], takeover=False, cost="linear"),
]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return randomise(CifarResNet(8)).eval()


def is_one_short_line(thing: object) -> bool:
    words = repr(thing)
    return 0 < len(words) < 200 and "\n" not in words and " object at 0x" not in words


def test_whatever_is_read_off_a_network(model: nn.Module) -> None:
    anatomy = hope.inspect(model, EXAMPLE)
    assert repr(anatomy) == "<Anatomy of CifarResNet: 3 layers, 3 blocks, 1 streams>"
    assert is_one_short_line(anatomy.size())
    for unit in anatomy.units:
        assert is_one_short_line(unit)
        assert unit.name in repr(unit)
        for places in unit.places:
            assert is_one_short_line(places)
            assert places.tensor in repr(places)
    for block in anatomy.blocks:
        assert is_one_short_line(block)
        assert block.name in repr(block)
    assert all(is_one_short_line(one) for one in anatomy.skipped)


def test_whatever_a_run_comes_to(model: nn.Module) -> None:
    encoding = hope.encode(model, EXAMPLE, density=0.5, evict=False)
    assert is_one_short_line(encoding)
    assert is_one_short_line(encoding.trajectory)
    assert all(is_one_short_line(step) for step in encoding.trajectory)


def test_whatever_deft_makes(model: nn.Module) -> None:
    part = hope.deft.partition(model, EXAMPLE)
    assert is_one_short_line(part)
    assert is_one_short_line(hope.deft.prepare(model, part, head=4))


@pytest.mark.parametrize("thing", [*STEPS, *METHODS], ids=lambda thing: type(thing).__name__)
def test_steps_and_methods(thing: object) -> None:
    assert is_one_short_line(thing)
