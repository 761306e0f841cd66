"""Cut tensors inside modules for real, and bring the modules' own size attributes up to date."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fractions import Fraction

import torch
from torch import Tensor, nn

from hope import ops
from hope._util.tensors import owner
from hope.trace.labels import Shape


def keep(
    model: nn.Module,
    kept: Mapping[tuple[str, int], Tensor],
    heads: Collection[tuple[str, int]] = frozenset(),
) -> None:
    """Keep only the given places along the given dimensions of the given tensors, in place.

    Args:
        kept: (tensor name, dim) -> positions to keep, ascending.
        heads: where attention heads are cut: the nearest enclosing module that counts heads is updated.
    """
    touched: dict[nn.Module, dict[str, Shape]] = {}
    shares: dict[nn.Module, set[Fraction]] = {}
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
        counting = _counting(model, tensor) if (tensor, dim) in heads else None
        if counting is not None:
            shares.setdefault(counting, set()).add(Fraction(new.shape[dim], old.shape[dim]))
    for module, before in touched.items():
        ops.resize(module, before)
    for module, some in shares.items():
        if len(some) == 1:
            ops.attention.recount(module, some.pop())


def _counting(model: nn.Module, tensor: str) -> nn.Module | None:
    """The nearest module around a tensor that counts heads, no further than two above the tensor's own."""
    path = tensor.split(".")[:-1]
    above = (model.get_submodule(".".join(path[: len(path) - up])) for up in range(min(3, len(path) + 1)))
    return next((module for module in above if ops.attention.counts_heads(module)), None)
