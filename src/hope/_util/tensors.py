"""Parameters and buffers of a model by name."""

from __future__ import annotations

from torch import Tensor, nn


def owner(model: nn.Module, tensor: str) -> tuple[nn.Module, str]:
    """The module that holds a parameter or buffer, and the attribute it is held under."""
    path, _, attribute = tensor.rpartition(".")
    return model.get_submodule(path), attribute


def get(model: nn.Module, tensor: str) -> Tensor:
    """A parameter or buffer by name."""
    module, attribute = owner(model, tensor)
    value = getattr(module, attribute)
    assert isinstance(value, Tensor)
    return value
