"""Images for the benchmarks and the demo, as tensors ready for the networks."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from hope.errors import HopeError


class MissingData(HopeError):
    """A data set is not at hand."""


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


def cifar10(folder: Path, count: int) -> tuple[Tensor, Tensor]:
    """The first CIFAR-10 test images of `cifar10-test-5k.npz`, normalised as the checkpoints expect."""
    path = folder / "cifar10-test-5k.npz"
    if not path.is_file():
        raise MissingData(f"there is no {path}")
    with np.load(path) as data:
        pixels, labels = torch.from_numpy(data["x"][:count]), torch.from_numpy(data["y"][:count]).long()
    return _normalised(pixels), labels


def cifar100(folder: Path) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Thirty classes of CIFAR-100, `cifar100-30c.npz`: training images and labels, test images and labels.

    Labels are numbered from 0 in the order of CIFAR-100's fine labels.
    """
    path = folder / "cifar100-30c.npz"
    if not path.is_file():
        raise MissingData(f"there is no {path}: give --data FOLDER or set HOPE_DATA to a folder that has it")
    with np.load(path) as data:
        wanted = ("x_train", "y_train", "x_test", "y_test")
        missing = [name for name in wanted if name not in data.files]
        if missing:
            raise MissingData(f"{path} has no {', '.join(missing)}: it needs {', '.join(wanted)}")
        x, y, x_test, y_test = (data[name] for name in wanted)
    classes = np.unique(y)
    labels, test_labels = (torch.from_numpy(np.searchsorted(classes, some)).long() for some in (y, y_test))
    return _normalised(torch.from_numpy(x)), labels, _normalised(torch.from_numpy(x_test)), test_labels


def _normalised(pixels: Tensor) -> Tensor:
    """Bytes (N, H, W, 3) as the CIFAR networks expect them, (N, 3, H, W)."""
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    return ((pixels.float() / 255 - mean) / deviation).permute(0, 3, 1, 2).contiguous()


def imagenet(folder: Path, count: int, offset: int = 0) -> tuple[Tensor, Tensor]:
    """Images `imagenet-val-1k/NNNN.jpg`, spread evenly over the classes, as Keras' ResNet-50 expects them.

    With an offset of 1 to 3, others than the 250 without one.
    """
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingData("reading images needs Pillow: pip install pillow") from error
    paths = sorted((folder / "imagenet-val-1k").glob("*.jpg"))
    if not paths:
        raise MissingData(f"there are no images in {folder / 'imagenet-val-1k'}")
    places = [i * len(paths) // count for i in range(min(count, len(paths)))]
    chosen = [paths[place // 4 * 4 + offset if offset else place] for place in places]
    pixels = [torch.from_numpy(np.array(Image.open(path).convert("RGB"), dtype=np.uint8)) for path in chosen]
    mean = torch.tensor([123.68, 116.779, 103.939])
    images = (torch.stack(pixels).float() - mean).permute(0, 3, 1, 2).contiguous()
    return images, torch.tensor([int(path.stem) for path in chosen])


def accuracy(model: nn.Module, images: Tensor, labels: Tensor, batch: int = 125) -> float:
    """Share of images whose highest score is the label's."""
    hits = 0
    with torch.inference_mode():
        for start in range(0, len(images), batch):
            scores = model(images[start : start + batch])
            hits += int((scores.argmax(dim=1) == labels[start : start + batch]).sum())
    return hits / len(images)
