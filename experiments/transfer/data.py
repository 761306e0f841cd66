"""Source and target tasks of the transfer experiment: CIFAR-100 superclasses, and SVHN."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from experiments.data import colours
from experiments.transfer.streams import seed
from hope.bench.images import UnusableImages, arrays, check_classes, check_labels
from hope.errors import MissingData

IMAGES = ("x_train", "y_train", "x_test", "y_test")
Pair: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Images:
    """Training, validation and test images of one task, with labels."""

    train: tuple[Tensor, Tensor]
    valid: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    def centred(self) -> Images:
        """Pixels about zero, as a network without BN wants them."""
        return Images(*(((x - 0.5) / 0.25, y) for x, y in (self.train, self.valid, self.test)))


def data_files(folder: Path, partial: bool) -> dict[str, Path]:
    """Where the images of "source" and "target" are.

    Args:
        folder: to look in.
        partial: a file with some of the classes or images will do.
    """
    found = {}
    for task, whole, part in (
        ("source", "cifar100.npz", "cifar100-30c.npz"),
        ("target", "svhn.npz", "svhn-part.npz"),
    ):
        names = (whole, part) if partial else (whole,)
        there = [folder / name for name in names if (folder / name).is_file()]
        if not there:
            raise MissingData(
                f"there is no {' or '.join(names)} in {folder}: set HOPE_DATA or give --data FOLDER"
            )
        found[task] = there[0]
    return found


def _pixels(images: Any) -> Tensor:
    return (torch.from_numpy(images).float() / 255).permute(0, 3, 1, 2)  # channels last in memory


def _split(x: Tensor, y: Tensor, seed: int, most: int | None) -> tuple[Pair, Pair]:
    """80% to train on, at most so many, and 20% to validate."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    cut = len(x) * 4 // 5
    train = order[:cut][:most]
    return (x[train], y[train]), (x[order[cut:]], y[order[cut:]])


def source_task(
    path: Path, trial: int, task: int, most: int | None, *, tasks: int = 1, size: int = 4
) -> Images:
    """Twenty classes of CIFAR-100: four superclasses, all five classes of each.

    The paper has each task "randomly sampling 4 superclasses", and all tasks of all trials distinct. So they
    are drawn, task by task, until one comes that was not there before; five tasks of a trial may share
    superclasses, where a partition of the twenty into five times four could not.

    Args:
        path: the images.
        trial, task: which.
        most: images to train on.
        tasks: of a trial.
        size: superclasses of a task, if not four.
    """
    images = colours(path, *IMAGES)
    coarse = arrays(path, "coarse_train", "coarse_test")
    superclasses = np.unique(coarse[0])
    if len(superclasses) < size:
        raise UnusableImages(f"{path} has {len(superclasses)} superclasses: a source task takes {size}")
    sets = list(combinations(superclasses, size))
    order = np.random.default_rng(seed("superclasses")).permutation(len(sets))
    chosen = sets[order[(trial * tasks + task) % len(sets)]]
    parts = []
    for pixels, fine, over in zip(images[::2], images[1::2], coarse, strict=True):
        check_labels(over, pixels, "a coarse array", path)
        at = np.isin(over, chosen)
        parts.append((pixels[at], fine[at]))
    classes = np.unique(parts[0][1])
    (x, y), (x_test, y_test) = (
        (_pixels(some), torch.from_numpy(np.searchsorted(classes, labels)).long()) for some, labels in parts
    )
    return Images(*_split(x, y, seed("source split", trial, task), most), (x_test, y_test))


def target_task(path: Path, trial: int, task: int, most: int | None) -> Images:
    """All ten digits of SVHN."""
    x, y, x_test, y_test = colours(path, *IMAGES)
    for labels in (y, y_test):
        check_classes(labels, 10, path)
    test = _pixels(x_test), torch.from_numpy(y_test).long()
    start = seed("target split", trial, task)
    return Images(*_split(_pixels(x), torch.from_numpy(y).long(), start, most), test)
