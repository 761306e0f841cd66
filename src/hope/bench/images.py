"""A user's labelled images as tensors: a folder of image files, or an .npz file.

In a folder, either every sub-folder is a class, in the order of their names, or the images lie side by side
and a file's name is the number of its class (`0012.jpg`). In an .npz file `x` is uint8 (images, height,
width, channels) or float (images, channels, height, width), and `y` are the class numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hope.errors import MissingData, first_line

SUFFIXES = {".jpg", ".jpeg", ".png", ".bmp", ".webp", ".ppm", ".pgm"}
UNLABELLED = 96  # set apart for calibration and BN re-estimation
MARGIN = 8 / 7  # a larger image is scaled to this times the input, then cropped: 256 for 224
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
LEAST = 8  # images


class UnusableImages(MissingData, ValueError):
    """Images or labels that a network cannot be measured on."""


class Images(NamedTuple):
    """Images to measure on with their labels, and others without."""

    images: Tensor
    labels: Tensor
    unlabelled: Tensor


class _Source(NamedTuple):
    labels: NDArray[np.int64]
    load: Callable[[Sequence[int]], Tensor]
    folders: int | None = None


def read(
    source: Path,
    shape: Sequence[int],
    outputs: int,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    count: int | None = None,
    seed: int = 0,
) -> Images:
    """Images for a network, in an order drawn from the seed.

    Args:
        shape: channels, height and width of the network's inputs.
        mean, std: per channel, of values from 0 to 1; by default ImageNet's for colours, none otherwise.
            Float images are taken as they are.
        count: how many to measure on: 2,000 by default, 250 of larger ones.
    """
    if count is not None and count < 1:
        raise UnusableImages(f"--images must be at least 1, got {count}: give 250 or more")
    if len(shape) != 3 or shape[0] not in (1, 3):
        raise UnusableImages(
            f"inputs must be images, got shape {words(shape)}: give --input like 1x3x224x224"
        )
    if source.is_dir():
        found = _folder(source, shape, mean, std)
    elif source.is_file() and source.suffix == ".npz":
        found = _npz(source, shape, mean, std)
    else:
        raise MissingData(f"there is no folder or .npz file {source}: give --data another one")
    if found.folders not in (None, outputs):
        raise UnusableImages(
            f"{source} must have a sub-folder for each of {outputs} outputs, got {found.folders}: add empty "
            "ones, or name images by class number"
        )
    check_classes(found.labels, outputs, source)
    order = torch.randperm(len(found.labels), generator=torch.Generator().manual_seed(seed)).tolist()
    apart = min(UNLABELLED, len(order) // 4)
    count = count or (2000 if shape[1] * shape[2] <= 64 * 64 else 250)
    chosen = order[: len(order) - apart][:count]
    return Images(
        found.load(chosen), torch.from_numpy(found.labels[chosen]), found.load(order[len(order) - apart :])
    )


def _normaliser(
    channels: int, mean: Sequence[float] | None, std: Sequence[float] | None
) -> Callable[[Tensor], Tensor]:
    """uint8 (N, H, W, C) -> float (N, C, H, W)."""
    usual = IMAGENET if channels == 3 else ((0.0,) * channels, (1.0,) * channels)
    mean, std = mean or usual[0], std or usual[1]
    if len(mean) != channels or len(std) != channels or min(std) <= 0:
        raise UnusableImages(
            f"--mean and --std must have {channels} numbers each, --std above 0, got {mean} and {std}: give "
            "one for each channel"
        )
    shift, scale = torch.tensor(mean), torch.tensor(std)
    return lambda pixels: ((pixels.float() / 255 - shift) / scale).permute(0, 3, 1, 2).contiguous()


def _folder(
    source: Path, shape: Sequence[int], mean: Sequence[float] | None, std: Sequence[float] | None
) -> _Source:
    folders = sorted(path for path in source.iterdir() if path.is_dir())
    labelled: list[tuple[Path, int]] = []
    for label, folder in enumerate(folders):
        labelled += [(path, label) for path in _files(folder)]
    if not folders:
        labelled = numbered(_files(source))
    if not labelled:
        raise MissingData(f"there are no images in {source}: it needs {', '.join(sorted(SUFFIXES))} files")
    normalise = _normaliser(shape[0], mean, std)

    def load(places: Sequence[int]) -> Tensor:
        return normalise(torch.stack([_pixels(labelled[place][0], shape) for place in places]))

    labels = np.array([label for _, label in labelled], dtype=np.int64)
    return _Source(labels, load, len(folders) or None)


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in SUFFIXES)


def numbered(paths: Sequence[Path]) -> list[tuple[Path, int]]:
    """Files with their classes, which are their names."""
    for path in paths:
        if not path.stem.isdecimal():
            raise UnusableImages(
                f"{path} must give its class: name images by class number (0012.jpg), or put them into one "
                "sub-folder per class"
            )
    return [(path, int(path.stem)) for path in paths]


def opened(path: Path, channels: int) -> Any:
    """A PIL image, in colours or grey."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingData("reading images needs Pillow: pip install 'hope-encoding[images]'") from error
    try:
        with Image.open(path) as file:
            return file.convert("RGB" if channels == 3 else "L")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UnusableImages(
            f"{path} cannot be read as an image ({first_line(error)}): move it away"
        ) from error


def _pixels(path: Path, shape: Sequence[int]) -> Tensor:
    """An image file, scaled and cropped in the middle if it has another size."""
    channels, height, width = shape
    image = opened(path, channels)
    if image.size != (width, height):
        from PIL import Image

        scale = MARGIN * max(height / image.height, width / image.width)
        size = round(image.width * scale), round(image.height * scale)
        image = image.resize(size, Image.Resampling.BILINEAR)
        left, top = (image.width - width) // 2, (image.height - height) // 2
        image = image.crop((left, top, left + width, top + height))
    return torch.from_numpy(np.array(image, dtype=np.uint8).reshape(height, width, channels))


def _npz(
    source: Path, shape: Sequence[int], mean: Sequence[float] | None, std: Sequence[float] | None
) -> _Source:
    x, y = arrays(source, "x", "y")
    channels, height, width = shape
    whole = x.dtype == np.uint8
    want = (height, width, channels) if whole else (channels, height, width)
    if x.ndim != 4 or x.shape[1:] != want or not (whole or x.dtype.kind == "f"):
        raise UnusableImages(
            f"x in {source} must be uint8 Nx{words((height, width, channels))} or float Nx{words(shape)}, "
            f"got {x.dtype} {words(x.shape)}: give another --input, or other images"
        )
    check_labels(y, x, "y", source)
    if not whole and (mean or std):
        raise UnusableImages(
            f"--mean and --std must be left out, got float images in {source}, which are not changed: omit "
            "them"
        )
    ready: Callable[[Tensor], Any] = _normaliser(channels, mean, std) if whole else Tensor.float
    return _Source(y.astype(np.int64), lambda places: ready(torch.from_numpy(x[list(places)])))


def arrays(path: Path, *names: str) -> list[NDArray[Any]]:
    """Arrays of an .npz file, by their names; never by running code from it."""
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
        raise UnusableImages(
            f"{path} must have arrays {', '.join(names)}, got none called {', '.join(missing)}: add them"
        )
    return found


def check_labels(labels: NDArray[Any], images: NDArray[Any], name: str, source: Path) -> None:
    """There is one class number per image."""
    if labels.shape != images.shape[:1] or labels.dtype.kind not in "iu":
        raise UnusableImages(
            f"{name} in {source} must have one whole number per image, got {labels.dtype} "
            f"{words(labels.shape)}: give class numbers"
        )


def check_classes(labels: NDArray[Any], outputs: int, source: Path) -> None:
    """There are enough images, and a network with so many outputs knows their classes."""
    if len(labels) < LEAST:
        raise UnusableImages(f"{source} must have at least {LEAST} images, got {len(labels)}: add more")
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or high >= outputs:
        raise UnusableImages(
            f"{source} must have classes 0 to {outputs - 1}, the outputs of the model, got {low} to {high}: "
            "give the classes of the model"
        )


def words(shape: Sequence[int]) -> str:
    """A shape as on the command line.

    >>> words((3, 8, 8))
    '3x8x8'
    """
    return "x".join(map(str, shape))
