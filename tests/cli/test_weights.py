"""Checkpoints as people have them, and files that are none."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hope.cli.weights import load_weights
from hope.errors import CheckpointMismatch


def network(classes: int = 2) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Linear(8, classes))


def prefixed(prefix: str, state: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}{name}": value for name, value in state.items()}


WRAPPED: list[tuple[Callable[[dict[str, Any]], Any], list[str]]] = [
    (lambda state: state, []),
    (lambda state: {"state_dict": state, "epoch": 3}, ["using its entry 'state_dict'"]),
    (lambda state: {"model": state, "optimizer": {"lr": 0.1}}, ["'model'"]),
    (lambda state: {"model_state_dict": state, "best": torch.tensor(0.5)}, ["'model_state_dict'"]),
    (lambda state: {"state_dict": {"model": state}}, ["'state_dict'", "'model'"]),
    (lambda state: prefixed("module.", state), ["the prefix 'module.' is removed"]),
    (lambda state: prefixed("_orig_mod.", state), ["'_orig_mod.'"]),
    (
        lambda state: {"state_dict": prefixed("_orig_mod.module.", state)},
        ["'state_dict'", "'_orig_mod.'", "'module.'"],
    ),
]


@pytest.mark.parametrize(("wrap", "notes"), WRAPPED)
def test_a_wrapped_state_dict_is_unwrapped_and_that_is_reported(
    wrap: Callable[[dict[str, Any]], Any],
    notes: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    trained, fresh = network(), network()
    torch.save(wrap(trained.state_dict()), tmp_path / "w.pth")
    load_weights(fresh, tmp_path / "w.pth")
    assert torch.equal(fresh[0].weight, trained[0].weight)
    err = capsys.readouterr().err
    assert err.count("note: ") == len(notes)
    assert all(words in err for words in notes)


def test_a_prefix_that_the_model_has_itself_stays(tmp_path: Path) -> None:
    net = nn.Module()
    net.module = nn.Linear(2, 2)
    save_file(net.state_dict(), tmp_path / "w.safetensors")
    load_weights(net, tmp_path / "w.safetensors")


def test_names_and_shapes_that_do_not_fit_are_named_with_their_counts(tmp_path: Path) -> None:
    state = network(5).state_dict()
    state["other.weight"] = torch.zeros(1)
    for name in ("0.weight", "0.bias", "1.weight", "1.bias"):
        del state[name]
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(CheckpointMismatch) as caught:
        load_weights(network(), tmp_path / "w.safetensors")
    words = str(caught.value)
    assert "4 missing (0.weight, 0.bias, 1.weight, …)" in words
    assert "1 unexpected (other.weight)" in words
    assert "2 of another shape (3.weight: 5x8 in the file, 2x8 in the model" in words
    assert "\n" not in words


def _files(folder: Path) -> dict[str, str]:
    """Files that are no checkpoints -> what is said of them."""
    whole, state = folder / "whole.pt", network().state_dict()
    torch.save(network(), whole)
    torch.save(network(), folder / "old.pt", _use_new_zipfile_serialization=False)
    torch.save(state, folder / "cut.pt")
    save_file(state, folder / "cut.safetensors")
    for name in ("cut.pt", "cut.safetensors"):
        (folder / name).write_bytes((folder / name).read_bytes()[:-200])
    torch.save([1, 2], folder / "list.pt")
    torch.save({"epoch": 1, "lr": 0.1}, folder / "empty.pt")
    (folder / "nothing.pt").write_bytes(b"")
    (folder / "text.pt").write_text("accuracy 0.9\n")
    (folder / "page.pt").write_text("<!DOCTYPE html><html>404</html>")
    (folder / "lfs.pt").write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    (folder / "noise.pt").write_bytes(bytes(range(130, 256)))
    np.save(folder / "array.npy", np.zeros(3))
    np.savez(folder / "arrays.npz", x=np.zeros(3))
    return {
        "whole.pt": "a whole pickled model?",
        "old.pt": "a whole pickled model?",
        "cut.pt": "truncated or damaged",
        "cut.safetensors": "truncated or damaged",
        "list.pt": "holds a list: give a state dict",
        "empty.pt": "it contains no weights but epoch, lr",
        "nothing.pt": "it is empty",
        "text.pt": "it is a text file",
        "page.pt": "a web page",
        "lfs.pt": "git lfs pull",
        "noise.pt": "it is not a checkpoint",
        "array.npy": "a NumPy array",
        "arrays.npz": "NumPy arrays (.npz)",
        ".": "is a folder",
        "none.pt": "there is no checkpoint",
    }


def test_files_that_are_no_checkpoints_say_what_they_are(tmp_path: Path) -> None:
    for name, words in _files(tmp_path).items():
        with pytest.raises(CheckpointMismatch) as caught:
            load_weights(network(), tmp_path / name)
        assert words in str(caught.value), name
        assert "\n" not in str(caught.value), name


@pytest.mark.parametrize("model", ["torchvision:squeezenet1_1", "timm:tinynet_e"])
def test_the_command_line_builds_library_models_without_what_the_tests_prepare(model: str) -> None:
    source = model.partition(":")[0]
    pytest.importorskip(source, reason=f"the {source} extra is not installed")
    command = [sys.executable, "-m", "hope.cli.main", "inspect", model, "--input", "1x3x64x64"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "compressible neurons" in done.stdout
    assert done.stderr.count("compiled operators") <= 1
