"""How a model is called: its inputs, its mode, a copy of it."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hope.errors import InvalidExample, UnsupportedModel, first_line

Example: TypeAlias = "Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]"


def as_call(example: Example | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An example as positional and keyword arguments.

    >>> as_call({"pixel_values": 1})
    ((), {'pixel_values': 1})
    >>> as_call((1, 2))
    ((1, 2), {})
    """
    if example is None:
        raise InvalidExample(
            "no example input: pass a tensor, a tuple of positional inputs or a dict of keyword inputs"
        )
    if isinstance(example, Tensor):
        return (example,), {}
    if isinstance(example, Mapping):
        return (), dict(example)
    if isinstance(example, (tuple, list)):
        return tuple(example), {}
    raise InvalidExample(
        f"an example of type {type(example).__name__} cannot be used: "
        "pass a tensor, a tuple of positional inputs or a dict of keyword inputs"
    )


@contextmanager
def mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Put every module in one mode, and each back in its own afterwards."""
    before = [(module, module.training) for module in model.modules()]
    model.train(training)
    try:
        yield
    finally:
        for module, was in before:
            module.training = was


def duplicate(model: nn.Module) -> nn.Module:
    """A deep copy, or the reason why there can be none."""
    try:
        with torch.inference_mode(False):  # what is made there could not be trained
            return copy.deepcopy(model)
    except Exception as error:  # whatever a module's attributes raise
        raise UnsupportedModel(
            f"{type(model).__name__} cannot be copied: {first_line(error)}; "
            "old-style weight_norm must be removed first (torch.nn.utils.remove_weight_norm)"
        ) from error
