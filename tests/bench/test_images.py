"""A user's labelled images: which are measured on, which are set apart, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hope.bench import images
from hope.errors import MissingData

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")

SHAPE = (3, 8, 8)


@pytest.fixture
def arrays(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    path = tmp_path / "images.npz"
    np.savez(path, x=rng.integers(0, 256, (40, 8, 8, 3), dtype=np.uint8), y=np.arange(40) % 3)
    return path


def picture(path: Path, colour: tuple[int, int, int], size: tuple[int, int] = (8, 8)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)


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
    with pytest.raises(images.UnusableImages, match="--mean and --std must be left out"):
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
    refused(arrays, r"classes 0 to 1, the outputs of the model, got 0 to 2", outputs=2)
    refused(arrays, r"float Nx3x9x9, got", shape=(3, 9, 9))
    refused(arrays, "inputs must be images", shape=(8,))
    refused(arrays, "must have 3 numbers each", mean=[0.5])
    refused(arrays, "--images must be at least 1, got", count=0)
    empty = tmp_path / "empty"
    (empty / "a").mkdir(parents=True)
    refused(empty, "there are no images in", MissingData)
    for k in range(9):
        picture(empty / "a" / f"{k}.png", (0, 0, 0))
    refused(empty, "must have a sub-folder for each of 3 outputs, got 1")
    for k in range(9):
        (empty / "a" / f"{k}.png").write_bytes(b"junk")
    refused(empty, r"\d.png cannot be read as an image .* move it away", outputs=1)
    picture(tmp_path / "flat" / "dog.png", (0, 0, 0))
    refused(tmp_path / "flat", "dog.png must give its class")
    (tmp_path / "flat" / "dog.png").rename(tmp_path / "flat" / "1.png")
    refused(tmp_path / "flat", "must have at least 8 images, got 1")


def test_arrays_that_are_something_else_are_named(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    x = np.zeros((9, 8, 8, 3), np.uint8)
    path.write_bytes(b"junk")
    refused(path, "cannot be read")
    np.savez(path, x=x)
    refused(path, "must have arrays x, y, got none called y")
    np.savez(path, x=np.array([{}]), y=np.arange(9))
    refused(path, "cannot be read")  # no pickle
    np.savez(path, x=x, y=np.zeros(8, np.int64))
    refused(path, "one whole number per image")
    np.savez(path, x=x, y=np.zeros(9))
    refused(path, "one whole number per image")
