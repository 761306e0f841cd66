"""A saved run is data that can be trusted: complete, unaltered, for the right architecture, or refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import hope
from hope.demo import DigitsNet as Network
from hope.storage import run as store
from tests.support import assert_same, random_cut, randomise, run

EXAMPLE = torch.linspace(-1, 1, 4 * 64).reshape(4, 1, 8, 8)


@pytest.fixture
def saved(tmp_path: Path) -> tuple[Path, nn.Module]:
    """A folder with a merge, prunes and an eviction in it, and the model that it must give back."""
    model = randomise(Network()).eval()
    anatomy = hope.inspect(model, EXAMPLE)
    merge = hope.Merge("blocks.0.conv1", 0, 1, (0.5, 0.5), (1.0, 1.0), 0.8)
    prunes = [action for action in random_cut(anatomy) if action.name != "blocks.0.conv1"]
    actions = [merge, *prunes, hope.Evict("blocks.1", [0.25] * 16)]
    folder = hope.save(tmp_path / "run", model, anatomy, actions)
    return folder, hope.cut(model, anatomy, actions)


def test_fresh_process_rebuilds_it_without_tracing(saved: tuple[Path, nn.Module], tmp_path: Path) -> None:
    folder, small = saved
    save_file({"x": EXAMPLE}, tmp_path / "x.safetensors")
    program = """
import pickle, sys, torch
from safetensors.torch import load_file, save_file
def refuse(*args, **kwargs): raise AssertionError("not allowed here")
import hope
from hope.demo import DigitsNet as Network
torch.export.export = pickle.load = pickle.loads = torch.load = refuse
small = hope.load(sys.argv[1], Network()).eval()
save_file({"y": small(load_file(sys.argv[2])["x"]).detach()}, sys.argv[3])
"""
    paths = [str(folder), str(tmp_path / "x.safetensors"), str(tmp_path / "y.safetensors")]
    subprocess.run([sys.executable, "-c", program, *paths], check=True)
    assert_same([load_file(tmp_path / "y.safetensors")["y"]], run(small, EXAMPLE), 1e-6)


def test_load_leaves_the_fresh_model_as_it_was(saved: tuple[Path, nn.Module]) -> None:
    fresh = Network()
    before = store.fingerprint(fresh)
    hope.load(saved[0], fresh)
    assert store.fingerprint(fresh) == before


def test_half_precision_comes_back_in_half_precision(tmp_path: Path) -> None:
    model = Network().eval()
    anatomy = hope.inspect(model, EXAMPLE)
    hope.save(tmp_path, model.bfloat16(), anatomy, random_cut(anatomy))
    assert {p.dtype for p in hope.load(tmp_path, Network()).parameters()} == {torch.bfloat16}


def _weights(folder: Path) -> Path:
    (path,) = folder.glob("weights-*.safetensors")
    return path


def _edit(folder: Path, **changes: object) -> None:
    plan = json.loads((folder / store.PLAN).read_text())
    plan.update(changes)
    (folder / store.PLAN).write_text(json.dumps(plan))


def _truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def _flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(bytes(data))


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda folder: (folder / store.PLAN).unlink(), "not a saved run"),
        (lambda folder: _truncate(folder / store.PLAN), "truncated or not JSON"),
        (lambda folder: (folder / store.PLAN).write_text("[1]"), "not written by this package"),
        (lambda folder: _edit(folder, format="other"), "not written by this package"),
        (lambda folder: _edit(folder, version=99), "version 99"),
        (lambda folder: _edit(folder, actions=[]), "was altered"),
        (lambda folder: _weights(folder).unlink(), "is missing"),
        (lambda folder: _truncate(_weights(folder)), "truncated or altered"),
        (lambda folder: _flip(_weights(folder)), "truncated or altered"),
    ],
)
def test_damaged_folder_is_refused_in_one_line(
    saved: tuple[Path, nn.Module], harm: object, words: str
) -> None:
    harm(saved[0])  # type: ignore[operator]
    with pytest.raises(hope.DamagedFolder) as refusal:
        hope.load(saved[0], Network())
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_weights_outside_the_folder_are_never_read(saved: tuple[Path, nn.Module], tmp_path: Path) -> None:
    folder, _ = saved
    outside = tmp_path / "outside.safetensors"
    outside.write_bytes(_weights(folder).read_bytes())
    plan = json.loads((folder / store.PLAN).read_text())
    plan["weights"]["file"] = "../outside.safetensors"
    plan["sha256"] = store.digest_of(plan)
    (folder / store.PLAN).write_text(json.dumps(plan))
    with pytest.raises(hope.DamagedFolder, match="missing"):
        hope.load(folder, Network())


def test_another_architecture_is_refused(saved: tuple[Path, nn.Module]) -> None:
    other = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    with pytest.raises(hope.CheckpointMismatch, match=r"DigitsNet that .* was saved from, .* is missing"):
        hope.load(saved[0], other)


def test_a_failed_save_leaves_the_earlier_run_whole(
    saved: tuple[Path, nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, small = saved
    model = randomise(Network(), seed=5).eval()
    anatomy = hope.inspect(model, EXAMPLE)
    replace = os.replace

    def full_disk(source: object, target: Path) -> None:
        if Path(target).name == store.PLAN:
            raise OSError("no space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full_disk)
    with pytest.raises(OSError, match="no space"):
        hope.save(folder, model, anatomy, random_cut(anatomy))
    monkeypatch.undo()
    assert_same(run(hope.load(folder, Network()).eval(), EXAMPLE), run(small, EXAMPLE), 0)
    assert not list(folder.glob("*.part"))
    hope.save(folder, model, anatomy, random_cut(anatomy))
    assert len(list(folder.iterdir())) == 2


def test_fingerprint_tells_weights_apart() -> None:
    model = Network()
    before = store.fingerprint(model)
    assert before == store.fingerprint(model)
    with torch.no_grad():
        model.head.bias[0] += 1e-6
    assert store.fingerprint(model) != before
