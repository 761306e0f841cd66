"""`hope extract` asks for nothing that the run knows but code, and writes what can be served."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import hope
from hope.cli.main import main
from hope.cli.models import is_code, make

MODEL = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))
"""

TRUSTED = ("extract", "run", "--trust-source")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with net.py, w.safetensors and a run of them, in which the commands are typed."""
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text(MODEL)
    save_file(make("net.py:build").state_dict(), "w.safetensors")
    given = ["net.py:build", "--weights", "w.safetensors", "--input", "1x3x8x8"]
    assert main(["encode", *given, "--density", "0.5", "--out", "run"]) == 0
    return tmp_path


def reported(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line of an error."""
    err = capsys.readouterr().err
    assert err.startswith("hope: ")
    assert err.count("\n") == 1
    return err


def test_the_run_is_all_that_it_takes(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main([*TRUSTED]) == 0
    assert "run/small.safetensors: the weights" in capsys.readouterr().out
    assert load_file("run/small.safetensors")["0.weight"].shape[0] == 4
    assert main([*TRUSTED, "--density", "0.75", "--out", "six.safetensors"]) == 0
    assert load_file("six.safetensors")["0.weight"].shape[0] == 6


def test_the_original_weights_are_needed_for_another_budget_only(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("w.safetensors").rename("elsewhere.safetensors")
    assert main([*TRUSTED]) == 0
    assert main([*TRUSTED, "--density", "0.75"]) == 2
    err = reported(capsys)
    assert "there is no checkpoint w.safetensors" in err
    assert "run was made from it: give --weights FILE if it has moved" in err
    assert main([*TRUSTED, "--density", "0.75", "--weights", "elsewhere.safetensors"]) == 0


def test_what_is_given_wins(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.py").rename("moved.py")
    assert main([*TRUSTED]) == 2
    assert "give MODEL if it has moved" in reported(capsys)
    assert main(["extract", "run", "moved.py:build", "--density", "0.75"]) == 0
    assert main(["extract", "run", "gone.py:build"]) == 2
    assert "was made from" not in reported(capsys)


def test_a_run_made_by_hand_is_told_what_it_lacks(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net: nn.Module = make("net.py:build")
    hope.save("hand", net, hope.inspect(net, torch.zeros(1, 3, 8, 8)), [hope.Prune("0", [1, 2])])
    assert main(["extract", "hand"]) == 2
    assert "hand does not store it: give torchvision:NAME" in reported(capsys)
    assert main(["extract", "hand", "net.py:build"]) == 0
    assert load_file("hand/small.safetensors")["0.weight"].shape[0] == 6
    assert main(["extract", "hand", "net.py:build", "--onnx", "small.onnx"]) == 2
    assert "hand does not store it: give a shape like" in reported(capsys)


def test_what_is_served_comes_from_the_run_alone(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main([*TRUSTED, "--pt2", "small.pt2", "--density", "0.75"]) == 0
    out = capsys.readouterr().out
    assert "small.pt2: it takes batches of any size; its answers were checked" in out
    assert not Path("run/small.safetensors").exists()
    assert torch.export.load("small.pt2").module()(torch.zeros(5, 3, 8, 8)).shape == (5, 2)
    pytest.importorskip("onnxscript", reason="the onnx extra is not installed")
    pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    assert main([*TRUSTED, "--onnx", "small.onnx", "--no-check"]) == 0
    assert "its answers were not checked" in capsys.readouterr().out


def test_code_that_only_the_run_names_is_not_run(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.py").write_text(MODEL + "open('ran', 'w').close()\n")
    assert main(["extract", "run"]) == 2
    err = reported(capsys)
    assert "was made from net.py:build" in err
    assert "type hope extract run net.py:build, or add --trust-source" in err
    assert main(["extract", "run", "--density", "0.75", "--out", "x.safetensors"]) == 2
    assert main(["report", "run"]) == 0
    assert not Path("ran").exists()
    assert main(["extract", "run", "net.py:build"]) == 0
    assert Path("ran").exists()


def test_a_colon_more_does_not_make_code_of_a_library() -> None:
    assert all(map(is_code, ("net.py:build", "hf:net.py:build", "timm:net.py:build", "x:y")))
    assert not any(map(is_code, ("hf:net.py", "timm:vit", "torchvision:resnet18")))


@pytest.mark.parametrize("option", ["--out", "--onnx", "--pt2", "--save-pretrained"])
def test_the_run_and_what_it_was_made_from_are_not_written_over(
    place: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {file: file.read_bytes() for file in [*Path("run").glob("[!.]*"), Path("w.safetensors")]}
    assert any(file.name.startswith("moments") for file in before)
    Path("link").symlink_to("run/trajectory.json")
    for target in ("run/../run/partial.json", "link", *map(str, before)):
        capsys.readouterr()
        assert main(["extract", "run", "net.py:build", option, target]) == 2
        assert "belongs to the run: give another path" in reported(capsys)
    assert main(["extract", "run", "net.py:build", option, ""]) == 2
    assert f"argument {option}: a path must be given, got ''" in reported(capsys)
    assert {file: file.read_bytes() for file in before} == before
    assert not Path("run/small.safetensors").exists()
