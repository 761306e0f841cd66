"""Cut tensors inside modules for real, and bring the modules' own size attributes up to date."""

from __future__ import annotations

from collections.abc import Mapping

import torch
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
        refresh(module, before)


def refresh(module: nn.Module, before: Mapping[str, tuple[int, ...]]) -> None:
    """Set a module's size attributes from its tensors.

    Args:
        before: attribute -> shape before the cut, of the tensors that were cut.
    """
    convolutions = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
    transposed = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
    weight = getattr(module, "weight", None)
    shape = tuple(weight.shape) if isinstance(weight, Tensor) else ()
    if isinstance(module, (*convolutions, *transposed)):
        if "weight" in before and module.groups > 1:  # whole groups go
            module.groups = module.groups * shape[0] // before["weight"][0]
        first, second = shape[0], shape[1] * module.groups
        module.out_channels, module.in_channels = (
            (second, first) if isinstance(module, transposed) else (first, second)
        )
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = shape
    elif isinstance(module, nn.Embedding):
        module.num_embeddings, module.embedding_dim = shape
    elif isinstance(module, nn.PReLU):
        module.num_parameters = shape[0]
    elif isinstance(module, nn.modules.batchnorm._NormBase):
        first_cut = next(iter(before))
        module.num_features = int(getattr(module, first_cut).shape[0])
    elif isinstance(before.get("weight"), tuple) and len(shape) == 2 and hasattr(module, "nf"):
        vars(module)["nf"] = shape[1]  # the transposed linear layer of GPT-2
