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
from hope.bench.datasets import MissingData
from hope.cli.main import main
from hope.errors import InvalidExample
from tests.support import randomise

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

MODEL = """
import torch
from torch import nn

def build():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, padding=1),
        nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3))

def seeded():
    torch.manual_seed(0)
    return build()
"""
SHAPE = (3, 8, 8)


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


def picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (8, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


def measure(*arguments: str) -> tuple[int, Path]:
    """Run the command; its results are the last argument."""
    return main(["bench", "compression", *arguments]), Path(arguments[-1])


def test_a_model_of_ones_own_is_measured_on_ones_own_images(
    spec: str, arrays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.manual_seed(3)
    scope: dict[str, Any] = {}
    exec(MODEL, scope)
    weights = tmp_path / "w.safetensors"
    save_file(randomise(scope["build"]()).state_dict(), weights)
    given = ["--checkpoint", str(weights), "--images-from", str(arrays), "--input", "1x3x8x8"]
    options = ["--methods", "absorb", "hope", "--budgets", "density=0.5", "params=0.5", "macs=0.6"]
    status, out = measure(spec, *given, *options, "--out", str(tmp_path / "r.json"))
    assert status == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "neurons kept" in told
    assert "time / hope" in told
    results = json.loads(out.read_text())
    entry = results["networks"][spec]
    assert (entry["images"], entry["seed"]) == (30, 0)  # ten are set apart
    assert "torch-pruning" not in results["versions"]
    for method in ("absorb", "hope"):
        assert set(entry["points"][method]) == {"density=0.5", "params=0.5", "macs=0.6"}
        for budget, kept in (("density=0.5", "neurons"), ("params=0.5", "parameters"), ("macs=0.6", "macs")):
            point = entry["points"][method][budget]
            assert point[kept] <= float(budget.partition("=")[2])
            assert point["time / hope"] == pytest.approx(
                point["seconds"] / entry["points"]["hope"][budget]["seconds"]
            )
    again = measure(spec, *given, *options, "--seed", "1", "--out", str(out))
    assert again[0] == 2
    assert "with seed 0, not 1" in capsys.readouterr().err


def test_times_of_different_runs_are_not_compared(spec: str, arrays: Path, tmp_path: Path) -> None:
    given = ["--images-from", str(arrays), "--input", "1x3x8x8", "--budgets", "density=0.5"]
    builder = spec.replace(":build", ":seeded")
    _, out = measure(builder, *given, "--methods", "hope", "--out", str(tmp_path / "r.json"))
    status, _ = measure(builder, *given, "--methods", "l1-in", "--out", str(out))
    assert status == 0
    points = json.loads(out.read_text())["networks"][builder]["points"]
    assert "time / hope" in points["hope"]["density=0.5"]
    assert "time / hope" not in points["l1-in"]["density=0.5"]


def test_peers_are_timed_by_what_they_do_and_their_version_is_kept(
    spec: str, arrays: Path, tmp_path: Path
) -> None:
    pytest.importorskip("torch_pruning", reason="the peers extra is not installed")
    given = ["--images-from", str(arrays), "--input", "1x3x8x8", "--budgets", "macs=0.5"]
    method = "torch-pruning magnitude"
    status, out = measure(spec, *given, "--methods", method, "hope", "--out", str(tmp_path / "r.json"))
    assert status == 0
    results = json.loads(out.read_text())
    assert "torch-pruning" in results["versions"]
    point = results["networks"][spec]["points"][method]["macs=0.5"]
    assert point["macs"] <= 0.5
    assert point["time / hope"] > 0


def test_sub_folders_are_classes_in_the_order_of_their_names(tmp_path: Path) -> None:
    colours = {"ape": (255, 0, 0), "bee": (0, 255, 0), "cat": (0, 0, 255)}
    for name, colour in colours.items():
        for k in range(6):
            picture(tmp_path / "i" / name / f"{k}.png", colour, (20, 12))
    (tmp_path / "i" / "notes.txt").write_text("not an image")
    read = images.read(tmp_path / "i", SHAPE, 3, mean=[0, 0, 0], std=[1, 1, 1])
    assert read.images.shape == (14, *SHAPE)
    assert read.unlabelled.shape == (4, *SHAPE)
    assert torch.equal(read.images.mean((2, 3)).argmax(1), read.labels)
    assert torch.equal(read.images.amax((1, 2, 3)), torch.ones(14))


def test_files_named_by_class_number_need_no_folders(tmp_path: Path) -> None:
    for k in range(12):
        picture(tmp_path / "i" / f"{k:04d}.png", (20 * k, 0, 0))
    read = images.read(tmp_path / "i", SHAPE, 12, mean=[0, 0, 0], std=[1 / 255] * 3)
    assert torch.equal((read.images[:, 0, 0, 0] / 20).round().long(), read.labels)


def test_an_image_is_scaled_and_cropped_in_the_middle(tmp_path: Path) -> None:
    pixels = np.zeros((16, 48, 3), np.uint8)
    pixels[:, 16:32] = 255  # the middle third
    for k in range(8):
        (tmp_path / "i").mkdir(exist_ok=True)
        Image.fromarray(pixels).save(tmp_path / "i" / f"{k}.png")
    read = images.read(tmp_path / "i", SHAPE, 8, mean=[0, 0, 0], std=[1, 1, 1])
    assert read.images[..., 2:6].min() == 1


def test_float_arrays_are_taken_as_they_are_and_grey_ones_too(tmp_path: Path) -> None:
    x = torch.randn(12, 1, 8, 8).numpy()
    np.savez(tmp_path / "f.npz", x=x, y=np.arange(12))
    read = images.read(tmp_path / "f.npz", (1, 8, 8), 12)
    assert np.array_equal(read.images.numpy(), x[read.labels.numpy()])
    with pytest.raises(images.UnusableImages, match="leave --mean and --std out"):
        images.read(tmp_path / "f.npz", (1, 8, 8), 12, mean=[0.5])
    np.savez(tmp_path / "u.npz", x=np.full((12, 8, 8, 1), 255, np.uint8), y=np.arange(12))
    assert images.read(tmp_path / "u.npz", (1, 8, 8), 12).images.unique().tolist() == [1.0]


def test_the_seed_chooses_the_images(arrays: Path) -> None:
    first, same, other = (images.read(arrays, SHAPE, 3, count=5, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.images, same.images)
    assert not torch.equal(first.images, other.images)
    assert len(first.images) == 5


def refused(source: Path, words: str, kind: type[Exception] = images.UnusableImages, **options: Any) -> None:
    with pytest.raises(kind, match=words):
        images.read(source, options.pop("shape", SHAPE), options.pop("outputs", 3), **options)


def test_what_cannot_be_measured_on_is_named(tmp_path: Path, arrays: Path) -> None:
    refused(tmp_path / "none", "there is no folder or .npz file", MissingData)
    refused(arrays, r"classes 0 to 2, but the model has 2 outputs", outputs=2)
    refused(arrays, r"float Nx3x9x9 is needed", shape=(3, 9, 9))
    refused(arrays, "are no images", shape=(8,))
    refused(arrays, "need 3 numbers each", mean=[0.5])
    refused(arrays, "--images 1 or more", count=0)
    empty = tmp_path / "empty"
    (empty / "a").mkdir(parents=True)
    refused(empty, "there are no images in", MissingData)
    for k in range(9):
        picture(empty / "a" / f"{k}.png", (0, 0, 0))
    refused(empty, "has 1 sub-folders, but the model has 3 outputs")
    for k in range(9):
        (empty / "a" / f"{k}.png").write_bytes(b"junk")
    refused(empty, r"\d.png cannot be read as an image .* move it away", outputs=1)
    picture(tmp_path / "flat" / "dog.png", (0, 0, 0))
    refused(tmp_path / "flat", "dog.png tells no class")
    (tmp_path / "flat" / "dog.png").rename(tmp_path / "flat" / "1.png")
    refused(tmp_path / "flat", "has 1 images: give at least 8")


def test_arrays_that_are_something_else_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    x = np.zeros((9, 8, 8, 3), np.uint8)
    path.write_bytes(b"junk")
    refused(path, "cannot be read")
    np.savez(path, x=x)
    refused(path, "it needs arrays x and y")
    np.savez(path, x=np.array([{}]), y=np.arange(9))
    refused(path, "cannot be read")  # no pickle
    np.savez(path, x=x, y=np.zeros(8, np.int64))
    refused(path, "one whole number per image")
    np.savez(path, x=x, y=np.zeros(9))
    refused(path, "one whole number per image")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["{spec}"], "needs images to be measured on: give --images-from"),
        (["cifar10-resnet20", "--images-from", "x"], "belong to a MODEL of your own"),
        (["torchvision:resnet18", "--images-from", "{arrays}"], "random weights as it is: give --checkpoint"),
        (["{spec}", "{spec}", "--images-from", "{arrays}", "--checkpoint", "w"], "fits one model"),
        (["resnet19"], "there is no network 'resnet19': choose from"),
        (["{spec}", "--images-from", "{arrays}", "--methods", "best"], "there is no method 'best'"),
        (["{spec}", "--images-from", "{arrays}", "--budgets", "half"], "'half' is not a budget"),
        (["{spec}", "--images-from", "{arrays}", "--input", "1x5x8x8"], "give --input"),
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
        compression.own_task("net", nn.Identity(), torch.zeros(1, *SHAPE), arrays)

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise ValueError("no")

    with pytest.raises(InvalidExample, match=r"cannot run on inputs .* \(no\)"):
        compression.own_task("net", Broken(), torch.zeros(1, *SHAPE), arrays)


def test_results_of_another_version_or_kind_are_refused(
    spec: str, arrays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.json"
    for content, words in (
        ("{", "is not JSON"),
        ("[]", "not a results file"),
        ('{"version": 0}', "not a results file of this version"),
    ):
        out.write_text(content)
        assert measure(spec, "--images-from", str(arrays), "--out", str(out))[0] == 2
        assert words in capsys.readouterr().err
        assert out.read_text() == content
