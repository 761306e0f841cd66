"""The images of the benchmark's own networks: some to measure on, and 96 others without labels.

Those without labels, for calibration and BN re-estimation, are set apart first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hope.bench.datasets import MissingData, UnusableImages, check_classes, colours, normalised, words
from hope.bench.images import UNLABELLED, Images, numbered, opened

SIDE = 224


def cifar10(folder: Path, count: int | None = None) -> Images:
    """CIFAR-10 test images of `cifar10-test-5k.npz`, normalised as the checkpoints expect.

    Args:
        count: how many to measure on, the first ones: 2,000 by default.
    """
    path = folder / "cifar10-test-5k.npz"
    x, y = (array[:5000] for array in colours(path, "x", "y"))
    check_classes(y, 10, path)
    left = len(x) - min(UNLABELLED, len(x) // 4)
    count = _checked(count, 2000, left, path)
    pixels = torch.from_numpy(x)
    return Images(
        normalised(pixels[:count]), torch.from_numpy(y[:count].astype(np.int64)), normalised(pixels[left:])
    )


def imagenet(folder: Path, count: int | None = None) -> Images:
    """Images `imagenet-val-1k/NNNN.jpg`, spread evenly over the classes, as Keras' ResNet-50 expects them.

    Args:
        count: how many to measure on: 250 by default.
    """
    source = folder / "imagenet-val-1k"
    found = numbered(sorted(source.glob("*.jpg")))
    if not found:
        raise MissingData(f"there are no images in {source}: it needs NNNN.jpg, named by class number")
    labels = np.array([label for _, label in found], dtype=np.int64)
    check_classes(labels, 1000, source)
    left = len(found) - len(places(len(found), 1)[1])
    chosen, apart = places(len(found), _checked(count, 250, left, source))
    measured, unlabelled = (_loaded([found[place][0] for place in some]) for some in (chosen, apart))
    return Images(measured, torch.from_numpy(labels[chosen]), unlabelled)


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
    mean = torch.tensor([123.68, 116.779, 103.939])
    return (torch.stack(pixels).float() - mean).permute(0, 3, 1, 2).contiguous()
