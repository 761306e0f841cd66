"""A network as ONNX."""

from __future__ import annotations

import warnings
from os import PathLike, fspath

import torch
from torch import Tensor, nn

from hope.errors import MissingExtra


def to_onnx(model: nn.Module, example: Tensor, path: str | PathLike[str]) -> None:
    """Write a network as ONNX, for inputs of the example's shape.

    Raises:
        MissingExtra: the exporter's packages are not installed.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the exporter's, about itself
            torch.onnx.export(model, (example,), fspath(path), dynamo=True, verbose=False)
    except ImportError as error:
        raise MissingExtra(
            f"ONNX needs more packages ({error.name}): pip install 'hope-encoding[onnx]'"
        ) from error
