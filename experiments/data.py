"""The images of the experiments, as tensors ready for the networks.

Those to measure compressed networks on come with 96 others without labels, for calibration and BN
re-estimation, which are set apart first.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hope.bench.images import (
    UNLABELLED,
    Images,
    UnusableImages,
    arrays,
    check_classes,
    check_labels,
    numbered,
    opened,
    words,
)
from hope.errors import MissingData

SIDE = 224
MEANS = torch.tensor([123.68, 116.779, 103.939])  # of the channels, taken off for Keras' ResNet-50


def data_folder(given: str | None) -> Path:
    """The folder with the experiments' checkpoints and images: the given one, or HOPE_DATA."""
    place = given or os.environ.get("HOPE_DATA")
    if not place or not Path(place).is_dir():
        raise MissingData(
            "there is no data: give --data FOLDER or set HOPE_DATA (which files it needs: docs/benchmarks.md)"
        )
    return Path(place)


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


def cifar10(folder: Path, count: int | None = None, *, apart: bool = True) -> Images:
    """CIFAR-10 test images of `cifar10-test-5k.npz`, normalised as the checkpoints expect.

    Args:
        count: how many to measure on, the first ones: 2,000 by default.
        apart: set the unlabelled ones apart; otherwise there are none, and all can be measured on.
    """
    path = folder / "cifar10-test-5k.npz"
    x, y = (array[:5000] for array in colours(path, "x", "y"))
    check_classes(y, 10, path)
    left = len(x) - (min(UNLABELLED, len(x) // 4) if apart else 0)
    count = _checked(count, 2000, left, path)
    pixels = torch.from_numpy(x)
    return Images(
        normalised(pixels[:count]), torch.from_numpy(y[:count].astype(np.int64)), normalised(pixels[left:])
    )


def imagenet(folder: Path, count: int | None = None, *, apart: bool = True) -> Images:
    """Images `imagenet-val-1k/NNNN.jpg`, spread evenly over the classes, as Keras' ResNet-50 expects them.

    Args:
        count: how many to measure on: 250 by default.
        apart: set the unlabelled ones apart; otherwise there are none, and all can be measured on.
    """
    source = folder / "imagenet-val-1k"
    found = numbered(sorted(source.glob("*.jpg")))
    if not found:
        raise MissingData(f"there are no images in {source}: it needs NNNN.jpg, named by class number")
    labels = np.array([label for _, label in found], dtype=np.int64)
    check_classes(labels, 1000, source)
    left = len(found) - (len(places(len(found), 1)[1]) if apart else 0)
    count = _checked(count, 250, left, source)
    chosen, others = places(len(found), count) if apart else (_spread(range(len(found)), count), [])
    measured, unlabelled = (_loaded([found[place][0] for place in some]) for some in (chosen, others))
    return Images(measured, torch.from_numpy(labels[chosen]), unlabelled)


def as_torchvision(found: Images) -> Images:
    """Images for Keras' ResNet-50 as torchvision's networks expect them."""
    mean, deviation = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])

    def changed(images: Tensor) -> Tensor:
        pixels = (images + MEANS[:, None, None]) / 255
        return (pixels - mean[:, None, None]) / deviation[:, None, None]

    return found._replace(images=changed(found.images), unlabelled=changed(found.unlabelled))


def places(total: int, count: int) -> tuple[list[int], list[int]]:
    """Which of so many sorted images to measure on, and which are set apart: both spread evenly.

    >>> places(16, 4)
    ([0, 4, 8, 12], [2, 6, 10, 14])
    >>> places(16, 8)
    ([0, 1, 4, 5, 8, 9, 12, 13], [2, 6, 10, 14])
    """
    apart = _spread(range(2, total, 4), UNLABELLED)
    chosen = _spread(range(total), count)
    if not set(apart).isdisjoint(chosen):
        chosen = _spread([place for place in range(total) if place not in set(apart)], count)
    return chosen, apart


def _spread(some: Sequence[int], count: int) -> list[int]:
    count = min(count, len(some))
    return [some[k * len(some) // count] for k in range(count)]


def _checked(count: int | None, usual: int, left: int, source: Path) -> int:
    if count is None:
        return min(usual, left)
    if not 1 <= count <= left:
        raise UnusableImages(
            f"{count} images of {source} cannot be measured on: give --images 1 to {left} (the others are "
            "set apart for calibration)"
        )
    return count


def _loaded(paths: Sequence[Path]) -> Tensor:
    pixels = []
    for path in paths:
        image = opened(path, 3)
        if image.size != (SIDE, SIDE):
            raise UnusableImages(f"{path} is {words(image.size)}: {SIDE}x{SIDE} is needed")
        pixels.append(torch.from_numpy(np.array(image, dtype=np.uint8)))
    if not pixels:
        return torch.zeros(0, 3, SIDE, SIDE)
    return (torch.stack(pixels).float() - MEANS).permute(0, 3, 1, 2).contiguous()
