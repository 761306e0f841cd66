"""Images for the benchmarks and the demo, as tensors ready for the networks."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from hope.errors import HopeError, first_line

LEAST = 8  # images


class MissingData(HopeError):
    """A data set is not at hand."""


class UnusableImages(MissingData, ValueError):
    """Images or labels that a network cannot be measured on."""


def words(shape: Sequence[int]) -> str:
    """A shape as on the command line.

    >>> words((3, 8, 8))
    '3x8x8'
    """
    return "x".join(map(str, shape))


def data_folder(given: str | None) -> Path:
    """The folder with the benchmark's checkpoints and images: the given one, or HOPE_DATA."""
    place = given or os.environ.get("HOPE_DATA")
    if not place or not Path(place).is_dir():
        raise MissingData(
            "there is no data: give --data FOLDER or set HOPE_DATA (which files it needs: docs/benchmarks.md)"
        )
    return Path(place)


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """scikit-learn's 8×8 digits: training images and labels, test images and labels."""
    try:
        from sklearn.datasets import load_digits
    except ImportError as error:
        raise MissingData("the demo needs scikit-learn: pip install 'hope-encoding[demo]'") from error
    data = load_digits()
    images = torch.from_numpy(data.images).float()[:, None] / 8 - 1
    labels = torch.from_numpy(data.target).long()
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    train, test = order[:1200], order[1200:]
    return images[train], labels[train], images[test], labels[test]


def arrays(path: Path, *names: str) -> list[NDArray[Any]]:
    """Arrays of an .npz file, by their names; never by running code from it.

    Raises:
        MissingData: there is no such file.
        UnusableImages: it is damaged, or has no such arrays.
    """
    if not path.is_file():
        raise MissingData(f"there is no {path}: give --data FOLDER or set HOPE_DATA to a folder that has it")
    needs = f"it needs arrays {', '.join(names[:-1])} and {names[-1]}"
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as data:
            missing = [name for name in names if name not in data.files]
            found = [] if missing else [data[name] for name in names]
    except Exception as error:  # whatever numpy makes of a damaged file
        raise UnusableImages(f"{path} cannot be read ({first_line(error)}): {needs}") from error
    if missing:
        raise UnusableImages(f"{path} has no {', '.join(missing)}: {needs}")
    return found


def check_labels(labels: NDArray[Any], images: NDArray[Any], name: str, source: Path) -> None:
    """There is one class number per image."""
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise UnusableImages(
            f"{name} in {source} is {labels.dtype} {words(labels.shape)}: "
            "one whole number per image is needed"
        )


def check_classes(labels: NDArray[Any], outputs: int, source: Path) -> None:
    """There are enough images, and a network with so many outputs knows their classes."""
    if len(labels) < LEAST:
        raise UnusableImages(f"{source} has {len(labels)} images: give at least {LEAST}")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= outputs:
        raise UnusableImages(
            f"{source} has classes {low} to {high}, but the model has {outputs} outputs: "
            "give the model's own classes"
        )


def colours(path: Path, *names: str) -> list[NDArray[Any]]:
    """Pairs of uint8 images (N, H, W, 3) and their class numbers from an .npz file, checked."""
    found = arrays(path, *names)
    for name, x, of, y in zip(names[::2], found[::2], names[1::2], found[1::2], strict=True):
        if x.dtype != np.uint8 or x.ndim != 4 or x.shape[3] != 3 or not x.size:
            raise UnusableImages(f"{name} in {path} is {x.dtype} {words(x.shape)}: uint8 NxHxWx3 is needed")
        check_labels(y, x, of, path)
    return found


def cifar100(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Thirty classes of CIFAR-100, `cifar100-30c.npz`: training images and labels, test images and labels.

    Labels are numbered from 0 in the order of CIFAR-100's fine labels.
    """
    path = folder / "cifar100-30c.npz"
    x, y, x_test, y_test = colours(path, "x_train", "y_train", "x_test", "y_test")
    classes = np.unique(y)
    if not np.isin(y_test, classes).all():
        raise UnusableImages(f"y_test in {path} has classes that y_train has not: give the same classes")
    labels, test_labels = (torch.from_numpy(np.searchsorted(classes, some)).long() for some in (y, y_test))
    return normalised(torch.from_numpy(x)), labels, normalised(torch.from_numpy(x_test)), test_labels


def normalised(pixels: Tensor) -> Tensor:
    """Bytes (N, H, W, 3) as the CIFAR networks expect them, (N, 3, H, W)."""
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return ((pixels.float() / 255 - mean) / deviation).permute(0, 3, 1, 2).contiguous()


def accuracy(model: nn.Module, images: Tensor, labels: Tensor, batch: int = 125) -> float:
    """Share of images whose highest score is the label's."""
    hits = 0
    with torch.inference_mode():
        for start in range(0, len(images), batch):
            scores = model(images[start : start + batch])
            hits += int((scores.argmax(dim=1) == labels[start : start + batch]).sum())
    return hits / len(images)
