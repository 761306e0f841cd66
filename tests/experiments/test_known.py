"""The images of the experiments: which are measured on, which are set apart, what is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from experiments import data as known
from experiments.compression.__main__ import main
from hope.bench.images import UnusableImages
from hope.errors import MissingData
from zoo import networks

Image = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
CIFAR = "cifar10-test-5k.npz"


def cifar(folder: Path, count: int, classes: int = 10) -> None:
    x = np.zeros((count, 4, 4, 3), np.uint8)
    x[:, 0, 0, 0], x[:, 0, 0, 1] = np.arange(count) % 256, np.arange(count) // 256  # the image's number
    np.savez(folder / CIFAR, x=x, y=(np.arange(count) % classes).astype(np.uint8))


def pictures(folder: Path, count: int, size: tuple[int, int] = (224, 224)) -> Path:
    place = folder / "imagenet-val-1k"
    place.mkdir()
    for k in range(count):
        Image.new("RGB", size, (3 * k, 0, 0)).save(place / f"{k:04d}.jpg")
    return place


def numbers(images: torch.Tensor) -> list[int]:
    """Which of `cifar` they are."""
    unit = torch.tensor([0.229, 0.224]) * 255
    low, high = ((images[:, :2, 0, 0] * unit) + torch.tensor([0.485, 0.456]) * 255).round().long().T
    return (256 * high + low).tolist()  # type: ignore[no-any-return]


def test_the_usual_imagenet_images_are_every_fourth_and_the_others_lie_between() -> None:
    chosen, apart = known.places(1000, 250)
    assert chosen == list(range(0, 1000, 4))
    assert apart == [(k * 1000 // 96) // 4 * 4 + 2 for k in range(96)]


@pytest.mark.parametrize("total", [8, 9, 10, 11, 383, 998, 999, 1000])
def test_images_that_are_set_apart_are_never_measured_on(total: int) -> None:
    most = total - len(known.places(total, 1)[1])
    for count in {1, 2, most // 2, most - 1, most, *range(100, min(most, 905), 50)}:
        chosen, apart = known.places(total, count)
        assert len(set(chosen)) == count
        assert len(set(apart)) == min(96, (total + 1) // 4)
        assert not set(chosen) & set(apart)
        assert max(chosen + apart) < total


def test_the_usual_cifar_images_are_the_first_and_the_last_are_set_apart(tmp_path: Path) -> None:
    cifar(tmp_path, 6000)
    read = known.cifar10(tmp_path)
    assert numbers(read.images) == list(range(2000))
    assert numbers(read.unlabelled) == list(range(4904, 5000))
    assert read.labels.tolist() == [k % 10 for k in range(2000)]
    assert len(known.cifar10(tmp_path, 4904).images) == 4904
    for count in (4905, 0, -1):
        with pytest.raises(UnusableImages, match=r"give --images 1 to 4904"):
            known.cifar10(tmp_path, count)


def test_the_committed_results_were_measured_on_the_same_images(data_folder: Path) -> None:
    if not (data_folder / CIFAR).is_file():
        pytest.skip(f"no {CIFAR} in {data_folder}")
    read = known.cifar10(data_folder)
    digest = hashlib.sha256(read.images.numpy().data)
    digest.update(read.labels.numpy().data)
    assert digest.hexdigest()[:16] == "ca834a1b0516f704"


def test_few_pictures_are_a_quarter_apart_and_more_than_the_others_are_refused(tmp_path: Path) -> None:
    pictures(tmp_path, 11)
    read = known.imagenet(tmp_path)
    assert read.labels.tolist() == [0, 1, 3, 4, 5, 7, 8, 9]
    reds = (read.unlabelled[:, 0].mean((1, 2)) + 123.68) / 3
    assert reds.round().tolist() == [2, 6, 10]
    with pytest.raises(UnusableImages, match="give --images 1 to 8"):
        known.imagenet(tmp_path, 9)


def test_pictures_that_cannot_be_measured_on_are_named(tmp_path: Path) -> None:
    with pytest.raises(MissingData, match="there are no images in"):
        known.imagenet(tmp_path)
    place = pictures(tmp_path, 12)
    Image.new("RGB", (200, 224)).save(place / "0000.jpg")
    with pytest.raises(UnusableImages, match=r"0000.jpg is 200x224: 224x224 is needed"):
        known.imagenet(tmp_path)
    (place / "0000.jpg").write_bytes(b"junk")
    with pytest.raises(UnusableImages, match=r"0000.jpg cannot be read as an image"):
        known.imagenet(tmp_path)
    (place / "0000.jpg").rename(place / "cat.jpg")
    with pytest.raises(UnusableImages, match=r"cat.jpg must give its class"):
        known.imagenet(tmp_path)
    (place / "cat.jpg").rename(place / "1000.jpg")
    with pytest.raises(UnusableImages, match=r"classes 0 to 999, the outputs of the model, got 1 to 1000"):
        known.imagenet(tmp_path)


def damaged(path: Path, names: tuple[str, ...]) -> Any:
    """Files that are no data sets, with words about each."""
    x, y = np.zeros((9, 4, 4, 3), np.uint8), np.zeros(9, np.int64)
    good = {name: x if name.startswith("x") else y for name in names}
    first, second = names[:2]
    path.write_bytes(b"junk")
    yield "cannot be read"
    np.savez(path, **good)
    path.write_bytes(path.read_bytes()[:-200])
    yield "cannot be read"
    with path.open("wb") as file:
        np.save(file, x)
    yield "cannot be read"
    np.savez(path, **{**good, first: np.array([{}])})
    yield "cannot be read"
    np.savez(path, **{first: x})
    yield f"none called {second}"
    np.savez(path, **{**good, first: x.astype(np.float32)})
    yield "uint8 NxHxWx3 is needed"
    np.savez(path, **{**good, first: x[..., 0]})
    yield "uint8 NxHxWx3 is needed"
    np.savez(path, **{**good, second: y[1:]})
    yield "one whole number per image"
    np.savez(path, **{**good, second: y + 0.5})
    yield "one whole number per image"


def test_damaged_arrays_are_named(tmp_path: Path) -> None:
    for words in damaged(tmp_path / CIFAR, ("x", "y")):
        with pytest.raises(UnusableImages, match=words):
            known.cifar10(tmp_path)
    for words in damaged(tmp_path / "cifar100-30c.npz", ("x_train", "y_train", "x_test", "y_test")):
        with pytest.raises(UnusableImages, match=words):
            known.cifar100(tmp_path)


def test_labels_that_a_network_does_not_know_are_named(tmp_path: Path) -> None:
    cifar(tmp_path, 40, classes=12)
    with pytest.raises(UnusableImages, match="classes 0 to 9, the outputs of the model, got 0 to 11"):
        known.cifar10(tmp_path)
    x = np.zeros((8, 4, 4, 3), np.uint8)
    parts = {"x_train": x, "y_train": np.arange(8), "x_test": x, "y_test": np.arange(8) + 1}
    np.savez(tmp_path / "cifar100-30c.npz", **parts)
    with pytest.raises(UnusableImages, match=r"y_test in .* has classes that y_train has not"):
        known.cifar100(tmp_path)


@pytest.mark.parametrize("lacks", ["checkpoint", "images"])
def test_what_a_later_network_lacks_is_reported_before_the_first_is_measured(
    tmp_path: Path, lacks: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cifar(tmp_path, 40)
    names = ["cifar10-resnet20", "cifar10-resnet56" if lacks == "checkpoint" else "keras-resnet50"]
    (tmp_path / "weights").mkdir()
    for name in names if lacks == "images" else names[:1]:
        state = networks.untrained(name).state_dict()
        save_file(state, tmp_path / networks.CHECKPOINTS[name])
    out = tmp_path / "r.json"
    assert main([*names, "--data", str(tmp_path), "--out", str(out)]) == 2
    err = capsys.readouterr().err
    assert ("there is no checkpoint of" if lacks == "checkpoint" else "there are no images in") in err
    assert not out.exists()
