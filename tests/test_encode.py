"""The encoder on whole networks: budgets, order, replay, exclusion, executors, the naive loop."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hope.methods.state import BlockState
from torch import nn

import hope
from hope.anatomy.reasons import Cause
from hope.anatomy.sizes import sizes
from hope.demo import DigitsNet
from hope.methods import costs
from hope.methods.pairs import PairPath as LayerPath
from hope.methods.pairs import PaperState as LayerState
from hope.methods.pairs import layer_path
from hope.run.merge import choices, rounded
from hope.surgery.apply import outcome
from tests.support import assert_same, randomise, run
from zoo.networks import CifarResNet, trained

EXAMPLE = torch.linspace(-1, 1, 2 * 64).reshape(2, 1, 8, 8)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(1)
    return randomise(DigitsNet()).eval()


@pytest.fixture(scope="module")
def anatomy(model: nn.Module) -> hope.Anatomy:
    return hope.inspect(model, EXAMPLE)


METHODS = ["hope", "l1-in", "l1-joint", "bn-scale", "random"]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("unit", "budget"), [("density", 0.6), ("params", 0.5), ("macs", 0.7), ("params", 12_000), ("steps", 9)]
)
def test_every_budget_is_met_and_just_met(
    model: nn.Module, anatomy: hope.Anatomy, method: str, unit: str, budget: float
) -> None:
    encoding = hope.encode(model, EXAMPLE, method=method, anatomy=anatomy, **{unit: budget})
    column = {"density": 0, "params": 1, "macs": 2}.get(unit)
    if column is None:
        assert encoding.steps == budget
    else:
        table = encoding.trajectory.sizes[:, column]
        limit = budget * table[0] if budget <= 1 else budget
        assert table[encoding.steps] <= limit < table[encoding.steps - 1]
    counted = sum(p.numel() for p in encoding.model.parameters())
    assert counted == encoding.size.parameters
    run(encoding.model, EXAMPLE)


def test_sizes_along_the_run_are_those_of_the_replayed_networks(
    model: nn.Module, anatomy: hope.Anatomy
) -> None:
    encoding = hope.encode(model, EXAMPLE, density=0.2, anatomy=anatomy)
    for steps in range(0, len(encoding.trajectory), 7):
        predicted = encoding.trajectory.size(steps)
        assert predicted == outcome(anatomy, encoding.trajectory.actions[:steps]).size(anatomy)
        assert predicted.parameters == sum(p.numel() for p in encoding.at(steps=steps).parameters())


def test_replaying_a_prefix_in_two_goes_equals_one(model: nn.Module, anatomy: hope.Anatomy) -> None:
    """Actions are recipes on live weights, so stopping in between and going on changes nothing."""
    encoding = hope.encode(model, EXAMPLE, density=0.4, merge="sum", evict=False, anatomy=anatomy)
    once = encoding.at(density=0.5)
    early = hope.encode(model, EXAMPLE, density=0.5, merge="sum", evict=False, anatomy=anatomy)
    assert early.trajectory.actions[: early.steps] == encoding.trajectory.actions[: early.steps]
    assert_same(run(early.model, EXAMPLE), run(once, EXAMPLE), 0)


def test_the_argument_is_never_changed(model: nn.Module, anatomy: hope.Anatomy) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hope.encode(model, EXAMPLE, density=0.3, merge="sum", anatomy=anatomy)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_excluded_modules_keep_their_shapes_in_and_out(model: nn.Module, anatomy: hope.Anatomy) -> None:
    encoding = hope.encode(model, EXAMPLE, density=0.55, exclude=["blocks.1.*", "head"], anatomy=anatomy)
    small = encoding.model
    for name in ("blocks.1.conv1", "blocks.1.conv2", "head"):
        assert small.get_submodule(name).weight.shape == model.get_submodule(name).weight.shape
    assert str(encoding.left_alone["squeeze"]) == "excluded by 'head'"
    assert "blocks.1" in encoding.left_alone


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ProcessPoolExecutor])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_executor_gives_the_same_trajectory(model: nn.Module, anatomy: hope.Anatomy, kind: type) -> None:
    alone = hope.encode(model, EXAMPLE, density=0.3, anatomy=anatomy)
    with kind(2) as pool:
        shared = hope.encode(model, EXAMPLE, density=0.3, anatomy=anatomy, executor=pool)
    assert shared.trajectory.actions == alone.trajectory.actions
    assert shared.trajectory.costs == alone.trajectory.costs


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({}, "exactly one budget"),
        ({"density": 0.5, "params": 0.5}, "density, params"),
        ({"params": -1}, "negative"),
        ({"density": 0.001}, "cannot be met: the least is density="),
        ({"density": 0.5, "method": "magic"}, "no method 'magic'"),
        ({"density": 0.5, "merge": "both"}, "no merge 'both'"),
    ],
)
def test_impossible_requests_are_one_line(
    model: nn.Module, anatomy: hope.Anatomy, budget: dict[str, float], words: str
) -> None:
    with pytest.raises(hope.HopeError) as refusal:
        hope.encode(model, EXAMPLE, anatomy=anatomy, **budget)
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_layers_without_bn_are_left_alone_and_said_so() -> None:
    net = nn.Sequential(
        nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)
    )
    encoding = hope.encode(net.eval(), torch.zeros(2, 4), density=0.9)
    assert encoding.left_alone == {"0": Cause.NO_BN_BEFORE.at("2")}
    assert "needs calibration" in str(encoding)


def test_saved_run_gives_back_any_moment_of_it(
    model: nn.Module, anatomy: hope.Anatomy, tmp_path: Path
) -> None:
    encoding = hope.encode(model, EXAMPLE, density=0.4, merge="sum", anatomy=anatomy)
    encoding.save(tmp_path)
    assert_same(run(hope.load(tmp_path, DigitsNet()).eval(), EXAMPLE), run(encoding.model, EXAMPLE), 0)
    other = hope.load(tmp_path, model, params=0.8)
    assert_same(run(other, EXAMPLE), run(encoding.at(params=0.8), EXAMPLE), 0)
    with pytest.raises(hope.CheckpointMismatch, match="other weights"):
        hope.load(tmp_path, DigitsNet(), params=0.8)
    with pytest.raises(hope.InfeasibleBudget, match="comes down to"):
        hope.load(tmp_path, model, density=0.001)
    assert json.loads((tmp_path / "trajectory.json").read_text())["method"] == "hope"


# ---- the order of actions ----------------------------------------------------------------------------------


def random_states(seed: int, merge: bool = True) -> list[LayerState]:
    from hope.bench.speed import random_layer

    rng = np.random.default_rng(seed)
    states = []
    for number in range(3):
        state = random_layer(int(rng.integers(3, 9)), 6, 5, seed=seed * 10 + number)
        state.release = int(rng.integers(5, 40))
        states.append(state)
    return states


def naive(
    states: list[LayerState], blocks: list[BlockState], merge: str | None
) -> list[tuple[str, int, float]]:
    """Look at every layer and every block at each step, and take the smallest ratio."""
    paths = [LayerPath(state, merge=merge, kernel="zero-bias") for state in states]
    heads = [path.step() if path.count > 1 else None for path in paths]
    now = [(len(state.capacities), float(state.capacities.sum())) for state in states]
    gone: set[int] = set()
    evicted: set[int] = set()
    done = []
    while True:
        found = []
        for position, head in enumerate(heads):
            if head is not None and position not in gone:
                kind = 0 if head.other < 0 else 1
                ratio = rounded(head.cost / states[position].release)
                found.append((ratio, kind, position, head.neuron, head.other, head.cost))
        for number, block in enumerate(blocks):
            if number not in evicted and not set(block.layers) <= gone:
                price = costs.evict(
                    [now[p][0] for p in block.layers], [now[p][1] for p in block.layers], block.anchors
                )
                found.append((rounded(price / block.release), 2, number, 0, 0, price))
        if not found:
            return done
        _, kind, target, _, _, cost = min(found)
        done.append((("prune", "merge", "evict")[kind], target, cost))
        if kind == 2:
            evicted.add(target)
            gone |= set(blocks[target].layers)
        else:
            head = heads[target]
            assert head is not None
            now[target] = (head.neurons, head.capacity)
            heads[target] = paths[target].step() if paths[target].count > 1 else None


@pytest.mark.parametrize("merge", [None, "pair", "sum"])
@pytest.mark.parametrize("seed", range(6))
def test_merging_paths_equals_rescanning_everything(seed: int, merge: str | None) -> None:
    states = random_states(seed)
    blocks = [BlockState("a", (0, 1), (3.0, 3.0), 300), BlockState("b", (2,), (2.0,), 90)]
    walk = partial(layer_path, merge=merge, kernel="zero-bias")
    fast = [(choice.kind, choice.target, choice.cost) for choice in choices(states, blocks, walk=walk)]
    assert fast == naive(states, blocks, merge)


def test_real_resnet20_path_merge_equals_rescanning(data_folder: Path) -> None:
    from hope.methods.signals import block_state, layer_state

    model = trained("cifar10-resnet20", data_folder)
    anatomy = hope.inspect(model, torch.zeros(1, 3, 32, 32))
    tensors = {n: t.detach() for n, t in [*model.named_parameters(), *model.named_buffers()]}
    states = [layer_state(layer, anatomy, tensors) for layer in anatomy.layers]
    assert all(isinstance(state, LayerState) for state in states)
    blocks = [block_state(block, anatomy, tensors, states) for block in anatomy.blocks]  # type: ignore[arg-type]
    assert all(isinstance(block, BlockState) for block in blocks)
    walk = partial(layer_path, merge="pair", kernel="zero-bias")
    fast = [(c.kind, c.target, c.cost) for c in choices(states, blocks, walk=walk)]  # type: ignore[arg-type]
    assert fast == naive(states, blocks, "pair")  # type: ignore[arg-type]
    assert len(fast) > 100


def test_dead_neurons_go_first_and_change_nothing() -> None:
    net = randomise(CifarResNet(8)).double().eval()
    with torch.no_grad():
        for neuron in (2, 5):
            net.get_submodule("layer1.0.conv2").weight[:, neuron] = 0
    example = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    encoding = hope.encode(net, example, steps=2, evict=False)
    assert {(s.name, s.neurons) for s in encoding.trajectory} == {
        ("layer1.0.conv1", (2,)),
        ("layer1.0.conv1", (5,)),
    }
    assert_same(run(encoding.model, example), run(net, example), 1e-12)


def _twins(net: nn.Module, *, outgoing: bool) -> None:
    conv, bn, reader = (net.get_submodule(f"layer2.0.{name}") for name in ("conv1", "bn1", "conv2"))
    with torch.no_grad():
        for tensor in (conv.weight, bn.weight, bn.bias, bn.running_mean, bn.running_var):
            tensor[7] = tensor[3]
        if outgoing:
            reader.weight[:, 7] = reader.weight[:, 3]


def test_merging_twins_by_sum_comes_first_and_is_lossless() -> None:
    net = randomise(CifarResNet(8)).double().eval()
    _twins(net, outgoing=False)
    example = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    encoding = hope.encode(net, example, steps=1, merge="sum")
    (step,) = encoding.trajectory
    assert (step.kind, step.name, step.neurons) == ("merge", "layer2.0.conv1", (3, 7))
    assert_same(run(encoding.model, example), run(net, example), 1e-9)


def test_merging_twins_by_pair_comes_first_and_halves_them() -> None:
    """What the paper's criterion calls free: the pair is counted once."""
    net = randomise(CifarResNet(8)).double().eval()
    _twins(net, outgoing=True)
    example = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    encoding = hope.encode(net, example, steps=1)
    (step,) = encoding.trajectory
    assert (step.kind, step.name, step.neurons) == ("merge", "layer2.0.conv1", (3, 7))
    assert step.cost == pytest.approx(0, abs=1e-6)
    halved = randomise(CifarResNet(8)).double().eval()
    halved.load_state_dict(net.state_dict())
    with torch.no_grad():
        halved.get_submodule("layer2.0.conv2").weight[:, 7] = 0
    assert_same(run(encoding.model, example), run(halved, example), 1e-6)


def test_sizes_of_no_actions_are_the_network_itself(anatomy: hope.Anatomy) -> None:
    (row,) = sizes(anatomy, ()).tolist()
    size = anatomy.size()
    assert row == [size.neurons, size.parameters, size.macs]


def test_live_releases_change_the_ranking_only(model: nn.Module, anatomy: hope.Anatomy) -> None:
    static = hope.encode(model, EXAMPLE, density=0.4, anatomy=anatomy)
    live = hope.encode(model, EXAMPLE, density=0.4, static_release=False, anatomy=anatomy)
    assert live.trajectory.releases != static.trajectory.releases
    assert live.trajectory[0] == static.trajectory[0]


def test_summary_says_what_was_kept(model: nn.Module, anatomy: hope.Anatomy) -> None:
    words = str(hope.encode(model, EXAMPLE, params=0.5, anatomy=anatomy))
    assert "DigitsNet by hope" in words
    assert "prunes" in words
    assert "parameters" in words
