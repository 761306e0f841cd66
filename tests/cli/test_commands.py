"""The command line as a person uses it: output, exit status, one-line errors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from hope.bench.networks import DigitsNet as Network
from hope.cli.main import main

MODEL = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))

def number():
    return 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_inspect_prints_the_table_of_a_model_in_a_file(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", f"{file}:build", "--input", "1x3x8x8"]) == 0
    out = capsys.readouterr().out
    assert "Sequential: 8 compressible neurons in 1 layers" in out
    assert "fan-out" in out


def test_inspect_knows_torchvision_and_timm_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchvision", reason="the torchvision extra is not installed")
    assert main(["inspect", "torchvision:squeezenet1_1", "--input", "1x3x64x64"]) == 0
    assert "SqueezeNet" in capsys.readouterr().out


def test_weights_are_loaded_and_checked(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file(Network().state_dict(), tmp_path / "other.safetensors")
    arguments = ["inspect", f"{file}:build", "--input", "1x3x8x8", "--weights"]
    assert main([*arguments, str(tmp_path / "other.safetensors")]) == 2
    assert "does not fit Sequential" in capsys.readouterr().err
    assert main([*arguments, str(tmp_path / "none.safetensors")]) == 2
    assert "no checkpoint" in capsys.readouterr().err


def test_checkpoint_with_code_in_it_is_refused(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(Network(), tmp_path / "whole.pt")
    assert main(["inspect", f"{file}:build", "--weights", str(tmp_path / "whole.pt")]) == 2
    assert "does not fit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("resnet18", "is not a model: give torchvision:NAME"),
        ("torchvision:nothing", "cannot be built"),
        ("missing.py:build", "there is no file"),
        ("{file}:number", "gives a int"),
        ("{file}:nothing", "cannot be built"),
    ],
)
def test_a_wrong_model_is_one_line_and_status_two(
    file: Path, model: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", model.format(file=file)]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.startswith("hope: ")
    assert err.count("\n") == 1


def test_a_wrong_input_shape_says_what_to_do(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{file}:build", "--input", "1,3,8"]) == 2
    assert "write it like 1x3x224x224" in capsys.readouterr().err
    assert main(["inspect", f"{file}:build", "--input", "1x5x8x8"]) == 2
    assert "cannot run on this example (1x5x8x8)" in capsys.readouterr().err


def test_demo_reads_cuts_saves_and_loads(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert "equal: True" in out.replace("\n", " ")
    assert (tmp_path / "run" / "trajectory.json").is_file()


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert "inspect" in out
    assert "demo" in out
