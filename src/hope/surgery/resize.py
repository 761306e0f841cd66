"""Cut tensors inside modules for real, and bring the modules' own size attributes up to date."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hope import ops


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


def keep(model: nn.Module, kept: Mapping[tuple[str, int], Tensor]) -> None:
    """Keep only the given places along the given dimensions of the given tensors, in place.

    Args:
        kept: (tensor name, dim) -> positions to keep, ascending.
    """
    touched: dict[nn.Module, dict[str, tuple[int, ...]]] = {}
    for (tensor, dim), positions in kept.items():
        module, attribute = owner(model, tensor)
        old = getattr(module, attribute)
        touched.setdefault(module, {}).setdefault(attribute, tuple(old.shape))
        with torch.inference_mode(False), torch.no_grad():
            new = old.detach().index_select(dim, positions.to(old.device))
        if isinstance(old, nn.Parameter):
            setattr(module, attribute, nn.Parameter(new, requires_grad=old.requires_grad))
        else:
            setattr(module, attribute, new)
    for module, before in touched.items():
        ops.resize(module, before)
    for module in model.modules():  # what counts the heads of modules inside it
        inside = {
            f"{name}.{attribute}": shape
            for name, child in module.named_children()
            for attribute, shape in touched.get(child, {}).items()
            if isinstance(getattr(child, attribute), nn.Parameter)
        }
        if inside:
            ops.resize(module, inside)
