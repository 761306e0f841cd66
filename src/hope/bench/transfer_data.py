"""Source and target tasks of the transfer benchmark: CIFAR-100 superclasses, and SVHN."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from hope.bench.datasets import MissingData

Pair: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Images:
    """Training, validation and test images of one task, with labels."""

    train: tuple[Tensor, Tensor]
    valid: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


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


def _open(path: Path) -> dict[str, Any]:
    with np.load(path) as data:
        return {key: data[key] for key in data.files}


def _pixels(images: Any) -> Tensor:
    return (torch.from_numpy(images).float() / 255).permute(0, 3, 1, 2)  # channels last in memory


def _split(x: Tensor, y: Tensor, seed: int, most: int | None) -> tuple[Pair, Pair]:
    """80% to train on, at most so many, and 20% to validate."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    cut = len(x) * 4 // 5
    train = order[:cut][:most]
    return (x[train], y[train]), (x[order[cut:]], y[order[cut:]])


def source_task(path: Path, trial: int, task: int, most: int | None) -> Images:
    """Twenty classes of CIFAR-100: four superclasses drawn at random, all five classes of each."""
    data = _open(path)
    rng = np.random.default_rng([trial, task])
    chosen = rng.choice(np.unique(data["coarse_train"]), 4, replace=False)
    parts = []
    for which in ("train", "test"):
        at = np.isin(data[f"coarse_{which}"], chosen)
        parts.append((data[f"x_{which}"][at], data[f"y_{which}"][at]))
    classes = np.unique(parts[0][1])
    (x, y), (x_test, y_test) = (
        (_pixels(images), torch.from_numpy(np.searchsorted(classes, labels)).long())
        for images, labels in parts
    )
    return Images(*_split(x, y, 1000 * trial + task, most), (x_test, y_test))


def target_task(path: Path, trial: int, task: int, most: int | None) -> Images:
    """All ten digits of SVHN."""
    data = _open(path)
    x, y = _pixels(data["x_train"]), torch.from_numpy(data["y_train"]).long()
    test = _pixels(data["x_test"]), torch.from_numpy(data["y_test"]).long()
    return Images(*_split(x, y, 1000 * trial + task + 500, most), test)
