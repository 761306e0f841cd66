"""The encoder on whole networks: budgets, order, replay, exclusion, executors, the naive loop."""

from __future__ import annotations

import json
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hope
from hope._util.numbers import rounded
from hope.demo import DigitsNet
from hope.geometry import costs
from hope.methods.pairs import PairPath, PaperState
from hope.methods.paper import AnchoredBranch
from hope.reasons import Cause
from hope.rewrite.apply import outcome
from hope.schedule.scheduler import Scheduler
from hope.schedule.search_space import SearchSpace
from hope.structure.sizes import sizes
from tests.geometry.explicit import random_layer
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


METHODS = ["paper", "l1-in", "l1-joint", "bn-scale", "random"]


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
    encoding = hope.encode(model, EXAMPLE, density=0.2, method="paper", anatomy=anatomy)
    for steps in range(0, len(encoding.trajectory), 7):
        predicted = encoding.trajectory.size(steps)
        assert predicted == outcome(anatomy, encoding.trajectory.steps[:steps]).size(anatomy)
        assert predicted.parameters == sum(p.numel() for p in encoding.at(steps=steps).parameters())


def test_replaying_a_prefix_in_two_goes_equals_one(model: nn.Module, anatomy: hope.Anatomy) -> None:
    """Actions are recipes on live weights, so stopping in between and going on changes nothing."""
    encoding = hope.encode(
        model, EXAMPLE, density=0.4, method=hope.Paper(merge="sum"), evict=False, anatomy=anatomy
    )
    once = encoding.at(density=0.5)
    early = hope.encode(
        model, EXAMPLE, density=0.5, method=hope.Paper(merge="sum"), evict=False, anatomy=anatomy
    )
    assert early.trajectory.steps[: early.steps] == encoding.trajectory.steps[: early.steps]
    assert_same(run(early.model, EXAMPLE), run(once, EXAMPLE), 0)


def test_the_argument_is_never_changed(model: nn.Module, anatomy: hope.Anatomy) -> None:
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    hope.encode(model, EXAMPLE, density=0.3, method=hope.Paper(merge="sum"), anatomy=anatomy)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


def test_excluded_modules_keep_their_shapes_in_and_out(model: nn.Module, anatomy: hope.Anatomy) -> None:
    encoding = hope.encode(
        model, EXAMPLE, density=0.55, method="paper", exclude=["blocks.1.*", "head"], anatomy=anatomy
    )
    small = encoding.model
    for name in ("blocks.1.conv1", "blocks.1.conv2", "head"):
        assert small.get_submodule(name).weight.shape == model.get_submodule(name).weight.shape
    assert str(encoding.left_alone["squeeze"]) == "excluded by 'head'"
    assert "blocks.1" in encoding.left_alone


@pytest.mark.parametrize("kind", [ThreadPoolExecutor, ProcessPoolExecutor])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_an_executor_gives_the_same_trajectory(model: nn.Module, anatomy: hope.Anatomy, kind: type) -> None:
    alone = hope.encode(model, EXAMPLE, density=0.3, method="paper", anatomy=anatomy)
    with kind(2) as pool:
        shared = hope.encode(model, EXAMPLE, density=0.3, method="paper", anatomy=anatomy, executor=pool)
    assert shared.trajectory.steps == alone.trajectory.steps


@pytest.mark.parametrize(
    ("budget", "words"),
    [
        ({}, "must be exactly one of"),
        ({"density": 0.5, "params": 0.5}, "density, params"),
        ({"params": -1}, "got -1: give params=0.6"),
        ({"density": 0.001}, "cannot be met: the smallest reachable is density="),
        ({"density": 0.5, "method": "magic"}, "got 'magic'"),
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
    encoding = hope.encode(net.eval(), torch.zeros(2, 4), density=0.9, method="paper")
    assert encoding.left_alone == {"0": Cause.NO_BN_BEFORE.at("2"), "2:4": Cause.NO_CAPACITY.at()}
    assert "needs calibration" in str(encoding)


def test_saved_run_gives_back_any_moment_of_it(
    model: nn.Module, anatomy: hope.Anatomy, tmp_path: Path
) -> None:
    encoding = hope.encode(model, EXAMPLE, density=0.4, method=hope.Paper(merge="sum"), anatomy=anatomy)
    encoding.save(tmp_path)
    assert_same(run(hope.load(tmp_path, DigitsNet()).eval(), EXAMPLE), run(encoding.model, EXAMPLE), 0)
    other = hope.load(tmp_path, model, params=0.8)
    assert_same(run(other, EXAMPLE), run(encoding.at(params=0.8), EXAMPLE), 0)
    with pytest.raises(hope.CheckpointMismatch, match=r"must have the weights .*, got others"):
        hope.load(tmp_path, DigitsNet(), params=0.8)
    with pytest.raises(hope.InfeasibleBudget, match="comes down to"):
        hope.load(tmp_path, model, density=0.001)
    assert json.loads((tmp_path / "trajectory.json").read_text())["method"]["name"] == "paper"


# ---- the order of actions ----------------------------------------------------------------------------------


def random_states(seed: int) -> list[PaperState]:
    rng = np.random.default_rng(seed)
    sizes = [(int(rng.integers(3, 9)), int(rng.integers(5, 40))) for _ in range(3)]
    return [
        random_layer(seed * 10 + number, neurons, 6, 5).state(str(number), release)
        for number, (neurons, release) in enumerate(sizes)
    ]


def naive(
    states: list[PaperState], branches: list[AnchoredBranch], merge: str | None
) -> list[tuple[str, str, float]]:
    """Look at every layer and every block at each step, and take the smallest ratio."""
    paths = {state.name: PairPath(state, merge=merge, kernel="zero-bias") for state in states}
    heads = {name: path.step() if path.neurons > 1 else None for name, path in paths.items()}
    now = {state.name: (state.neurons, state.capacity) for state in states}
    gone: set[str] = set()
    evicted: set[str] = set()
    done = []
    while True:
        found = []
        for position, state in enumerate(states):
            head = heads[state.name]
            if head is not None and state.name not in gone:
                kind = 1 if head.kind == "merge" else 0
                ratio = rounded(head.cost / state.release)
                found.append((ratio, kind, position, head.neurons, head.name, head.cost))
        for number, block in enumerate(branches):
            if block.name not in evicted and not set(block.layers) <= gone:
                left = [now[name] for name in block.layers]
                price = costs.evict([n for n, _ in left], [e for _, e in left], block.anchors)
                found.append((rounded(price / block.release), 2, number, (), block.name, price))
        if not found:
            return done
        _, kind, target, _, name, cost = min(found)
        done.append((("prune", "merge", "evict")[kind], name, cost))
        if kind == 2:
            evicted.add(name)
            gone |= set(branches[target].layers)
        else:
            head, path = heads[name], paths[name]
            assert head is not None
            now[name] = (now[name][0] - 1, head.left)
            heads[name] = path.step() if path.neurons > 1 else None


def merged(
    states: list[PaperState], branches: list[AnchoredBranch], merge: str | None
) -> list[tuple[str, str, float]]:
    method = hope.Paper(merge=merge)
    steps = Scheduler(states, branches, walk=method.path, rank=method.rank)
    return [(step.kind, step.name, step.cost) for step in steps]


@pytest.mark.parametrize("merge", [None, "pair", "sum"])
@pytest.mark.parametrize("seed", range(6))
def test_merging_paths_equals_rescanning_everything(seed: int, merge: str | None) -> None:
    states = random_states(seed)
    branches = [
        AnchoredBranch("a", ("0", "1"), 300, None, (3.0, 3.0)),
        AnchoredBranch("b", ("2",), 90, None, (2.0,)),
    ]
    fast = merged(states, branches, merge)
    assert fast == naive(states, branches, merge)


def test_real_resnet20_path_merge_equals_rescanning(data_folder: Path) -> None:
    model = trained("cifar10-resnet20", data_folder)
    example = torch.zeros(1, 3, 32, 32)
    plan = SearchSpace.of(model, example, hope.inspect(model, example), hope.Paper())
    states = [state for state in plan.states if isinstance(state, PaperState)]
    branches = [branch for branch in plan.branches if isinstance(branch, AnchoredBranch)]
    assert (len(states), len(branches)) == (len(plan.anatomy.layers), len(plan.anatomy.blocks))
    fast = merged(states, branches, "pair")
    assert fast == naive(states, branches, "pair")
    assert len(fast) > 100


def test_dead_neurons_go_first_and_change_nothing() -> None:
    net = randomise(CifarResNet(8)).double().eval()
    with torch.no_grad():
        for neuron in (2, 5):
            net.get_submodule("layer1.0.conv2").weight[:, neuron] = 0
    example = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    encoding = hope.encode(net, example, steps=2, method="paper", evict=False)
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
    encoding = hope.encode(net, example, steps=1, method=hope.Paper(merge="sum"))
    (step,) = encoding.trajectory
    assert (step.kind, step.name, step.neurons) == ("merge", "layer2.0.conv1", (3, 7))
    assert_same(run(encoding.model, example), run(net, example), 1e-9)


def test_merging_twins_by_pair_comes_first_and_halves_them() -> None:
    """What the paper's criterion calls free: the pair is counted once."""
    net = randomise(CifarResNet(8)).double().eval()
    _twins(net, outgoing=True)
    example = torch.randn(1, 3, 16, 16, dtype=torch.float64)
    encoding = hope.encode(net, example, steps=1, method="paper")
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
    static = hope.encode(model, EXAMPLE, density=0.4, method="paper", anatomy=anatomy)
    live = hope.encode(model, EXAMPLE, density=0.4, method=hope.Paper(release="live"), anatomy=anatomy)
    assert [step.release for step in live.trajectory] != [step.release for step in static.trajectory]
    assert live.trajectory[0] == static.trajectory[0]


def test_summary_says_what_was_kept(model: nn.Module, anatomy: hope.Anatomy) -> None:
    words = str(hope.encode(model, EXAMPLE, params=0.5, method="paper", anatomy=anatomy))
    assert "DigitsNet by paper" in words
    assert "prunes" in words
    assert "parameters" in words


def test_calibration_is_short_for_the_methods_own() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).eval()
    batches = [torch.randn(64, 4, generator=torch.Generator().manual_seed(0))]
    given: dict[str, Any] = {"density": 0.5, "progress": False}
    for method in (hope.Absorb, hope.Paper):
        short = hope.encode(net, batches[0], method=method(), calibration=batches, **given)
        whole = hope.encode(net, batches[0], method=method(calibration=batches), **given)
        assert short.trajectory.steps == whole.trajectory.steps
        assert short.steps > 0
    with pytest.raises(hope.UnknownMethod, match=r"calibration must .*got method='l1-in': leave"):
        hope.encode(net, batches[0], method="l1-in", calibration=batches, **given)
