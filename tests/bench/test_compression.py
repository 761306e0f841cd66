"""`hope bench compression` on a user's network and images: what is measured, recorded and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from hope.bench import compression, images
from hope.bench.accuracy import interval
from hope.cli.main import main
from hope.errors import InvalidExample
from tests.support import randomise

MODEL = """
from torch import nn

def build():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))
"""
SHAPE = (3, 8, 8)


def network() -> nn.Module:
    torch.manual_seed(3)
    scope: dict[str, Any] = {}
    exec(MODEL, scope)
    return randomise(scope["build"]()).eval()


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(MODEL)
    return f"{tmp_path / 'model.py'}:build"


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "images.npz"
    np.savez(path, x=rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8), y=np.arange(40) % 3)
    return path


def measure(*arguments: str) -> tuple[int, Path]:
    """Run the command; its results are the last argument."""
    return main(["bench", "compression", *arguments]), Path(arguments[-1])


def test_a_model_of_ones_own_is_measured_on_ones_own_images(
    spec: str, arrays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    weights = tmp_path / "w.safetensors"
    save_file(network().state_dict(), weights)
    given = ["--weights", str(weights), "--data", str(arrays), "--input", "1x3x8x8"]
    budgets = ["density=0.5", "params=0.5", "macs=0.6"]
    options = ["--methods", "absorb", "paper", "--budgets", *budgets]
    status, out = measure(spec, *given, *options, "--out", str(tmp_path / "new" / "r.json"))
    assert status == 0
    reported = capsys.readouterr().out
    results = json.loads(out.read_text())
    assert (results["images"], results["seed"], results["model"]) == (30, 0, spec)  # ten are set apart
    assert {"torch", "hope", "python"} <= results["versions"].keys()
    assert [(row["method"], row["budget"]) for row in results["rows"]] == [
        ("original", ""),
        *((method, budget) for method in ("absorb", "paper") for budget in budgets),
    ]
    units = {"density": "neurons", "params": "parameters", "macs": "macs"}
    for row in results["rows"]:
        unit, _, share = (row["budget"] or "density=1").partition("=")
        assert row[units[unit]] <= float(share)
        for figure in ("accuracy", "recalibrated"):
            assert row[f"{figure} interval"] == list(interval(row[figure], 30))
            assert f"{row[figure]:.3f}" in reported
    assert measure(spec, *given, *options, "--out", str(out))[0] == 0
    assert json.loads(out.read_text()) == results


def test_accuracies_are_those_of_the_networks_on_the_labelled_images(tmp_path: Path) -> None:
    model, x = network(), torch.randn(40, *SHAPE)
    with torch.no_grad():
        np.savez(tmp_path / "i.npz", x=x.numpy(), y=model(x).argmax(1).numpy())
    chosen = compression.read_images("net", model, torch.zeros(1, *SHAPE), tmp_path / "i.npz")
    results = compression.measure("net", model, chosen)
    assert results["rows"][0]["accuracy"] == 1.0
    assert [row["budget"] for row in results["rows"][1:]] == list(compression.BUDGETS)
    assert results["rows"][-1]["mix"]["absorb"] > 0


def test_a_budget_that_cannot_be_met_is_left_out_and_reported(
    spec: str, arrays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [spec, "--data", str(arrays), "--input", "1x3x8x8", "--budgets", "density=0.5", "density=0.01"]
    status, out = measure(*given, "--out", str(tmp_path / "r.json"))
    assert status == 0
    note = "without absorb at density=0.01: density=0.01 cannot be met"
    assert note in " ".join(capsys.readouterr().out.split())
    results = json.loads(out.read_text())
    assert [row["budget"] for row in results["rows"]] == ["", "density=0.5"]
    assert results["notes"][0].startswith(note)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["torchvision:resnet18", "--data", "{arrays}"],
            "must have trained weights, got none: give --weights",
        ),
        (["resnet19", "--data", "{arrays}"], "got 'resnet19'"),
        (["{spec}", "--data", "{arrays}", "--budgets", "half"], "got 'half': write it like params=0.65"),
        (["{spec}", "--data", "{arrays}", "--input", "1x5x8x8"], "give --input"),
        (["{spec}", "--data", "nowhere", "--input", "1x3x8x8"], "there is no folder or .npz file nowhere"),
        (["{spec}", "--data", "{arrays}", "--input", "1x3x8x8", "--budgets", "macs=0.001"], "cannot be met"),
    ],
)
def test_wrong_arguments_are_one_line(
    spec: str,
    arrays: Path,
    tmp_path: Path,
    arguments: list[str],
    words: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = [one.format(spec=spec, arrays=arrays) for one in arguments]
    status, out = measure(*given, "--out", str(tmp_path / "r.json"))
    err = capsys.readouterr().err
    assert status == 2
    assert words in err
    assert err.count("\n") == 1
    assert not out.exists()


def test_a_model_without_scores_is_refused(arrays: Path) -> None:
    with pytest.raises(images.UnusableImages, match="one score per class"):
        compression.read_images("net", nn.Identity(), torch.zeros(1, *SHAPE), arrays)

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    with pytest.raises(InvalidExample, match=r"cannot run on inputs .* \(no\)"):
        compression.read_images("net", Broken(), torch.zeros(1, *SHAPE), arrays)
