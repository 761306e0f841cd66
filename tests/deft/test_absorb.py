"""Severing by absorption: the core takes over what slack told it, and stays as it is from then on."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.deft import Partition, Tuning
from hope.errors import InvalidPartition
from hope.geometry.projection import variances
from hope.statistics.checkpoint import Checkpoint
from hope.statistics.input_statistics import propagated_statistics
from tests.deft.nets import (
    Residual,
    assert_core_kept,
    assert_slack_moved,
    chain,
    core_entries,
    core_signals,
    images,
    made,
    slack_entries,
    train,
)


def dense(width: int = 10, inputs: int = 6) -> nn.Module:
    """A chain of linear layers: constants are exact behind it, there is no border."""
    return nn.Sequential(
        nn.Linear(inputs, width), nn.BatchNorm1d(width), nn.ReLU(),
        nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(),
        nn.Linear(width, 5),
    )  # fmt: skip


def flat(width: int = 8) -> nn.Module:
    """A head that reads several places of each channel."""
    return nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
        nn.AvgPool2d(4), nn.Flatten(), nn.Linear(4 * width, 5),
    )  # fmt: skip


class Forked(nn.Module):
    """Neurons that two weights read, one of them over a concatenation with others."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.a, self.bn_a = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.b, self.bn_b = nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width)
        self.c, self.bn_c = nn.Conv2d(2 * width, width, 1, bias=False), nn.BatchNorm2d(width)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        a = torch.relu(self.bn_a(self.a(x)))
        b = torch.relu(self.bn_b(self.b(a)))
        c = torch.relu(self.bn_c(self.c(torch.cat([a, b], dim=1))))
        return self.head(c.mean((2, 3)))


NETS = {"chain": chain, "residual": Residual, "flat": flat, "forked": Forked}


def seen(net: nn.Module, x: Tensor) -> nn.Module:
    """Numbers that look trained, and BN statistics of what the network really computes on some inputs."""
    made(net)
    for module in net.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.momentum = None
            module.reset_running_stats()
    for _ in range(6):  # layer after layer, the statistics in front settle
        net.train()(x)
    return net.eval()


def split(net: nn.Module, x: Tensor, slack: dict[str, list[int]]) -> Partition:
    """A partition with just this slack."""
    part = hope.deft.partition(net, x, percentile=0, merge=False)
    core = {name: torch.ones_like(mask) for name, mask in part.core.items()}
    for name, units in slack.items():
        core[name][units] = False
    return replace(part, core=core)


def both(net: nn.Module, part: Partition) -> tuple[Tuning, Tuning]:
    return tuple(hope.deft.prepare(net, part, head=4, sever=how) for how in ("absorb", "mask"))  # type: ignore[return-value]


def source_outputs(tuning: Tuning, x: Tensor) -> Tensor:
    with tuning.source() as model, torch.no_grad():
        return model(x)


def error(tuning: Tuning, net: nn.Module, x: Tensor) -> float:
    """How far the source task is from the source model, relative to its spread."""
    with torch.no_grad():
        want = net(x)
    return float((source_outputs(tuning, x) - want).square().mean().sqrt() / want.std())


# ---- where it is exact -------------------------------------------------------------------------------------


@pytest.mark.parametrize("reader", ["hidden", "head"])
def test_a_slack_twin_of_a_core_neuron_is_taken_over(reader: str) -> None:
    x = torch.randn(512, 6, generator=torch.Generator().manual_seed(0))
    net = dense()
    layer, bn = ("0", "1") if reader == "hidden" else ("3", "4")
    seen(net, x)
    with torch.no_grad():  # neuron 1 says what neuron 0 says
        for name in (layer, bn):
            for tensor in net.get_submodule(name).state_dict().values():
                if tensor.ndim:
                    tensor[1] = tensor[0]
    absorbed, masked = both(net, split(net, x[:2], {layer: [1]}))
    assert absorbed.notes == ()
    assert error(masked, net, x) > 0.02
    assert error(absorbed, net, x) < 0.02 * error(masked, net, x)


def test_a_constant_slack_neuron_is_lossless_behind_linear_readers() -> None:
    x = torch.randn(512, 6, generator=torch.Generator().manual_seed(0))
    net = seen(dense(), x)
    with torch.no_grad():  # in each layer one neuron that always says the same
        for bn in ("1", "4"):
            net.get_parameter(f"{bn}.weight")[2] = 0
            net.get_parameter(f"{bn}.bias")[2] = 1.5
    absorbed, masked = both(net, split(net, x[:2], {"0": [2], "3": [2]}))
    assert error(masked, net, x) > 0.05
    assert error(absorbed, net, x) < 1e-5


def test_without_slack_nothing_changes() -> None:
    net = made(Residual())
    part = hope.deft.partition(net, images(2), percentile=0, merge=False)
    tuning = hope.deft.prepare(net, part, head=4, sever="absorb")
    assert not tuning.rewritten
    assert torch.equal(source_outputs(tuning, images()), net(images()))


# ---- never worse than a mask, where the surrogate is right -------------------------------------------------


def shocks(net: nn.Module, part: Partition, tuning: Tuning) -> dict[str, float]:
    """Reading weight -> E‖Δz‖² of what it says to its core outputs, before its BN, under the surrogate."""
    dims = {p.tensor: p.dim for unit in part.units for p in unit.places if p.role == "in"}
    tensors = Checkpoint.of(net, part.anatomy).tensors
    input_statistics, _ = propagated_statistics(part.anatomy, Checkpoint.of(net, part.anatomy), dims=dims)
    now = {**dict(tuning.model.named_parameters()), **dict(tuning.model.named_buffers())}
    found = {}
    for weight in part.severed:
        statistics = input_statistics[weight]
        change = statistics.laid(now[weight]) - statistics.laid(tensors[weight])
        name = f"{statistics.bn}.running_mean" if statistics.bn else statistics.bias
        moved = (now[name] - tensors[name]).double() * (-1 if statistics.bn else 1)
        spread = variances(change, statistics.taps, statistics.covariance)
        found[weight] = float((spread + (change.sum(dim=1) @ statistics.mean + moved).square()).sum())
    return found


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("seed", range(3))
def test_the_shock_under_the_surrogate_is_no_larger_than_a_masks(name: str, seed: int) -> None:
    net = made(NETS[name](), seed)
    part = hope.deft.partition(net, images(2), percentile=50, merge=False)
    absorbed, masked = (shocks(net, part, tuning) for tuning in both(net, part))
    assert sum(masked.values()) > 0
    for weight, shock in masked.items():
        assert absorbed[weight] <= shock * (1 + 1e-5) + 1e-10, weight
    assert sum(absorbed.values()) < 0.9 * sum(masked.values())


@pytest.mark.parametrize("seed", range(4))
def test_on_gaussian_inputs_the_source_task_suffers_less(seed: int) -> None:
    x = torch.randn(2000, 6, generator=torch.Generator().manual_seed(seed))
    net = seen(dense(), x)
    absorbed, masked = both(net, hope.deft.partition(net, x[:2], percentile=50, merge=False))
    assert 0 < error(absorbed, net, x) < error(masked, net, x)


# ---- the guarantees ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("optimizer", ["momentum", "adamw"])
@pytest.mark.parametrize("merge", [False, True])
def test_the_core_and_the_source_task_stay_to_the_bit(name: str, optimizer: str, merge: bool) -> None:
    net = made(NETS[name]())
    part = hope.deft.partition(net, images(2), percentile=50, merge=merge)
    tuning = hope.deft.prepare(net, part, head=4, sever="absorb")
    core, slack, signals = core_entries(tuning), slack_entries(tuning), core_signals(tuning, part, images())
    parameters = tuning.model.parameters()
    if optimizer == "momentum":
        train(tuning.model, torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=0.1))
    else:
        train(tuning.model, torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.5))
    assert tuning.moved() == []
    assert_core_kept(core, core_entries(tuning))
    assert_slack_moved(slack, slack_entries(tuning))
    assert_core_kept(signals, core_signals(tuning, part, images()))


@pytest.mark.parametrize("name", NETS)
def test_slack_outputs_are_not_rewritten(name: str) -> None:
    net = made(NETS[name]())
    part = hope.deft.partition(net, images(2), percentile=50, merge=False)
    tuning = hope.deft.prepare(net, part, sever="absorb")
    assert tuning.notes == ()
    new, changed = tuning.model.state_dict(), 0
    for key, old in net.state_dict().items():
        if key.endswith("num_batches_tracked"):
            continue
        mask = part.frozen[key].expand(old.shape)
        assert torch.equal(new[key][~mask], old[~mask]), key
        changed += int((new[key][mask] != old[mask]).sum())
    assert changed
    for key, mask in part.severed.items():
        assert not new[key][mask.expand(new[key].shape)].any()


@pytest.mark.parametrize("name", NETS)
def test_the_head_listens_to_slack_unless_it_is_the_sources(name: str) -> None:
    net = made(NETS[name]())
    part = hope.deft.partition(net, images(2), percentile=50, merge=False)
    tuning = hope.deft.prepare(net, part, sever="absorb")
    weight, bias = f"{part.head}.weight", f"{part.head}.bias"
    original = net.get_parameter(weight)
    reads = part.head_columns[weight].expand(original.shape)
    assert torch.equal(tuning.model.get_parameter(weight), original)  # head=None: the new one starts from it
    with tuning.source() as model:
        assert not model.get_parameter(weight)[reads].any()
        assert not torch.equal(model.get_parameter(weight)[~reads], original[~reads])
        assert not torch.equal(model.get_parameter(bias), net.get_parameter(bias))
    with tuning.source(masked=False) as model:
        assert torch.equal(model.get_parameter(weight), original)
    assert torch.equal(tuning.model.get_parameter(weight), original)


def test_source_leaves_the_model_as_it_found_it() -> None:
    net = made(Residual())
    part = hope.deft.partition(net, images(2), percentile=50)
    tuning = hope.deft.prepare(net, part, head=4, sever="absorb")
    train(tuning.model, torch.optim.SGD(tuning.model.parameters(), lr=0.1))
    before = copy.deepcopy(tuning.model.state_dict())
    source_outputs(tuning, images())
    after = tuning.model.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(value, after[key]) for key, value in before.items())
    plain = Residual()
    plain.head = nn.Linear(16, 4)
    plain.load_state_dict(after)
    assert torch.equal(plain.eval()(images()), tuning.model.eval()(images()))


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("freeze", [False, True])
def test_a_saved_tuning_comes_back(tmp_path: Path, name: str, freeze: bool) -> None:
    net = made(NETS[name]())
    part = hope.deft.partition(net, images(2), percentile=50)
    tuning = hope.deft.prepare(net, part, head=4, sever="absorb", freeze_statistics=freeze)
    train(tuning.model, torch.optim.AdamW(tuning.model.parameters(), lr=0.01))
    tuning.save_pretrained(tmp_path)
    again = Tuning.from_pretrained(tmp_path, net)
    other = again.model.state_dict()
    assert all(torch.equal(value, other[key]) for key, value in tuning.model.state_dict().items())
    assert torch.equal(source_outputs(again, images()), source_outputs(tuning, images()))
    assert again.notes == tuning.notes
    train(again.model, torch.optim.AdamW(again.model.parameters(), lr=0.01, weight_decay=0.5))
    assert again.moved() == []
    again.save_pretrained(tmp_path)
    third = hope.deft.load(tmp_path, net)
    assert torch.equal(source_outputs(third, images()), source_outputs(tuning, images()))


# ---- where it does not work --------------------------------------------------------------------------------


class Halved(Residual):
    """A stream with an operation that the surrogate does not follow."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(torch.relu(self.stem(x)))
        return self.head(self.third(self.second(0.5 * x)).mean((2, 3)))


def test_where_moments_are_not_known_a_mask_has_to_do() -> None:
    net = made(Halved())
    part = hope.deft.partition(net, images(2), percentile=50, merge=False)
    absorbed, masked = both(net, part)
    names = ("second.conv1.weight", "second.skip.0.weight")
    words = "its weights for slack are masked, not absorbed: the moments of its input are unknown"
    assert absorbed.notes == tuple(f"{name}: {words}" for name in names)
    for name in names:
        assert torch.equal(absorbed.model.get_parameter(name), masked.model.get_parameter(name))
    other = "first.conv1.weight"
    assert not torch.equal(absorbed.model.get_parameter(other), masked.model.get_parameter(other))


def test_there_are_two_ways_to_sever() -> None:
    net = made(chain())
    part = hope.deft.partition(net, images(2), percentile=20)
    with pytest.raises(InvalidPartition, match="one of refit, mask, absorb"):
        hope.deft.prepare(net, part, sever="melt")


class Shared(nn.Module):
    """Two weights with one BN behind both."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.a, self.first = nn.Linear(6, width), nn.BatchNorm1d(width)
        self.b, self.c, self.both = nn.Linear(width, width), nn.Linear(width, width), nn.BatchNorm1d(width)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(self.a(x)))
        x = torch.relu(self.both(self.b(x)))
        return self.head(torch.relu(self.both(self.c(x))))


def test_a_bn_that_stands_behind_two_weights_takes_nothing_over() -> None:
    """What one of them reads from slack is no constant for the other."""
    net = made(Shared())
    part = hope.deft.partition(net, torch.zeros(2, 6), percentile=60, merge=False, core=["b", "c"])
    assert bool(part.severed["b.weight"].any())
    tuning = hope.deft.prepare(net, part, sever="absorb")
    assert any("b.weight" in note and "several times" in note for note in tuning.notes)
    assert torch.equal(tuning.model.both.running_mean, net.both.running_mean)
