"""The last layer: created for a task, swapped, and restored."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from numbers import Integral
from typing import Any

import torch
from torch import Tensor, nn

from hope.errors import InvalidHead
from hope.storage.adapter import Head

FROZEN = "frozen"  # instead of a module's name: both tasks share the last layer, which is core
PLAIN = {kind.__name__: kind for kind in (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)}


def head_of(model: nn.Module, name: str) -> nn.Module:
    """The head; an empty module if it is frozen and so has no name."""
    return model.get_submodule(name) if name else nn.Identity()


def put_head(model: nn.Module, name: str, head: nn.Module) -> None:
    """Replace the head, in place; a frozen one stays."""
    if name:
        model.set_submodule(name, head)


def recipe(layer: nn.Module) -> dict[str, Any] | None:
    """How to build such a layer, as plain data; None if it is neither linear nor a convolution.

    >>> recipe(nn.Linear(8, 3, bias=False))
    {'kind': 'Linear', 'in_features': 8, 'out_features': 3, 'bias': False}
    """
    kind = next((name for name, kind in PLAIN.items() if isinstance(layer, kind)), None)
    if kind is None:
        return None
    names = ["in_features", "out_features"]
    if kind != "Linear":
        names = ["in_channels", "out_channels", "kernel_size", "stride", "padding", "dilation", "groups"]
        names.append("padding_mode")
    values = {name: getattr(layer, name) for name in names}
    plain = {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
    return {"kind": kind, **plain, "bias": layer.bias is not None}


def build(options: Mapping[str, Any], like: nn.Module) -> nn.Module:
    """A new layer from a recipe, on the device and with the dtype of `like`."""
    place = next(like.parameters())
    return _made(options).to(device=place.device, dtype=place.dtype).train(like.training)


def shapes_of(options: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    """The shapes of a recipe's parameters, without allocating them.

    >>> shapes_of(recipe(nn.Linear(8, 3)))
    {'weight': (3, 8), 'bias': (3,)}
    """
    with torch.device("meta"):
        return {name: tuple(value.shape) for name, value in _made(options).state_dict().items()}


def _made(options: Mapping[str, Any]) -> nn.Module:
    return PLAIN[options["kind"]](**{name: value for name, value in options.items() if name != "kind"})


def new_head(old: nn.Module, head: int | nn.Module | None, name: str, source: nn.Module) -> nn.Module:
    """A new head of the old one's kind with so many outputs, the given module, or a copy of the old one.

    Args:
        name: the old head's; "" if it is frozen.
        source: the source model; a module of its own is copied, so that training leaves it alone.
    """
    if not name:
        if head is not None:
            raise InvalidHead(
                f"head must be None, since the partition has a frozen head, got {head!r}: omit it"
            )
        return old
    if next(old.parameters(), None) is None:
        raise InvalidHead(
            f"the head must have parameters, and {name} has none: name the last layer of the model"
        )
    if head is None:
        return copy.deepcopy(old)
    if isinstance(head, nn.Module):
        own = {id(parameter) for parameter in source.parameters()}
        shared = any(id(parameter) in own for parameter in head.parameters())
        return copy.deepcopy(head) if shared else head
    if isinstance(head, bool) or not isinstance(head, Integral):
        raise InvalidHead(
            f"head must be a number of classes, a module or None, got {head!r}: give the number of classes"
        )
    if head < 1:
        raise InvalidHead(f"head must be at least 1 class, got {head}: give the number of classes")
    options = recipe(old)
    if options is None or options.get("groups", 1) != 1:
        raise InvalidHead(
            f"the head {name} is a {type(old).__name__}, which cannot be built in another size: pass a "
            "module with head="
        )
    outputs = "out_features" if "out_features" in options else "out_channels"
    return build({**options, outputs: int(head)}, old)


def check_recipe(known: Mapping[str, Any], stored: Mapping[str, Tensor]) -> None:
    """Refuse to build a head whose shapes differ from the stored ones."""
    want, have = shapes_of(known), {name: tuple(value.shape) for name, value in stored.items()}
    if want != have:
        raise ValueError(f"tensors of the head must have the shapes {want} of its recipe, got {have}")


def known_recipe(saved: Head, old: nn.Module) -> dict[str, Any] | None:
    """How to build the saved head. If only its outputs are stored, the rest is as in the source's."""
    if saved.recipe is None or saved.shapes is not None:
        return saved.recipe
    like = recipe(old)
    return {**like, **saved.recipe} if like is not None and like["kind"] == saved.kind else None


def head_differences(saved: Head, known: dict[str, Any] | None, made: nn.Module) -> list[str]:
    """Differences between a head and the saved one, as far as they are stored."""
    want: dict[str, Any] = dict(saved.shapes or {})
    have: dict[str, Any] = {
        name: list(value.shape) for name, value in tensors_of(made).items() if saved.shapes
    }
    options = plain_recipe(made)
    if known is not None and options is not None:
        want, have = {**want, **known}, {**have, **options}
    return [
        f"{name} is {have.get(name, 'not there')} and was {want.get(name, 'not there')}"
        for name in {**want, **have}
        if want.get(name) != have.get(name)
    ]


def tensors_of(head: nn.Module) -> dict[str, Tensor]:
    """A head's parameters and buffers, as in its `state_dict`."""
    return {name: value for name, value in head.state_dict().items() if isinstance(value, Tensor)}


def plain_recipe(head: nn.Module) -> dict[str, Any] | None:
    """How to build the head again; a derived class may need unknown arguments."""
    return recipe(head) if type(head) in PLAIN.values() else None


@torch.no_grad()
def masked_head(
    head: nn.Module, columns: Mapping[str, Tensor], absorbed: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """A copy of a head with zero weights for some of its inputs.

    Args:
        columns: parameter (its name within the head) -> a mask that broadcasts to it, True where masked.
        absorbed: parameter -> its replacement, if other weights compensate.
    """
    copied = copy.deepcopy(head)
    for name, value in (absorbed or {}).items():
        copied.get_parameter(name).copy_(value)
    for name, mask in columns.items():
        parameter = copied.get_parameter(name)
        parameter.masked_fill_(mask.to(parameter.device), 0)
    return copied.requires_grad_(False)
