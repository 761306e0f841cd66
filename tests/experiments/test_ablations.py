"""What each ablation of absorption changes, and what it leaves."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hope
from experiments.ablations import Ablation
from hope.methods.absorption_path import AbsorbPath, AbsorbState
from hope.schedule.search_space import SearchSpace
from tests.evaluate.test_absorb_networks import EXAMPLE, network


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"decay": -3.0}, "decay must be a correlation from 0 to below 1, got -3.0"),
        ({"cost": "square"}, "cost of absorb must be one of log, linear, got 'square': give log"),
        (
            {"surrogate": "x"},
            "surrogate of absorb must be one of propagated, pairwise, got 'x': give propagated",
        ),
    ],
)
def test_unknown_options_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(hope.UnknownMethod) as refusal:
        Ablation(**options)
    assert str(refusal.value) == words


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return network(3)


@pytest.fixture(scope="module")
def anatomy(net: nn.Module) -> hope.Anatomy:
    return hope.inspect(net, EXAMPLE)


def encoded(net: nn.Module, anatomy: hope.Anatomy, **options: Any) -> hope.Encoding:
    return hope.encode(
        net,
        EXAMPLE,
        density=0.6,
        method=Ablation(calibration=None, **options),
        evict=False,
        anatomy=anatomy,
        progress=False,
    )


def differing(one: hope.Encoding, other: hope.Encoding) -> set[str]:
    """The kinds of tensors in which two networks of the same shapes differ."""
    first, second = one.model.state_dict(), other.model.state_dict()
    found = {name for name in first if not torch.equal(first[name], second[name])}
    return {name.rpartition(".")[2] for name in found}


def pruned(encoding: hope.Encoding) -> dict[str, Tensor]:
    """What plain pruning of the same neurons leaves."""
    steps = encoding.trajectory.steps[: encoding.steps]
    prunes = [hope.Prune(step.name, step.removed) for step in steps]
    return hope.cut(encoding.original, encoding.anatomy, prunes).state_dict()


def test_without_takeover_survivors_keep_their_weights(net: nn.Module, anatomy: hope.Anatomy) -> None:
    whole, without = encoded(net, anatomy), encoded(net, anatomy, takeover=False)
    assert without.trajectory.steps == whole.trajectory.steps
    weights = {name for name, _ in net.named_parameters() if name.endswith("weight")}
    bare, small, taken = pruned(without), without.model.state_dict(), whole.model.state_dict()
    assert all(torch.equal(small[name], bare[name]) for name in weights)
    assert any(not torch.equal(taken[name], bare[name]) for name in weights)
    changed = {name.rpartition(".")[2] for name in bare if not torch.equal(small[name], bare[name])}
    assert changed == {"running_mean", "running_var", "bias"}  # the constant, and its repair


def test_without_constants_running_means_stay(net: nn.Module, anatomy: hope.Anatomy) -> None:
    whole, without = encoded(net, anatomy), encoded(net, anatomy, constants=False)
    assert without.trajectory.steps == whole.trajectory.steps
    assert differing(whole, without) == {"running_mean"}
    bare = pruned(without)
    means = [name for name in bare if name.endswith("running_mean")]
    assert all(torch.equal(without.model.state_dict()[name], bare[name]) for name in means)


def test_without_repair_running_variances_stay(net: nn.Module, anatomy: hope.Anatomy) -> None:
    whole, without = encoded(net, anatomy), encoded(net, anatomy, repair=False)
    assert without.trajectory.steps == whole.trajectory.steps
    assert differing(whole, without) == {"running_var"}
    bare = pruned(without)
    variances = [name for name in bare if name.endswith("running_var")]
    assert all(torch.equal(without.model.state_dict()[name], bare[name]) for name in variances)


def by_unit(encoding: hope.Encoding) -> dict[str, list[tuple[int, ...]]]:
    found: dict[str, list[tuple[int, ...]]] = {}
    for step in encoding.trajectory:
        found.setdefault(step.name, []).append(step.removed)
    return found


def agree_within_units(one: hope.Encoding, other: hope.Encoding) -> bool:
    """Whether each unit goes the same way in both, as far as both go."""
    first, second = by_unit(one), by_unit(other)
    return all(
        all(a == b for a, b in zip(first.get(name, []), second.get(name, []), strict=False))
        for name in first.keys() | second.keys()
    )


def test_without_per_parameter_steps_go_by_what_they_cost(net: nn.Module, anatomy: hope.Anatomy) -> None:
    whole, without = encoded(net, anatomy), encoded(net, anatomy, per_parameter=False)
    assert whole.trajectory.steps != without.trajectory.steps
    assert agree_within_units(whole, without)
    method = Ablation(per_parameter=False)
    assert method.rank(0.5, 7) == method.rank(0.5, 1000) == 0.5
    assert hope.Absorb().rank(0.5, 10) == 0.05
    heads: dict[str, float] = {}
    for step in reversed(without.trajectory.steps):  # whatever came next elsewhere cost no less
        assert all(step.cost <= cost * (1 + 1e-9) for name, cost in heads.items() if name != step.name)
        heads[step.name] = step.cost


def states(net: nn.Module, anatomy: hope.Anatomy, **options: Any) -> list[AbsorbState]:
    plan = SearchSpace.of(net, EXAMPLE, anatomy, Ablation(**options))
    return [state for state in plan.states if isinstance(state, AbsorbState)]


def test_without_share_every_layer_counts_in_full(net: nn.Module, anatomy: hope.Anatomy) -> None:
    whole, without = states(net, anatomy), states(net, anatomy, shares=False)
    inside = {layer.name for layer in anatomy.layers if layer.block is not None}
    assert {state.name for state in whole if state.share < 1} == inside
    assert {state.share for state in without} == {1.0}
    for one, other in zip(whole, without, strict=True):
        assert (one.name, one.neurons, one.release) == (other.name, other.neurons, other.release)
        assert all(torch.equal(a, b) for a, b in zip(one.moments, other.moments, strict=True))
        assert all(torch.equal(a, b) for a, b in zip(one.outer, other.outer, strict=True))
    plan = SearchSpace.of(net, EXAMPLE, anatomy, Ablation(shares=False))
    assert [branch.worth for branch in plan.branches] == [1.0, 1.0]


def test_a_layer_has_the_share_of_its_own_block(net: nn.Module, anatomy: hope.Anatomy) -> None:
    """Of two blocks, the one that writes nothing has no share, and the other keeps its own."""
    silent = copy.deepcopy(net)
    with torch.no_grad():
        silent[2].bn2.weight.zero_()
    whole = {state.name: state.share for state in states(net, anatomy)}
    found = {state.name: state.share for state in states(silent, anatomy)}
    assert found["2.conv1"] == pytest.approx(0, abs=1e-9) != pytest.approx(whole["2.conv1"], abs=1e-3)
    assert found["1.conv1"] == pytest.approx(whole["1.conv1"], rel=1e-9)


def test_linear_costs_are_what_is_lost(net: nn.Module, anatomy: hope.Anatomy) -> None:
    """With one reader, the costs of a path add up to the share of what is not left."""
    walk = Ablation(cost="linear").path
    for state in states(net, anatomy):
        assert len(state.moments) == 1
        total = 0.0
        for step, other in zip(walk(state).steps(), AbsorbPath(state).steps(), strict=True):
            assert (step.removed, step.left) == (other.removed, other.left)
            total += step.cost
            assert total == pytest.approx(state.share * (1 - step.left), rel=1e-6)
            assert step.cost <= other.cost * (1 + 1e-9)  # −log(1 − x) ≥ x
