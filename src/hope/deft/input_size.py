"""Inputs of a new task that the network cannot run on are refused in one line."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from hope._util.calls import evaluation
from hope.errors import InvalidExample, first_line


class InputSize:
    """A forward pre-hook on the model: the first training input of each size is tried, one sample of it.

    Inputs that are not one floating-point tensor are not tried: texts have many lengths.
    """

    def __init__(self) -> None:
        self.known = set[tuple[int, ...]]()

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Try a new size."""
        if not model.training or torch.compiler.is_compiling() or kwargs or len(args) != 1:
            return
        inputs = args[0]
        if not isinstance(inputs, Tensor) or not inputs.is_floating_point() or inputs.ndim < 2:
            return
        size = tuple(inputs.shape[1:])
        if size in self.known or not len(inputs):
            return
        try:
            with evaluation(model), torch.no_grad():
                model(inputs[:1])
        except RuntimeError as error:
            raise InvalidExample(
                f"inputs of the new task must have a size that {type(model).__name__} runs on, got "
                f"{tuple(inputs.shape)} ({first_line(error)}): resize them"
            ) from error
        except ValueError:  # one sample may be too few for a norm; the forward itself will say so
            return
        self.known.add(size)
