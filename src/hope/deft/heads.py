"""The last layer: made anew for a task, swapped, and put back."""

from __future__ import annotations

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hope.errors import HopeError


class InvalidHead(HopeError, ValueError):
    """A head was asked for that cannot be made."""


def new_head(old: nn.Module, head: int | nn.Module | None, name: str) -> nn.Module:
    """A fresh head of the old one's kind with so many outputs, the given module, or a copy of the old one."""
    if head is None:
        return copy.deepcopy(old)
    if isinstance(head, nn.Module):
        return head
    if head < 1:
        raise InvalidHead(f"a head with {head} outputs is none: give the number of classes")
    place = next(old.parameters())
    made: nn.Module
    if isinstance(old, nn.Linear):
        made = nn.Linear(old.in_features, head, bias=old.bias is not None)
    elif isinstance(old, (nn.Conv1d, nn.Conv2d, nn.Conv3d)) and old.groups == 1:
        options = {
            "stride": old.stride, "padding": old.padding, "dilation": old.dilation,
            "padding_mode": old.padding_mode, "bias": old.bias is not None,
        }  # fmt: skip
        made = type(old)(old.in_channels, head, old.kernel_size, **options)  # type: ignore[arg-type]
    else:
        raise InvalidHead(
            f"the head {name} is a {type(old).__name__}, of which no other size can be made: "
            "pass a module with head="
        )
    return made.to(device=place.device, dtype=place.dtype).train(old.training)


@torch.no_grad()
def masked_head(
    head: nn.Module, columns: Mapping[str, Tensor], absorbed: Mapping[str, Tensor] | None = None
) -> nn.Module:
    """A copy of a head that does not listen to some of its inputs.

    Args:
        head: whose.
        columns: parameter (its name within the head) -> a mask that broadcasts to it, True where it is deaf.
        absorbed: parameter -> what it is instead, where others take over what is not heard.
    """
    copied = copy.deepcopy(head)
    for name, value in (absorbed or {}).items():
        copied.get_parameter(name).copy_(value)
    for name, mask in columns.items():
        parameter = copied.get_parameter(name)
        parameter.masked_fill_(mask.to(parameter.device), 0)
    return copied.requires_grad_(False)
