"""--calibration on the command line: a folder of images, or a file of arrays, as batches of inputs."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hope._util.notes import note
from hope.bench.images import SUFFIXES, opened
from hope.cli.text import from_pretrained
from hope.errors import InvalidExample, first_line

if TYPE_CHECKING:
    from torch import nn

MOST = 512  # images
BATCH = 32


def inputs(what: str, spec: str, model: nn.Module, example: Tensor) -> list[Tensor]:
    """Batches of inputs for a model.

    Args:
        what: a folder of images, a .npy file, or a .npz file with one array or one that is called x.
        spec: the model's name on the command line; its library may know how images are prepared.
        example: an input, for the shape.
    """
    found = _images(Path(what), spec, model, example) if Path(what).is_dir() else _array(what, example)
    return list(torch.split(found, BATCH))


def _array(what: str, example: Tensor) -> Tensor:
    try:
        held = np.load(what, allow_pickle=False)
        array = held
        if isinstance(held, np.lib.npyio.NpzFile):
            with held:
                names = ["x"] if "x" in held.files else held.files
                if len(names) != 1:
                    raise ValueError(f"its array must be called x, got {', '.join(names) or 'none'}")
                array = held[names[0]]
        if not isinstance(array, np.ndarray) or array.ndim < 2:
            raise ValueError("it must hold a batch of inputs, got no rows of them")
        tensor = torch.from_numpy(array)
    except (OSError, ValueError, TypeError, EOFError) as error:
        raise InvalidExample(
            f"--calibration {what} cannot be read ({first_line(error)}): "
            'give "patterns", "dream", "none", a folder of images, or a .npy or .npz file of inputs'
        ) from error
    if tensor.dtype != torch.uint8 or not example.is_floating_point():
        return tensor.float()
    rows = tensor.ndim == 4 and tensor.shape[-1] == example.shape[1] != tensor.shape[1]
    order = "images x height x width x channels" if rows else "bytes"
    note(f"--calibration {what} has {order}: taken as inputs from 0 to 1 (divided by 255)")
    return (tensor.movedim(-1, 1) if rows else tensor).float() / 255


def _images(folder: Path, spec: str, model: nn.Module, example: Tensor) -> Tensor:
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES)[:MOST]
    if not paths:
        raise InvalidExample(
            f"--calibration {folder} must have images ({', '.join(sorted(SUFFIXES))}), got none: give another"
        )
    if example.ndim != 4 or example.shape[1] not in (1, 3):
        shape = "x".join(map(str, example.shape))
        raise InvalidExample(
            f"--input must be the shape of images with --calibration FOLDER, got {shape}: give one like "
            "1x3x224x224"
        )
    channels, *size = example.shape[1:]
    prepare, whose = _preparation(spec, model), "as the model's library prepares them"
    if prepare is None:
        prepare, whose = _pixels, "scaled to --input and to values from 0 to 1"
    note(f"--calibration {folder}: {len(paths)} images, {whose}")
    made = [prepare(opened(path, channels)).float() for path in paths]
    return torch.stack([one if list(one.shape[1:]) == size else _resized(one, size) for one in made])


def _pixels(image: Any) -> Tensor:
    """A PIL image as channels x height x width, from 0 to 1."""
    pixels = torch.from_numpy(np.array(image, dtype=np.uint8))
    return (pixels[None] if pixels.ndim == 2 else pixels.movedim(-1, 0)).float() / 255


def _resized(image: Tensor, size: list[int]) -> Tensor:
    how: Any = {"mode": "bilinear", "align_corners": False, "antialias": True}
    return functional.interpolate(image[None], size=size, **how)[0]


def _preparation(spec: str, model: nn.Module) -> Callable[[Any], Tensor] | None:
    """How a model's library turns a PIL image into an input; None if it does not say."""
    source, _, name = spec.rpartition(":")
    with suppress(ImportError, OSError, ValueError, KeyError, AttributeError):
        if source == "timm":
            data = importlib.import_module("timm.data")
            prepared: Callable[[Any], Tensor] = data.create_transform(**data.resolve_model_data_config(model))
            return prepared
        if source == "torchvision":
            weights = importlib.import_module("torchvision.models").get_model_weights(name)
            known: Callable[[Any], Tensor] = weights.DEFAULT.transforms()
            return known
        if source == "hf":
            kind = importlib.import_module("transformers").AutoImageProcessor
            processor = from_pretrained(kind, name)
            return lambda image: torch.as_tensor(np.array(processor(image)["pixel_values"][0]))
    return None
