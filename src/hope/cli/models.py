"""MODEL, --weights and --input on the command line."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from hope.errors import CheckpointMismatch, HopeError, InvalidExample, first_line

INPUT = "1x3x224x224"
HELP = "torchvision:NAME, timm:NAME, hf:FOLDER, or file.py:function (a function that returns the model)"

EXTRAS = {"torchvision": "torchvision", "timm": "timm", "hf": "transformers"}  # which brings what


class UnknownModel(HopeError, ValueError):
    """MODEL does not name something that can be built."""


def add_arguments(parser: argparse.ArgumentParser, *, optional: bool = False) -> None:
    """The arguments of every command that takes a model."""
    parser.add_argument("model", metavar="MODEL", nargs="?" if optional else None, help=HELP)
    parser.add_argument(
        "--weights", metavar="FILE", help="a checkpoint: .safetensors, or .pt/.pth with a state dict"
    )
    parser.add_argument(
        "--input", metavar="SHAPE", default=INPUT, help="shape of an input (default: %(default)s)"
    )


def build(options: argparse.Namespace) -> tuple[nn.Module, Tensor]:
    """The model with its weights, and an example input."""
    model = make(options.model)
    if options.weights:
        load_weights(model, Path(options.weights))
    return model.eval(), example(options.input)


def make(spec: str) -> nn.Module:
    """A model by its name on the command line."""
    source, _, name = spec.rpartition(":")
    if not source or not name:
        raise UnknownModel(f"{spec!r} is not a model: give {HELP}")
    try:
        if source == "torchvision":
            model = importlib.import_module("torchvision.models").get_model(name, weights=None)
        elif source == "timm":
            model = importlib.import_module("timm").create_model(name, pretrained=False)
        elif source == "hf":
            model = importlib.import_module("transformers").AutoModelForImageClassification.from_pretrained(
                name, local_files_only=True
            )
        else:
            model = getattr(_file(Path(source)), name)()
    except ImportError as error:
        extra = EXTRAS.get(source)
        way = f"pip install 'hope-encoding[{extra}]'" if extra else "install what the file imports"
        raise UnknownModel(f"{spec} cannot be imported ({first_line(error)}): {way}") from error
    except HopeError:
        raise
    except Exception as error:  # whatever the library or the user's function raises
        raise UnknownModel(f"{spec} cannot be built: {first_line(error)}") from error
    if not isinstance(model, nn.Module):
        raise UnknownModel(f"{spec} gives a {type(model).__name__}, not a torch.nn.Module")
    return model


def _file(path: Path) -> Any:
    if not path.is_file():
        raise UnknownModel(f"there is no file {path}: give {HELP}")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise UnknownModel(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a checkpoint into a model; never by running code from it."""
    if not path.is_file():
        raise CheckpointMismatch(f"there is no checkpoint {path}")
    try:
        state = (
            load_file(path)
            if path.suffix == ".safetensors"
            else torch.load(path, map_location="cpu", weights_only=True)
        )
        model.load_state_dict(state)
    except Exception as error:  # foreign file, foreign keys, foreign shapes
        raise CheckpointMismatch(
            f"{path} does not fit {type(model).__name__}: {first_line(error)}"
        ) from error


def example(shape: str) -> Tensor:
    """An input of noise.

    >>> example("2x3x8x8").shape
    torch.Size([2, 3, 8, 8])
    """
    try:
        sizes = [int(size) for size in shape.lower().split("x")]
    except ValueError:
        raise InvalidExample(f"--input {shape} is not a shape: write it like 1x3x224x224") from None
    return torch.randn(sizes, generator=torch.Generator().manual_seed(0))
