"""ΔP: live and static agree as long as nothing has been removed."""

from __future__ import annotations

from math import prod

import pytest
import torch
from torch import nn

import hope
from hope.schedule.search_space import SearchSpace
from hope.structure.sizes import ParameterSavings
from tests.support import randomise
from zoo.networks import CifarResNet

EXAMPLE = torch.zeros(1, 3, 12, 12)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return randomise(CifarResNet(14)).eval()


def plan(model: nn.Module, release: str) -> SearchSpace:
    return SearchSpace.of(model, EXAMPLE, hope.inspect(model, EXAMPLE), hope.Paper(release=release))


def test_nothing_is_released_differently_before_the_first_step(model: nn.Module) -> None:
    static = plan(model, "static")
    live = ParameterSavings(static.anatomy)
    assert {state.name: state.release for state in static.states} == {
        state.name: live.unit(state.name) for state in static.states
    }
    assert {branch.name: branch.release for branch in static.branches} == {
        branch.name: live.block(branch.name) for branch in static.branches
    }


@pytest.mark.parametrize("silent", [False, True], ids=["a unit", "a block"])
def test_the_first_step_is_the_same_whichever_release(model: nn.Module, silent: bool) -> None:
    """With branches that say nothing the first step is an eviction, else a removal in a layer."""
    net = randomise(CifarResNet(14)).eval()
    net.load_state_dict(model.state_dict())
    if silent:
        with torch.no_grad():
            for name, module in net.named_modules():
                if name.startswith("layer") and isinstance(module, nn.Conv2d):
                    module.weight.mul_(1e-12)
    first, other = (next(plan(net, release).steps()) for release in ("static", "live"))
    assert first == other
    assert (first.kind == "evict") == silent
    if silent:
        block = hope.inspect(net, EXAMPLE).block(first.name)
        shapes = {name: tuple(tensor.shape) for name, tensor in net.state_dict().items()}
        inner, norms = shapes[f"{block.name}.conv1.weight"], [f"{block.name}.bn{k}.weight" for k in (1, 2)]
        assert first.release == prod(inner) + 4 * sum(shapes[name][0] for name in norms)


def test_live_releases_follow_what_is_gone(model: nn.Module) -> None:
    anatomy = hope.inspect(model, EXAMPLE)
    block = next(block for block in anatomy.blocks if block.skip == "identity")
    (layer,) = block.layers
    live = ParameterSavings(anatomy)
    one, whole = live.unit(layer), live.block(block.name)
    live.take(hope.Prune(layer, [0, 2]))
    assert live.unit(layer) == one
    incoming = prod(anatomy.shapes[anatomy.unit(layer).weight][1:])
    assert live.block(block.name) == whole - 2 * (incoming + 4)
    live.take(hope.Evict(block.name))
    assert (live.unit(layer), live.block(block.name)) == (0, 0)
