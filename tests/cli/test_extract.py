"""`hope extract` asks for nothing that the run knows, and writes what can be served."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import hope
from hope.cli.main import main
from hope.cli.models import make

MODEL = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with net.py, w.safetensors and a run of them, in which the commands are typed."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)
    save_file(make("net.py:build").state_dict(), "w.safetensors")
    given = ["net.py:build", "--weights", "w.safetensors", "--input", "1x3x8x8"]
    assert main(["encode", *given, "--density", "0.5", "--out", "run"]) == 0
    return tmp_path


def told(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of an error."""
    err = capsys.readouterr().err
    assert err.startswith("hope: ")
    assert err.count("\n") == 1
    return err


def test_the_run_is_all_that_it_takes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["extract", "run"]) == 0
    assert "run/small.safetensors: the weights" in capsys.readouterr().out
    assert load_file("run/small.safetensors")["0.weight"].shape[0] == 4
    assert main(["extract", "run", "--density", "0.75", "--out", "six.safetensors"]) == 0
    assert load_file("six.safetensors")["0.weight"].shape[0] == 6


def test_the_original_weights_are_needed_for_another_budget_only(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("w.safetensors").rename("elsewhere.safetensors")
    assert main(["extract", "run"]) == 0
    assert main(["extract", "run", "--density", "0.75"]) == 2
    err = told(capsys)
    assert "there is no checkpoint w.safetensors" in err
    assert "this is what run was made from: give --weights FILE if it has moved" in err
    assert main(["extract", "run", "--density", "0.75", "--weights", "elsewhere.safetensors"]) == 0


def test_what_is_given_wins(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.py").rename("moved.py")
    assert main(["extract", "run"]) == 2
    assert "give MODEL if it has moved" in told(capsys)
    assert main(["extract", "run", "moved.py:build", "--density", "0.75"]) == 0
    assert main(["extract", "run", "gone.py:build"]) == 2
    assert "was made from" not in told(capsys)


def test_a_run_made_by_hand_is_told_what_it_lacks(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net: nn.Module = make("net.py:build")
    hope.save("hand", net, hope.inspect(net, torch.zeros(1, 3, 8, 8)), [hope.Prune("0", [1, 2])])
    assert main(["extract", "hand"]) == 2
    assert "hand does not know its MODEL: give torchvision:NAME" in told(capsys)
    assert main(["extract", "hand", "net.py:build"]) == 0
    assert load_file("hand/small.safetensors")["0.weight"].shape[0] == 6
    assert main(["extract", "hand", "net.py:build", "--onnx", "small.onnx"]) == 2
    assert "hand does not know its --input: give a shape like" in told(capsys)


def test_what_is_served_comes_from_the_run_alone(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["extract", "run", "--pt2", "small.pt2", "--density", "0.75"]) == 0
    out = capsys.readouterr().out
    assert "small.pt2: it takes batches of any size; its answers were checked" in out
    assert not Path("run/small.safetensors").exists()
    assert torch.export.load("small.pt2").module()(torch.zeros(5, 3, 8, 8)).shape == (5, 2)
    pytest.importorskip("onnxscript", reason="the onnx extra is not installed")
    pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    assert main(["extract", "run", "--onnx", "small.onnx", "--no-check"]) == 0
    assert "its answers were not checked" in capsys.readouterr().out
