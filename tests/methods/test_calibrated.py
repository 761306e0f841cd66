"""The paper's method on networks without BN: merges written into weights, what nothing depends on, prices of
blocks, and what is saved.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hope
from hope.actions import Merge
from hope.methods.pairs import PaperState
from hope.methods.paper import AnchoredBranch
from hope.schedule.search_space import SearchSpace
from tests.support import assert_same, check_cut, masked, randomise, run

X = torch.randn(256, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def plain(width: int = 10, *, bias: bool = True, slope: float = 0.0) -> nn.Sequential:
    """Without any normalisation; a few neurons are nearly copies of others."""
    torch.manual_seed(1)
    act = nn.LeakyReLU(slope) if slope else nn.ReLU()
    net = nn.Sequential(nn.Linear(4, width, bias=bias), act, nn.Linear(width, 5)).double().eval()
    with torch.no_grad():
        for copy, of, scale in ((3, 1, 1.0), (7, 2, 2.5), (9, 0, 0.7)):
            net[0].weight[copy] = scale * net[0].weight[of] * (1 + 0.01 * torch.randn(4))
            if bias:
                net[0].bias[copy] = scale * net[0].bias[of]
    return net


def encoded(net: nn.Module, example: Tensor, batches: list[Tensor], **options: Any) -> hope.Encoding:
    return hope.encode(
        net, example, density=0.2, method=hope.Paper(calibration=batches, **options), evict=False
    )


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("merge", ["pair", "sum"])
@pytest.mark.parametrize("slope", [0.0, 0.1])
def test_merged_layers_are_what_their_recipes_say(bias: bool, merge: str, slope: float) -> None:
    """Held against the original's matrices, recombined row by row and column by column."""
    net = plain(bias=bias, slope=slope)
    encoding = encoded(net, X[:1], [X[:128], X[128:]], merge=merge)
    steps = encoding.trajectory.steps
    assert any(isinstance(step, Merge) for step in steps[:3])
    rows = torch.cat([net[0].weight, net[0].bias[:, None] if bias else torch.zeros(10, 1)], dim=1).detach()
    rows, outs, alive = rows.double().clone(), net[2].weight.detach().clone(), list(range(10))
    ones = torch.ones(len(X), 1, dtype=torch.float64)
    for count, step in enumerate(steps, 1):
        if isinstance(step, Merge):
            i, j = step.keep, step.drop
            rows[i] = step.rows[0] * rows[i] + step.rows[1] * rows[j]
            outs[:, i] = step.outs[0] * outs[:, i] + step.outs[1] * outs[:, j]
        for neuron in step.removed:
            alive.remove(neuron)
        want = net[1](torch.cat([X, ones], dim=1) @ rows[alive].T) @ outs[:, alive].T + net[2].bias
        assert_same(run(encoding.at(steps=count), X), [want.detach()], 1e-9)


def test_a_copy_is_merged_first_and_costs_next_to_nothing() -> None:
    net = plain()
    with torch.no_grad():
        net[0].weight[3], net[0].bias[3] = net[0].weight[1], net[0].bias[1]
        net[2].weight[:, 3] = net[2].weight[:, 1]
    first = encoded(net, X[:1], [X], merge="sum").trajectory.steps[0]
    assert isinstance(first, Merge)
    assert {first.keep, first.drop} == {1, 3}
    assert first.cost == pytest.approx(0, abs=1e-6)
    assert_same(run(hope.cut(net, hope.inspect(net, X[:1]), [first]), X), run(net, X), 1e-6)


def state_of(net: nn.Module, batches: list[Tensor]) -> PaperState:
    method = hope.Paper(calibration=batches)
    (state,) = SearchSpace.of(net, batches[0][:1], hope.inspect(net, batches[0][:1]), method).states
    assert isinstance(state, PaperState)
    return state


def test_the_order_of_neurons_does_not_matter() -> None:
    net, order = plain(), torch.randperm(10, generator=torch.Generator().manual_seed(2))
    other = plain()
    with torch.no_grad():
        other[0].weight.copy_(net[0].weight[order])
        other[0].bias.copy_(net[0].bias[order])
        other[2].weight.copy_(net[2].weight[:, order])
    one, two = state_of(net, [X]), state_of(other, [X])
    for name in ("capacities", "mean", "spread", "bias"):
        assert getattr(two, name) == pytest.approx(getattr(one, name)[order], rel=1e-12)
    costs = [[step.cost for step in encoded(some, X[:1], [X]).trajectory.steps] for some in (net, other)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-7)


def test_scales_that_pass_through_the_activation_do_not_matter() -> None:
    net, other = plain(), plain()
    scale = torch.linspace(0.2, 5, 10, dtype=torch.float64)
    with torch.no_grad():
        other[0].weight.mul_(scale[:, None])
        other[0].bias.mul_(scale)
        other[2].weight.div_(scale)
    one, two = state_of(net, [X]), state_of(other, [X])
    assert two.capacities == pytest.approx(one.capacities, rel=1e-12)
    assert two.spread == pytest.approx(scale * one.spread, rel=1e-12)
    costs = [[step.cost for step in encoded(some, X[:1], [X]).trajectory.steps] for some in (net, other)]
    assert costs[0] == pytest.approx(costs[1], rel=1e-7)


def test_effective_filters_of_a_plain_layer_are_its_weights() -> None:
    net = plain()
    state = state_of(net, [X[:100], X[100:]])
    rows = torch.cat([net[0].weight, net[0].bias[:, None]], dim=1).detach()
    assert state.inner == pytest.approx(rows @ rows.T, rel=1e-12)
    signals = (X @ net[0].weight.T + net[0].bias).detach()
    assert state.mean == pytest.approx(signals.mean(dim=0), rel=1e-9)
    assert state.spread == pytest.approx(signals.std(dim=0, correction=0), rel=1e-9)


@pytest.mark.parametrize(
    ("norm", "words"),
    [
        (nn.InstanceNorm2d(6, affine=True), "normalised by its own numbers"),
        (nn.BatchNorm2d(6), "follows the activation"),
    ],
)
def test_layers_that_are_pruned_only_are_named(norm: nn.Module, words: str) -> None:
    between = isinstance(norm, nn.InstanceNorm2d)
    inner = [norm, nn.ReLU()] if between else [nn.ReLU(), norm]
    net = randomise(nn.Sequential(nn.Conv2d(3, 6, 3), *inner, nn.Conv2d(6, 4, 3))).eval()
    images = torch.randn(8, 3, 8, 8)
    encoding = hope.encode(net, images[:1], density=0.5, method=hope.Paper(calibration=[images]))
    assert {step.kind for step in encoding.trajectory.steps} == {"prune"}
    assert [note for note in encoding.notes if words in note and "pruned, not merged: 0" in note]
    gone = [hope.Prune(step.name, step.removed) for step in encoding.trajectory.steps[: encoding.steps]]
    assert_same(run(encoding.model, images), run(masked(net, encoding.anatomy, gone), images), 1e-5)
    silent = hope.encode(net, images[:1], density=0.5, method=hope.Paper(merge=None, calibration=[images]))
    assert silent.notes == ()  # nobody asked for merges


@pytest.mark.parametrize("norm", [nn.GroupNorm(1, 6), nn.LayerNorm([6, 6, 6])], ids=["group", "layer"])
def test_a_norm_over_all_channels_holds_them_fast(norm: nn.Module) -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 6, 3), norm, nn.ReLU(), nn.Conv2d(6, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 1)
    )
    images = torch.randn(4, 3, 8, 8)
    encoding = hope.encode(net.eval(), images[:1], density=0.5, method=hope.Paper(calibration=[images]))
    assert {step.name for step in encoding.trajectory.steps} == {"3"}
    why = {one.name: one.reason.cause for one in encoding.anatomy.skipped}
    assert why["0"] is hope.Cause.NORMALISED


class Plain(nn.Module):
    """Residual blocks without normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 6, 3, padding=1)
        self.blocks = nn.ModuleList(_Block() for _ in range(2))
        self.head = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.stem(x))
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean((2, 3)))


class _Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(6, 8, 3, padding=1), nn.Conv2d(8, 6, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.b(torch.relu(self.a(x))))


def test_blocks_are_held_against_what_their_skip_was_seen_to_carry() -> None:
    net, images = randomise(Plain()).eval(), torch.randn(20, 3, 8, 8)
    seen: dict[str, Tensor] = {}
    handles = [
        net.get_submodule(name).register_forward_pre_hook(
            lambda _, args, name=name: seen.__setitem__(name, args[0].clone())
        )
        for name in ("blocks.0", "blocks.1")
    ]
    with torch.no_grad():
        net(images)
    for handle in handles:
        handle.remove()
    plan = SearchSpace.of(net, images[:1], hope.inspect(net, images[:1]), hope.Paper(calibration=[images]))
    assert [branch.name for branch in plan.branches] == ["blocks.0", "blocks.1"]
    for branch in plan.branches:
        assert isinstance(branch, AnchoredBranch)
        energy = float(seen[branch.name].double().square().mean(dim=(0, 2, 3)).sqrt().sum())
        assert branch.anchors == pytest.approx((energy,), rel=1e-5)
        state = next(state for state in plan.states if state.name == branch.layers[0])
        assert branch.cost([8], [state.capacity]) == pytest.approx(8 * state.capacity / energy, rel=1e-5)


def test_networks_without_bn_are_cut_as_ever() -> None:
    anatomy, _ = check_cut(randomise(Plain()), torch.randn(2, 3, 8, 8), tolerance=1e-5)
    assert [layer.name for layer in anatomy.layers] == ["blocks.0.a", "blocks.1.a"]


def test_a_calibrated_run_is_saved_and_loaded(tmp_path: Path) -> None:
    net, images = randomise(Plain()).eval(), torch.randn(20, 3, 8, 8)
    method = hope.Paper(calibration=[images])
    encoding = hope.encode(net, images[:1], density=0.3, method=method)
    folder = encoding.save(tmp_path / "run")
    for budget in ({}, {"density": 0.7}, {"steps": 3}):
        small = encoding.at(**budget) if budget else encoding.model  # type: ignore[arg-type]
        loaded = hope.load(folder, net, **budget)  # type: ignore[arg-type]
        assert_same(run(loaded, images), run(small, images), 1e-12)
    assert (
        method.to_dict()["calibration"] == hope.Paper(calibration=(images.clone(),)).to_dict()["calibration"]
    )
    assert method.to_dict()["calibration"] != hope.Paper(calibration=[images + 1]).to_dict()["calibration"]


def test_inputs_dreamed_up_are_inputs_too() -> None:
    net = nn.Sequential(nn.Conv2d(3, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Conv2d(6, 4, 3))
    net, example = randomise(net).eval(), torch.zeros(1, 3, 8, 8)
    reported = hope.encode(net, example, density=0.5, method=hope.Paper(calibration="dream"))
    (state,) = SearchSpace.of(net, example, reported.anatomy, hope.Paper()).states
    assert np.corrcoef(reported.measures["0"], state.capacities)[0, 1] > 0.8  # type: ignore[attr-defined]
    bare = nn.Sequential(nn.Conv2d(3, 6, 3), nn.ReLU(), nn.Conv2d(6, 4, 3)).eval()
    noted = hope.encode(bare, example, density=0.5, method=hope.Paper(calibration="dream")).notes
    assert any("no BN to dream from" in note for note in noted)
    with pytest.raises(hope.UnknownMethod, match=r"calibration must be .*got 'nightmare'"):
        hope.Paper(calibration="nightmare")
