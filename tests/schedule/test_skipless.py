"""Blocks without a skip: parts of concatenations and segments of chains, from the anatomy to a saved run."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hope
from hope.methods.pairs import PaperState
from hope.reasons import Cause
from hope.rewrite.apply import outcome
from hope.schedule.search_space import SearchSpace
from hope.structure.sizes import ParameterSavings, sizes
from hope.trace.blocks import ReplaceByZero
from tests.support import assert_same, backward, randomise, run
from zoo.networks import CifarResNet
from zoo.silence import silenced, together

TOLERANCE = 1e-10
X = torch.randn(2, 3, 8, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def layer(c: int, out: int, kernel: int = 3, stride: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(c, out, kernel, stride, padding=kernel // 2, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out), nn.ReLU())


class Mixed(nn.Module):
    """Parts side by side, one of them with a concatenation of its own."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.one = layer(c, 6, 1, stride=2)
        self.two_a, self.two_b = layer(c, 5, 1), layer(5, 7, stride=2)
        self.three = layer(c, 4)
        self.left, self.right = layer(4, 3, 1, stride=2), layer(4, 5, stride=2)
        self.pool = nn.MaxPool2d(3, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        three = self.three(x)
        inner = torch.cat([self.left(three), self.right(three)], 1)
        return torch.cat([self.one(x), self.two_b(self.two_a(x)), inner, self.pool(x)], 1)


class Dense(nn.Module):
    """A layer that reads everything before it, and adds its own features."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.norm, self.conv = nn.BatchNorm2d(c), nn.Conv2d(c, 4, 3, padding=1)

    def forward(self, seen: list[Tensor]) -> Tensor:
        return self.conv(torch.relu(self.norm(torch.cat(seen, 1))))


class Net(nn.Module):
    """A chain, parts side by side, features that pile up, and a chain of linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = layer(3, 8)
        self.chain = nn.Sequential(layer(8, 8), nn.MaxPool2d(2), layer(8, 8), layer(8, 8))
        self.mixed = Mixed(8)
        self.dense = nn.ModuleList([Dense(29), Dense(33)])
        self.norm = nn.BatchNorm2d(37)
        self.fc1, self.fc2, self.fc3 = nn.Linear(37, 9), nn.Linear(9, 9), nn.Linear(9, 4)
        self.bn1, self.bn2 = nn.BatchNorm1d(9), nn.BatchNorm1d(9)

    def forward(self, x: Tensor) -> Tensor:
        seen = [self.mixed(self.chain(self.stem(x)))]
        for one in self.dense:
            seen.append(one(seen))
        x = torch.relu(self.norm(torch.cat(seen, 1))).mean((2, 3))
        x = torch.relu(self.bn1(self.fc1(x)))
        return self.fc3(torch.relu(self.bn2(self.fc2(x))))


class Sides(nn.Module):
    """Two parts and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a, self.b, self.head = layer(3, 6), layer(6, 5), layer(6, 7), nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head(torch.cat([self.a(x), self.b(x)], 1))


def made(kind: Callable[[], nn.Module], seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return randomise(kind(), seed).double().eval()


@pytest.fixture(scope="module")
def net() -> nn.Module:
    return made(Net)


@pytest.fixture(scope="module")
def anatomy(net: nn.Module) -> hope.Anatomy:
    return hope.inspect(net, X)


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def check(net: nn.Module, anatomy: hope.Anatomy, steps: list[hope.Evict | hope.Prune]) -> nn.Module:
    """What is left computes what the silenced original does, and is as large as predicted."""
    small = hope.cut(net, anatomy, steps)
    evictions = [step for step in steps if isinstance(step, hope.Evict)]
    prunings = [step for step in steps if isinstance(step, hope.Prune)]
    assert_same(run(small, X), silenced(net, X, anatomy, evictions, prunings), TOLERANCE)
    size = outcome(anatomy, steps).size(anatomy)
    assert (parameters(small), size.neurons) == (size.parameters, sizes(anatomy, steps)[-1, 0])
    assert parameters(small) == sizes(anatomy, steps)[-1, 1]
    return small


# ---- what they are -----------------------------------------------------------------------------------------


def test_parts_and_segments_are_found(anatomy: hope.Anatomy) -> None:
    found = {block.name: (block.skip, block.layers, block.inside) for block in anatomy.blocks}
    three = ("mixed.three.0", "mixed.left.0", "mixed.right.0")
    assert found == {
        "chain.0": ("chain", ("chain.0.0",), None),
        "chain.2": ("chain", ("chain.2.0",), None),
        "chain.3": ("chain", ("chain.3.0",), None),
        "mixed.left": ("concatenation", ("mixed.left.0",), "mixed.three:right"),
        "mixed.right": ("concatenation", ("mixed.right.0",), "mixed.three:right"),
        "mixed.one": ("concatenation", ("mixed.one.0",), None),
        "mixed.two_a:two_b": ("concatenation", ("mixed.two_a.0", "mixed.two_b.0"), None),
        "mixed.three:right": ("concatenation", three, None),
        "dense.0": ("concatenation", ("dense.0.conv",), None),
        "dense.1": ("concatenation", ("dense.1.conv",), None),
        "fc2:bn2": ("chain", ("fc2",), None),
    }
    assert anatomy.block("mixed.left").besides == (("mixed.right",),)
    assert anatomy.block("mixed.one").besides == ()  # what the pool hands on is always there
    assert anatomy.block("chain.2").before == "chain.0.0"
    assert anatomy.block("mixed.one").way == ReplaceByZero(("mixed.one",), returns=(0,), gives="nothing")
    assert anatomy.block("fc2:bn2").way == ReplaceByZero(("fc2", "bn2"), returns=(0, 0), gives="input")


def test_they_are_listed(anatomy: hope.Anatomy) -> None:
    words = str(anatomy)
    assert "11 evictable blocks" in words
    assert all(word in words for word in ("concatenation", "chain", "mixed.two_a:two_b"))


def test_inside_a_residual_block_the_block_is_the_unit() -> None:
    anatomy = hope.inspect(made(lambda: CifarResNet(8)), X)
    assert {block.skip for block in anatomy.blocks} <= {"identity", "projection"}


class Others(nn.Module):
    """Segments that are none: read by others too, of another size, and behind an add."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = layer(3, 6), layer(6, 6), layer(6, 6, stride=2), layer(6, 6)
        self.head = nn.Conv2d(12, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x)
        y = self.d(self.c(self.b(x)))
        return self.head(torch.cat([x[:, :, ::2, ::2], y], 1))


def test_who_is_read_by_others_too_is_not_in_front_of_a_segment() -> None:
    anatomy = hope.inspect(made(Others), X)
    assert [block.name for block in anatomy.blocks if block.skip == "chain"] == ["d"]


# ---- surgery -----------------------------------------------------------------------------------------------


def test_each_alone_equals_the_silenced_original_and_releases_what_it_says(
    net: nn.Module, anatomy: hope.Anatomy
) -> None:
    for block in anatomy.blocks:
        small = check(net, anatomy, [hope.Evict(block.name)])
        assert parameters(net) - parameters(small) == block.release
        backward(small, X)


def test_delta_p_is_what_is_released(net: nn.Module, anatomy: hope.Anatomy) -> None:
    """Parameters and BN statistics, in the network as it is then, neurons without a counterpart included."""

    def entries(model: nn.Module) -> int:
        return sum(tensor.numel() for tensor in model.state_dict().values() if tensor.ndim)

    before: list[hope.Evict | hope.Prune] = [
        hope.Prune("chain.0.0", [1, 2]), hope.Prune("chain.2.0", [2, 5]), hope.Prune("mixed.left.0", [0]),
        hope.Evict("dense.0"), hope.Evict("chain.3"),
    ]  # fmt: skip
    live = ParameterSavings(anatomy)
    for step in before:
        live.take(step)
    there = entries(hope.cut(net, anatomy, before))
    for name in ("chain.2", "mixed.left", "mixed.three:right", "dense.1"):
        after = entries(hope.cut(net, anatomy, [*before, hope.Evict(name)]))
        assert live.block(name) == there - after > 0
    after = entries(hope.cut(net, anatomy, [*before, hope.Prune("chain.2.0", [0])]))
    assert live.unit("chain.2.0") == there - after  # its readers are those of the segment that is gone


def test_all_that_can_go_together(net: nn.Module, anatomy: hope.Anatomy) -> None:
    every = [hope.Evict(block.name) for block in anatomy.blocks]
    for some in (every, every[::-1]):
        check(net, anatomy, [*together(anatomy, some)])


@pytest.mark.parametrize("seed", range(8))
def test_beside_pruned_neighbours(net: nn.Module, anatomy: hope.Anatomy, seed: int) -> None:
    rng = np.random.default_rng(seed)
    prunings = [
        hope.Prune(one.name, rng.choice(one.neurons, rng.integers(1, one.neurons // 2 + 1), replace=False))
        for one in anatomy.layers
    ]
    blocks = rng.permutation([block.name for block in anatomy.blocks])[: rng.integers(1, 8)]
    evictions = together(anatomy, [hope.Evict(str(name)) for name in blocks], prunings)
    steps = [*prunings, *evictions]
    check(net, anatomy, [steps[k] for k in rng.permutation(len(steps))])


def test_a_neuron_of_a_chain_is_there_as_long_as_its_counterpart(
    net: nn.Module, anatomy: hope.Anatomy
) -> None:
    steps = [hope.Prune("stem.0", [0, 1]), hope.Prune("chain.0.0", [1, 2, 3]), hope.Evict("chain.0")]
    small = check(net, anatomy, [*steps])
    assert isinstance(small, Net)
    assert small.stem[0].out_channels == small.chain[2][0].in_channels == 4
    assert isinstance(small.chain[0], nn.Identity)


def test_merges_before_and_behind_a_segment_compose(net: nn.Module, anatomy: hope.Anatomy) -> None:
    """Held against a network that never had the segment: its neighbours are wired by hand."""
    merges = [
        hope.Merge("stem.0", 0, 3, rows=(0.6, 0.4), outs=(1.0, 0.7), spread=0.9),
        hope.Merge("chain.2.0", 2, 5, rows=(0.5, 0.5), outs=(0.8, 1.1), spread=0.7),
    ]
    last = hope.Merge("stem.0", 1, 2, rows=(0.3, 0.9), outs=(1.2, 0.4), spread=0.8)
    small = hope.cut(net, anatomy, [*merges, hope.Evict("chain.0"), last])
    plain = hope.cut(net, anatomy, [hope.Evict("chain.0")])
    assert isinstance(plain, Net)
    known = hope.inspect(plain, X)
    assert [reader.weight for reader in known.unit("stem.0").readers] == ["chain.2.0.weight"]
    # the first merge came before the segment went: the column of its drop goes, the others are as they were
    with torch.no_grad():
        first = hope.cut(
            plain, known, [hope.Merge("stem.0", 0, 3, (0.6, 0.4), (1.0, 0.0), 0.9), merges[1], last]
        )
    assert_same(run(small, X), run(first, X), TOLERANCE)


# ---- what must stay ----------------------------------------------------------------------------------------


def test_the_last_part_stays() -> None:
    net = made(Sides)
    anatomy = hope.inspect(net, X)
    assert {block.name for block in anatomy.blocks} == {"a", "b"}
    for one, other in (("a", "b"), ("b", "a")):
        check(net, anatomy, [hope.Evict(one)])
        with pytest.raises(hope.InvalidAction, match=f"block {other} cannot be evicted: it is the last part"):
            hope.cut(net, anatomy, [hope.Evict(one), hope.Evict(other)])
    plan = SearchSpace.of(net, X, anatomy, hope.Paper())
    assert sum(isinstance(step, hope.Evict) for step in plan.steps()) == 1


def test_a_segment_without_counterparts_stays(net: nn.Module, anatomy: hope.Anatomy) -> None:
    prunings = [hope.Prune("stem.0", range(4)), hope.Prune("chain.0.0", range(4, 8))]
    with pytest.raises(hope.InvalidAction, match=r"no neuron of chain.0.0 and its counterpart in stem.0"):
        hope.cut(net, anatomy, [*prunings, hope.Evict("chain.0")])


def test_absorption_leaves_them_alone(net: nn.Module, anatomy: hope.Anatomy) -> None:
    plan = SearchSpace.of(net, X, anatomy, hope.Absorb())
    assert not plan.branches
    assert {plan.left_alone[block.name].cause for block in anatomy.blocks} == {Cause.NO_SKIP}


# ---- the paper's method ------------------------------------------------------------------------------------


@pytest.mark.parametrize("calibration", [None, [X]], ids=["from BNs", "measured"])
def test_the_price_is_against_what_the_layers_had_at_first(
    net: nn.Module, anatomy: hope.Anatomy, calibration: list[Tensor] | None
) -> None:
    """J = Σ N·E/E_init, before the first step Σ N; and after some steps from what is left."""
    plan = SearchSpace.of(net, X, anatomy, hope.Paper(calibration=calibration))
    assert [branch.name for branch in plan.branches] == [block.name for block in anatomy.blocks]
    states = {state.name: state for state in plan.states if isinstance(state, PaperState)}
    for branch in plan.branches:
        layers = [states[name] for name in branch.layers]
        assert branch.release == ParameterSavings(anatomy).block(branch.name)
        whole = branch.cost([one.neurons for one in layers], [one.capacity for one in layers])
        assert whole == pytest.approx(sum(one.neurons for one in layers))
        half = branch.cost([3 for _ in layers], [one.capacity / 2 for one in layers])
        assert half == pytest.approx(1.5 * len(layers))


def test_what_is_excluded_is_not_cut_by_an_eviction(net: nn.Module, anatomy: hope.Anatomy) -> None:
    def branches(pattern: str) -> set[str]:
        return {one.name for one in SearchSpace.of(net, X, anatomy, hope.Paper(), exclude=[pattern]).branches}

    every = {block.name for block in anatomy.blocks}
    assert every - branches("stem.0") == {"chain.0"}  # it would lose the neurons without a counterpart
    # all parts are read by it, and what the pool hands on
    assert branches("dense.1.conv") == {"chain.0", "chain.2", "fc2:bn2"}


@pytest.mark.parametrize("release", ["static", "live"])
def test_a_run_evicts_them_in_order_of_price_and_predicts_what_is_left(
    net: nn.Module, anatomy: hope.Anatomy, release: str
) -> None:
    encoding = hope.encode(net, X, density=0.2, method=hope.Paper(release=release), anatomy=anatomy)
    steps = list(encoding.trajectory)
    kinds = {anatomy.block(step.name).skip for step in steps if isinstance(step, hope.Evict)}
    assert kinds == {"concatenation", "chain"}
    for k in range(0, len(steps) + 1, 3):
        small = encoding.at(steps=k)
        assert parameters(small) == encoding.trajectory.size(k).parameters
        assert torch.isfinite(small(X)).all()
    assert not any(isinstance(step, hope.Evict) for step in hope.encode(
        net, X, density=0.5, method="paper", anatomy=anatomy, evict=False).trajectory)  # fmt: skip


def naive(plan: SearchSpace) -> list[tuple[str, str, tuple[int, ...]]]:
    """The greedy loop without any bookkeeping: before each step, everything is worked out again from what was
    done, and each eviction is tried on the network itself.
    """
    anatomy, method = plan.anatomy, plan.method
    done: list[hope.Evict | hope.Prune | hope.Merge] = []
    while True:
        gone = outcome(anatomy, done)
        out = {name for block in gone.evicted for name in anatomy.block(block).layers}
        found = []
        paths = {}
        for number, state in enumerate(plan.states):
            path = method.path(state)
            mine = [step for step in done if step.name == state.name and not isinstance(step, hope.Evict)]
            for step in mine:
                path.follow(step)
            taken = {neuron for step in mine for neuron in step.removed}
            for neuron in gone.removed.get(state.name, ()) if state.name not in out else ():
                if neuron not in taken:
                    path.follow(hope.Prune(state.name, neuron))
            paths[state.name] = (path.neurons, path.left) if state.name not in out else (0, 0.0)
            step = next(path.steps(), None) if state.name not in out else None
            if step is not None:
                order = int(isinstance(step, hope.Merge))
                found.append((method.rank(step.cost, step.release), order, number, step))
        for number, branch in enumerate(plan.branches):
            if set(branch.layers) <= out:
                continue
            step = hope.Evict(branch.name)
            try:
                outcome(anatomy, [*done, step])
            except hope.InvalidAction:
                continue
            left = [paths[name] for name in branch.layers]
            cost = branch.cost([n for n, _ in left], [e for _, e in left])
            found.append((method.rank(cost, branch.release), 2, number, step))
        if not found:
            return [(step.kind, step.name, step.neurons) for step in done]
        done.append(min(found, key=lambda one: one[:3])[3])


def test_the_run_equals_a_loop_that_works_everything_out_again(net: nn.Module, anatomy: hope.Anatomy) -> None:
    plan = SearchSpace.of(net, X, anatomy, hope.Paper())
    fast = list(plan.steps())
    assert [(step.kind, step.name, step.neurons) for step in fast] == naive(plan)
    assert sum(isinstance(step, hope.Evict) for step in fast) > 3
    with ThreadPoolExecutor(2) as executor:
        assert list(plan.steps(executor=executor)) == fast
    for k in range(0, len(fast), 7):
        assert list(itertools.chain(fast[:k], plan.steps(done=fast[:k]))) == fast


def test_widths_are_multiples_where_the_run_may_end(net: nn.Module, anatomy: hope.Anatomy) -> None:
    encoding = hope.encode(net, X, density=0.6, method="paper", anatomy=anatomy, multiple_of=2)
    for stop in encoding.trajectory.stops:
        steps = encoding.trajectory.steps[:stop]
        done = outcome(anatomy, steps)
        out = {name for block in done.evicted for name in anatomy.block(block).layers}
        for name, neurons in done.removed.items():
            if name not in out:
                assert (anatomy.unit(name).neurons - len(neurons)) % 2 == 0
        assert parameters(hope.cut(net, anatomy, steps)) == encoding.trajectory.size(stop).parameters


# ---- saved, loaded, exported, read again -------------------------------------------------------------------


def test_a_run_is_saved_and_answers_every_budget_when_loaded(net: nn.Module, tmp_path: Path) -> None:
    encoding = hope.encode(net, X, density=0.3, method="paper")
    assert any(isinstance(step, hope.Evict) for step in encoding.trajectory)
    folder = encoding.save(tmp_path / "run")
    fresh = made(Net)
    assert_same(run(hope.load(folder, fresh), X), run(encoding.model, X), TOLERANCE)
    for density in (0.8, 0.5):
        assert_same(
            run(hope.load(folder, fresh, density=density), X), run(encoding.at(density=density), X), 0
        )


def test_what_is_left_can_be_read_and_cut_again(net: nn.Module, anatomy: hope.Anatomy) -> None:
    steps = together(
        anatomy, [hope.Evict(name) for name in ("mixed.one", "mixed.three:right", "dense.0", "chain.2")]
    )
    small = check(net, anatomy, [*steps])
    again = hope.inspect(small, X)
    assert {one.name for one in again.layers} == {one.name for one in anatomy.layers} - {
        name for step in steps for name in anatomy.block(step.name).layers
    }
    assert {block.name for block in again.blocks} >= {"mixed.two_a:two_b", "dense.1", "chain.3"}
    check(small, again, [hope.Prune(one.name, [0]) for one in again.layers])


def test_what_is_left_can_be_exported(net: nn.Module, anatomy: hope.Anatomy, tmp_path: Path) -> None:
    names = ("mixed.one", "mixed.three:right", "dense.0", "chain.2")
    small = hope.cut(net, anatomy, [hope.Evict(name) for name in names])
    assert hope.export_program(small, X, tmp_path / "small.pt2").checked
    pytest.importorskip("onnxscript")
    assert hope.export_onnx(small.float(), X.float(), tmp_path / "small.onnx").path.is_file()
