"""Channels of residual streams, removed with all that writes and reads them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hope
from hope._util.tensors import owner
from hope.geometry.projection import unexplained
from hope.structure.anatomy import Anatomy
from hope.structure.sizes import sizes
from tests.support import assert_same, backward, random_cut, randomise, run

EXAMPLE = torch.randn(1, 3, 8, 8, generator=torch.Generator().manual_seed(3))


def conv(before: int, after: int, size: int = 3, stride: int = 1, groups: int = 1) -> nn.Conv2d:
    return nn.Conv2d(before, after, size, stride, size // 2, groups=groups, bias=False)


class Basic(nn.Module):
    """A branch beside an identity, a projection, or zeros on both sides of every second place."""

    def __init__(self, before: int, after: int, skip: str = "identity", squeeze: bool = False) -> None:
        super().__init__()
        stride = 1 if skip == "identity" else 2
        self.conv1, self.bn1 = conv(before, after, stride=stride), nn.BatchNorm2d(after)
        self.conv2, self.bn2 = conv(after, after), nn.BatchNorm2d(after)
        self.down: nn.Module | None = None
        self.pad = (after - before) // 2 if skip == "pad" else 0
        if skip == "projection":
            self.down = nn.Sequential(conv(before, after, 1, 2), nn.BatchNorm2d(after))
        self.fc1, self.fc2 = (nn.Linear(after, 3), nn.Linear(3, after)) if squeeze else (None, None)

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.fc1 is not None and self.fc2 is not None:
            y = y * torch.sigmoid(self.fc2(F.relu(self.fc1(y.mean((2, 3))))))[:, :, None, None]
        if self.pad:
            x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.pad, self.pad))
        return F.relu(y + (x if self.down is None else self.down(x)))


class Before(nn.Module):
    """A pre-activation branch."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(width), conv(width, width)
        self.bn2, self.conv2 = nn.BatchNorm2d(width), conv(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.conv2(F.relu(self.bn2(self.conv1(F.relu(self.bn1(x))))))


class Inverted(nn.Module):
    """A branch with a depthwise filter between two 1×1 convolutions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up, self.bn1 = conv(width, 2 * width, 1), nn.BatchNorm2d(2 * width)
        self.deep, self.bn2 = conv(2 * width, 2 * width, groups=2 * width), nn.BatchNorm2d(2 * width)
        self.down, self.bn3 = conv(2 * width, width, 1), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self.bn2(self.deep(F.relu6(self.bn1(self.up(x))))))
        return x + self.bn3(self.down(y))


class Joined(nn.Module):
    """A branch that is a concatenation: the stream has two kinds of channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.bna = conv(width, width // 2), nn.BatchNorm2d(width // 2)
        self.b, self.bnb = conv(width, width - width // 2), nn.BatchNorm2d(width - width // 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(x + torch.cat([self.bna(self.a(x)), self.bnb(self.b(x))], dim=1))


class Tower(nn.Module):
    """A stem, blocks, an average and a head."""

    def __init__(self, stem: int, out: int, *blocks: nn.Module) -> None:
        super().__init__()
        self.stem, self.bn = conv(3, stem), nn.BatchNorm2d(stem)
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(out, 4)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.blocks(F.relu(self.bn(self.stem(x)))).mean((2, 3)))
        return scores


TOWERS: dict[str, Callable[[], nn.Module]] = {
    "identity": lambda: Tower(6, 6, Basic(6, 6), Basic(6, 6)),
    "projection": lambda: Tower(6, 8, Basic(6, 6), Basic(6, 8, "projection"), Basic(8, 8)),
    "pad": lambda: Tower(6, 10, Basic(6, 6), Basic(6, 10, "pad"), Basic(10, 10)),
    "squeeze": lambda: Tower(6, 8, Basic(6, 6, squeeze=True), Basic(6, 8, "projection", squeeze=True)),
    "before": lambda: Tower(6, 6, Before(6), Before(6)),
    "inverted": lambda: Tower(6, 6, Inverted(6), Inverted(6)),
    "joined": lambda: Tower(6, 6, Joined(6), Basic(6, 6)),
}
CHANNELS = {"identity": [6], "projection": [6, 8], "pad": [6], "squeeze": [6, 8], "before": [6],
            "inverted": [6], "joined": [3, 3]}  # fmt: skip


def made(kind: str, double: bool = True) -> tuple[nn.Module, Anatomy]:
    torch.manual_seed(len(kind))
    net = randomise(TOWERS[kind]()).eval()
    return net.double() if double else net, hope.inspect(
        net, EXAMPLE.to(next(net.parameters())), streams=True
    )


def silent(model: nn.Module, anatomy: Anatomy, actions: Sequence[hope.Prune]) -> nn.Module:
    """A full-size copy whose hooks silence every write to channels that go, and every read of them."""
    full = copy.deepcopy(model)

    def still(dim: int, places: Tensor) -> Callable[..., Tensor]:
        def zero(x: Tensor) -> Tensor:
            return x.index_fill(dim if x.ndim > 1 else 0, places, 0)

        return zero

    for action in actions:
        for part in anatomy.unit(action.name).places:
            module, _ = owner(full, part.tensor)
            zero = still(1, torch.from_numpy(part.index[list(action.removed)].ravel()))
            if part.role == "in":
                module.register_forward_pre_hook(lambda _, args, zero=zero: (zero(args[0]),))  # type: ignore[misc]
            else:
                module.register_forward_hook(lambda _, args, out, zero=zero: zero(out))  # type: ignore[misc]
    return full


def macs(model: nn.Module, example: Tensor) -> int:
    """Multiply-accumulates as hooks count them."""
    total = 0

    def count(module: Any, _: Any, out: Tensor) -> None:
        nonlocal total
        total += module.weight.numel() * (out[0, 0].numel() if out.ndim == 4 else 1)

    watched = copy.deepcopy(model)
    for module in watched.modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            module.register_forward_hook(count)
    run(watched, example)
    return total


@pytest.mark.parametrize("kind", TOWERS)
def test_channels_that_go_are_those_that_nobody_writes_and_reads(kind: str) -> None:
    net, anatomy = made(kind)
    x = EXAMPLE.double()
    assert [unit.neurons for unit in anatomy.streams if unit.open] == CHANNELS[kind]
    streams = [unit.name for unit in anatomy.streams]
    for seed in range(3):
        cut = random_cut(anatomy, 0.4, seed)
        for actions in (cut, [one for one in cut if one.name in streams]):
            small = hope.cut(net, anatomy, actions)
            assert_same(run(small, x), run(silent(net, anatomy, actions), x), 1e-10)
            size = sizes(anatomy, actions)[-1]
            assert size[1] == sum(parameter.numel() for parameter in small.parameters())
            assert size[2] == macs(small, x)
            backward(small, torch.cat([x, x]))


@pytest.mark.parametrize("kind", ["identity", "projection", "pad", "joined"])
def test_the_bias_of_an_evicted_block_loses_what_its_stream_loses(kind: str) -> None:
    net, anatomy = made(kind)
    x = EXAMPLE.double()
    block = anatomy.blocks[-1]
    bias = torch.linspace(-1, 1, block.channels).tolist()
    actions = random_cut(anatomy, 0.4)
    small = hope.cut(net, anatomy, [*actions, hope.Evict(block.name, bias)])
    full = silent(net, anatomy, actions)
    last = full.get_submodule(block.last_bn or "")
    wanted = torch.tensor(bias, dtype=torch.float64)[:, None, None]
    last.register_forward_hook(lambda _, args, out: torch.zeros_like(out) + wanted)
    assert_same(run(small, x), run(full, x), 1e-10)
    table = sizes(anatomy, [*actions, hope.Evict(block.name, bias)])
    assert table[-1, 1] == sum(parameter.numel() for parameter in small.parameters())
    other = sizes(anatomy, [hope.Evict(block.name, bias), *actions])
    assert table[-1].tolist() == other[-1].tolist()


def test_a_channel_that_says_what_another_says_is_absorbed_without_a_loss() -> None:
    net, anatomy = made("projection")
    unit = anatomy.unit("blocks.1.conv2")
    tensors = {**dict(net.named_parameters()), **dict(net.named_buffers())}
    with torch.no_grad():
        for part in unit.places:
            if part.role != "in":
                tensor = tensors[part.tensor].movedim(part.dim, 0)
                tensor[int(part.index[5, 0])] = tensor[int(part.index[2, 0])]
    encoding = hope.encode(net, EXAMPLE.double(), density=0.5, streams=True, evict=False, anatomy=anatomy)
    (first, *_) = [step for step in encoding.trajectory if step.name == unit.name]
    assert first.removed[0] in (2, 5)
    small = hope.cut(
        net, anatomy, [first], input_statistics=encoding.input_statistics, rewrite=encoding.method.rewrite
    )
    torch.testing.assert_close(
        small(EXAMPLE.double()), net(EXAMPLE.double()), rtol=2e-2, atol=2e-3
    )  # up to the ridge
    lost = hope.cut(net, anatomy, [hope.Prune(unit.name, first.removed)])
    assert (lost(EXAMPLE.double()) - net(EXAMPLE.double())).abs().max() > 0.02


def test_channels_that_stay_are_survivors_for_good() -> None:
    root = torch.randn(9, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    covariance = root @ root.T
    wanted = torch.linalg.inv(covariance)[:5, :5]
    torch.testing.assert_close(torch.linalg.inv(unexplained(covariance, 5)), wanted)
    assert unexplained(covariance, 9) is covariance


METHODS = ("absorb", "paper", "l1-in", "l1-joint", "bn-scale", "random")


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["pad", "before", "squeeze"])
def test_every_method_removes_channels_and_its_runs_can_be_had_back(
    kind: str, method: str, tmp_path: Path
) -> None:
    net, anatomy = made(kind, double=False)
    most = anatomy.size().neurons - len(anatomy.layers)
    encoding = hope.encode(
        net, EXAMPLE, steps=most - 4, method=method, streams=True, evict=False, anatomy=anatomy
    )
    names = {unit.name for unit in encoding.anatomy.streams}
    taken = encoding.trajectory.steps[: encoding.steps]
    assert any(step.name in names for step in taken)
    assert {step.kind for step in encoding.trajectory if step.name in names} <= {"prune", "absorb"}
    assert encoding.size.parameters == sum(p.numel() for p in encoding.model.parameters())
    assert encoding.size.macs == macs(encoding.model, EXAMPLE)
    encoding.save(tmp_path / "run")
    fresh = TOWERS[kind]()
    assert_same(run(hope.load(tmp_path / "run", fresh).eval(), EXAMPLE), run(encoding.model, EXAMPLE), 1e-6)
    again = hope.load(tmp_path / "run", net, steps=most - 8).eval()
    assert_same(run(again, EXAMPLE), run(encoding.at(steps=most - 8), EXAMPLE), 1e-6)


@pytest.mark.parametrize("kind", TOWERS)
def test_cut_networks_are_exported(kind: str, tmp_path: Path) -> None:
    net, anatomy = made(kind, double=False)
    small = hope.cut(net, anatomy, random_cut(anatomy, 0.4))
    hope.export_program(small, EXAMPLE, tmp_path / "small.pt2")
    read = torch.export.load(tmp_path / "small.pt2").module()
    assert_same(run(read, EXAMPLE), run(small, EXAMPLE), 1e-5)


@pytest.mark.parametrize("kind", ["identity", "projection", "pad", "before"])
def test_the_loop_is_closed_behind_streams_too(kind: str) -> None:
    net, _ = made(kind, double=False)
    batches = [torch.randn(64, 3, 8, 8, generator=torch.Generator().manual_seed(n)) for n in range(6)]
    seen = torch.cat(batches)
    losses = []
    for refit in (False, True):
        method = hope.Absorb(calibration=batches, refit=refit)
        encoding = hope.encode(net, EXAMPLE, density=0.4, method=method, streams=True, evict=False)
        names = {unit.name for unit in encoding.anatomy.streams}
        assert any(step.name in names for step in encoding.trajectory.steps[: encoding.steps])
        with torch.no_grad():
            losses.append(float((encoding.model(seen) - net(seen)).square().mean()))
    assert losses[1] < 0.8 * losses[0]


def test_without_streams_nothing_changes() -> None:
    net, opened = made("projection", double=False)
    closed = hope.inspect(net, EXAMPLE)
    plain, reported = (
        hope.encode(net, EXAMPLE, params=0.6),
        hope.encode(net, EXAMPLE, params=0.6, streams=False),
    )
    assert plain.trajectory.steps == reported.trajectory.steps
    streams = {one.name for one in opened.streams}
    assert streams
    assert streams.isdisjoint(step.name for step in plain.trajectory)
    assert "streams" not in plain.settings
    for anatomy, streams in ((opened, False), (closed, True)):
        with pytest.raises(hope.UnknownMethod, match=f"inspect\\(..., streams={streams}\\)"):
            hope.encode(net, EXAMPLE, params=0.6, anatomy=anatomy, streams=streams)


def test_inspection_says_what_can_go_with_streams() -> None:
    net, opened = made("pad", double=False)
    closed = hope.inspect(net, EXAMPLE)
    words = {str(one.reason) for one in closed.skipped}
    tie = "stem, blocks.0.conv2, blocks.1.conv2 and 1 more"
    assert f"a stream: add in blocks.0 ties it to {tie}; prunable with streams=True" in words
    assert "with streams=True" in str(closed)
    assert not any("streams=True" in str(one.reason) for one in opened.skipped)
    assert closed.size().neurons + 6 == opened.size().neurons
    assert opened.floor().parameters < closed.floor().parameters
    left = {one.name: one.outputs for one in opened.skipped if one.reason.cause is hope.Cause.COMBINED}
    assert left == {"blocks.1.conv2": 4, "blocks.2.conv2": 4}
