"""Healing: never below the start, to the bit where it must be, and bad input is refused in one line."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.errors import HopeError, InvalidExample, UnknownMethod
from hope.evaluate.fidelity import Fidelity
from hope.healing import loop as loops
from hope.healing.loop import Loop
from tests.support import randomise

EXAMPLE = torch.zeros(1, 3, 8, 8)


@pytest.fixture(autouse=True)
def one_thread() -> Any:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Residual(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU())
        self.first = nn.Conv2d(width, 2 * width, 3, padding=1)
        self.norm = nn.BatchNorm2d(2 * width)
        self.second = nn.Conv2d(2 * width, width, 3, padding=1)
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))
        return self.head(x.mean(dim=(2, 3)))


def networks(removed: Sequence[int] = range(12)) -> tuple[nn.Module, nn.Module]:
    torch.manual_seed(0)
    net = randomise(Residual()).eval()
    anatomy = hope.inspect(net, EXAMPLE)
    return net, hope.cut(net, anatomy, [hope.Prune("first", list(removed))])


def images(count: int = 64, seed: int = 1) -> Tensor:
    return torch.randn(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def same(a: nn.Module, b: nn.Module) -> bool:
    pairs = zip(a.state_dict().items(), b.state_dict().items(), strict=True)
    return all(m == n and torch.equal(x, y) for (m, x), (n, y) in pairs)


def test_healing_comes_nearer_to_the_original_on_inputs_it_never_saw() -> None:
    net, small = networks()
    before = copy.deepcopy(net), copy.deepcopy(small)
    healed = hope.heal(net, small, [images()], steps=60)
    others = Fidelity(net, None, inputs=[images(64, seed=2)], count=64)
    assert healed.after > healed.before
    assert others(healed.model) > others(small)
    assert same(net, before[0])  # neither is changed
    assert same(small, before[1])
    assert type(healed.model) is type(small)
    assert str(healed).startswith(
        f"healed: held-out fidelity {healed.before:.3f} -> {healed.after:.3f}, {healed.steps} "
    )


def test_what_makes_it_worse_is_not_kept(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    net, small = networks()
    monkeypatch.setattr(loops, "RATE", 1e9)
    healed = hope.heal(net, small, [images()], steps=20)
    assert healed.after == healed.before
    assert same(healed.model, small)
    assert "nothing was gained" in str(healed)
    assert "the network is unchanged" in capsys.readouterr().err


def test_a_network_that_needs_no_healing_is_unchanged() -> None:
    net, _ = networks()
    healed = hope.heal(net, net, [images()], steps=5)
    assert same(healed.model, net)
    assert healed.steps == 0
    assert "both networks give the same answers already" in str(healed)


def test_it_stops_when_nothing_is_gained(monkeypatch: pytest.MonkeyPatch) -> None:
    net, small = networks()
    monkeypatch.setattr(loops, "RATE", 0.0)
    healed = hope.heal(net, small, [images()], steps=200)
    assert healed.steps < 120
    assert "nothing was gained in the last" in healed.stopped


def test_frozen_parameters_and_statistics_stay_to_the_bit() -> None:
    net, small = networks()
    small.stem[0].weight.requires_grad_(False)
    healed = hope.heal(net, small, [images()], steps=10, exclude=["head"]).model
    state, before = healed.state_dict(), small.state_dict()
    moved = {name for name in state if not torch.equal(state[name], before[name])}
    assert {"first.weight", "second.weight", "norm.weight", "stem.1.weight", "stem.0.bias"} <= moved
    assert not moved & {"stem.0.weight", "head.weight", "head.bias"}
    assert not any("running" in name or "num_batches" in name for name in moved)


@pytest.mark.parametrize("stop_at", [3, 17])
def test_a_resumed_run_gives_the_same_network_to_the_bit(
    stop_at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, small = networks()
    batches = list(images().split(16))
    whole = hope.heal(net, small, batches, steps=30)
    file, step = tmp_path / "heal.safetensors", Loop._step

    def stopped(self: Loop, share: float) -> None:
        if self.state.steps == stop_at:
            raise KeyboardInterrupt
        step(self, share)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "_step", stopped)
        part = hope.heal(net, small, batches, steps=30, checkpoint=file)
    assert part.steps == stop_at
    assert part.after >= part.before
    assert f"interrupted after {stop_at} steps" in part.stopped
    assert file.exists()
    resumed: list[int] = []

    def counted(self: Loop, share: float) -> None:
        resumed.append(self.state.steps)
        step(self, share)

    monkeypatch.setattr(Loop, "_step", counted)
    again = hope.heal(net, small, batches, steps=30, checkpoint=file)
    assert 0 < resumed[0] <= stop_at
    assert same(again.model, whole.model)
    assert (again.before, again.after, again.steps) == (whole.before, whole.after, whole.steps)
    assert not file.exists()


def test_a_loss_that_is_not_finite_stops_and_says_where(monkeypatch: pytest.MonkeyPatch) -> None:
    net, small = networks()
    step = Loop._step

    def broken(self: Loop, share: float) -> None:
        if self.state.steps == 12:
            with torch.no_grad():
                self.small.first.weight.fill_(float("nan"))
        step(self, share)

    monkeypatch.setattr(Loop, "_step", broken)
    healed = hope.heal(net, small, [images()], steps=40)
    assert "at step 12 the loss was not finite (output)" in healed.stopped
    assert healed.after > healed.before
    assert all(bool(p.isfinite().all()) for p in healed.model.parameters())


@pytest.mark.parametrize("bits", [8, 4])
def test_rounded_weights_stay_on_their_grid(bits: int) -> None:
    net, _ = networks()
    anatomy = hope.inspect(net, EXAMPLE)
    weights = ("stem.0.weight", "first.weight", "head.weight")
    actions = [hope.Prune("first", [1, 4, 6, 9]), *(hope.Quantise(name, bits) for name in weights)]
    small = hope.cut(net, anatomy, actions)
    healed = hope.heal(net, small, [images()], steps=40)
    assert healed.after > healed.before
    moved = []
    for name in weights:
        before, after = (net.get_parameter(name).detach().flatten(1) for net in (small, healed.model))
        levels = 2 ** (bits - 1) - 1
        scale = before.abs().amax(dim=1) / levels
        whole = after / scale[:, None]
        assert torch.allclose(whole, whole.round(), atol=1e-3)
        assert whole.abs().max() <= levels + 1e-3
        moved.append(not torch.equal(before, after))
    assert any(moved)


def test_without_data_it_dreams() -> None:
    net, small = networks()
    healed = hope.heal(net, small, steps=20, example=EXAMPLE)
    assert healed.after >= healed.before
    assert healed.inputs + healed.held == 4 * 128


NO_FILES = """
import os, sys
os.environ["HF_HUB_OFFLINE"] = "1"
import torch, hope
from tests.healing.test_heal import EXAMPLE, networks
torch.set_num_threads(1)
net, small = networks()
hope.heal(net, small, steps=1, example=EXAMPLE, progress=False)  # what is imported late is imported
names = []

def seen(event, arguments):
    if event in ("open", "os.mkdir", "os.rename", "os.remove", "socket.connect"):
        names.append(str(arguments[0]))

sys.addaudithook(seen)
open(os.devnull).close()
hope.heal(net, small, steps=3, example=EXAMPLE, progress=False)
print([name for name in names if not name.endswith((".py", ".pyc"))])
"""


def test_without_data_no_file_is_touched(tmp_path: Path) -> None:
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))}
    call = [sys.executable, "-c", NO_FILES]
    done = subprocess.run(call, cwd=tmp_path, env=paths, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == str([os.devnull])  # what the test itself opens
    assert not any(tmp_path.iterdir())


def test_pairs_of_inputs_and_labels_are_read_without_labels() -> None:
    net, small = networks()
    pairs = [(x, torch.zeros(len(x)).long()) for x in images().split(32)]
    one, other = (hope.heal(net, small, some, steps=5) for some in (pairs, [images()]))
    assert same(one.model, other.model)


def test_features_are_compared_at_the_ends_of_stages() -> None:
    from hope.healing.distillation import Distillation

    net, small = networks()
    assert [*Distillation(net, small, (images(2),)).features] == ["second"]


WRONG: list[tuple[Callable[[nn.Module, nn.Module], Any], type[HopeError], str]] = [
    (lambda net, small: hope.heal(net, small, [images()]), UnknownMethod, "minutes= or steps="),
    (
        lambda net, small: hope.heal(net, small, [images()], steps=3, minutes=1),
        UnknownMethod,
        "minutes= or steps=",
    ),
    (
        lambda net, small: hope.heal(net, small, [images()], minutes=0),
        UnknownMethod,
        "minutes must be a number above 0, got 0",
    ),
    (
        lambda net, small: hope.heal(net, small, [images()], minutes=float("nan")),
        UnknownMethod,
        "minutes must be a number above 0, got nan",
    ),
    (
        lambda net, small: hope.heal(net, small, [images()], steps=0),
        UnknownMethod,
        "steps must be a whole number from 1, got 0",
    ),
    (lambda net, small: hope.heal(net, small, [], steps=3), InvalidExample, "batches must not be empty"),
    (
        lambda net, small: hope.heal(net, small, [images(15)], steps=3),
        InvalidExample,
        "at least 16 inputs, of which it holds 8 out, got 15",
    ),
    (
        lambda net, small: hope.heal(net, small, [images(), images()[:, :, :6]], steps=3),
        InvalidExample,
        "got 3x6x8 in batch 1 and 3x8x8 in batch 0",
    ),
    (
        lambda net, small: hope.heal(net, small, [images()[:, :2]], steps=3),
        InvalidExample,
        "must be batches that the model runs on, got",
    ),
    (
        lambda net, small: hope.heal(net, small, [images() / 0], steps=3),
        InvalidExample,
        "batch 0 must have finite entries, got NaN or infinite ones",
    ),
    (lambda net, small: hope.heal(net, small, steps=3), InvalidExample, "got none: pass what the model"),
    (
        lambda net, small: hope.heal(net, nn.Sequential(small, nn.Linear(5, 4)), [images()], steps=3),
        InvalidExample,
        "outputs of both networks must have the same shapes, got (2, 5) and (2, 4)",
    ),
    (
        lambda net, small: hope.heal(net, small, [images()], steps=3, exclude=["*"]),
        InvalidExample,
        "must have parameters to train",
    ),
]


@pytest.mark.parametrize(("call", "kind", "words"), WRONG, ids=[words for _, _, words in WRONG])
def test_bad_input_is_refused_in_one_line(
    call: Callable[[nn.Module, nn.Module], Any], kind: type[HopeError], words: str
) -> None:
    with pytest.raises(kind) as caught:
        call(*networks())
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
