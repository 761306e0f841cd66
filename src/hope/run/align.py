"""Widths that hardware likes: a layer's removals wait until they come to a multiple."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from hope.anatomy.anatomy import Anatomy
from hope.anatomy.steps import Evict, Step
from hope.errors import UnknownMethod


def check_multiple(multiple_of: Any) -> None:
    """Refuse what is no whole number from 1."""
    whole = hasattr(multiple_of, "__index__") and not isinstance(multiple_of, bool)
    if not whole or multiple_of < 1:
        raise UnknownMethod(
            f"multiple_of={multiple_of} makes no sense: give a whole number, 8, 16 or 32, or 1 for any width"
        )


def widest(anatomy: Anatomy, names: Collection[str]) -> int:
    """The width of the widest of these layers: widths that are multiples of as much cannot be had."""
    return max((one.neurons * one.channels for one in anatomy.layers if one.name in names), default=0)


def aligned(
    anatomy: Anatomy, steps: Sequence[Step], multiple_of: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Order steps so that surviving widths are multiples, leaving out those that would only break it.

    A layer's steps are held back until its width is a multiple again, and are then done in one go; what
    never comes to a multiple is not done. Within a layer the order stays.

    Returns:
        Positions of the steps that are done, in order; and after how many of them every width is a multiple
        (or the layer is untouched).

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
        >>> anatomy = hope.inspect(net, torch.zeros(1, 4))
        >>> aligned(anatomy, [hope.Prune("0", i) for i in range(5)], 4)
        ((0, 1), (0, 2))
    """
    width = {layer.name: layer.neurons * layer.channels for layer in anatomy.layers}
    size = {layer.name: layer.channels for layer in anatomy.layers}
    inside = {block.name: block.layers for block in anatomy.blocks}
    waiting: dict[str, list[int]] = {}
    order: list[int] = []
    stops = [0]
    for position, step in enumerate(steps):
        if isinstance(step, Evict):
            for name in inside[step.name]:
                waiting.pop(name, None)
            order.append(position)
        else:
            width[step.name] -= len(step.gone) * size[step.name]
            waiting.setdefault(step.name, []).append(position)
            if width[step.name] % multiple_of:
                continue
            order += waiting.pop(step.name)
        stops.append(len(order))
    return tuple(order), tuple(stops)
