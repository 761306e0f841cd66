"""Widths that hardware likes: a layer's removals wait until they come to a multiple."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from hope.anatomy.anatomy import Anatomy
from hope.anatomy.gone import Gone
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

    A segment of a chain that goes can leave the layer in front of it with a width that is none; then the run
    may not be ended before that layer's next steps make it one.

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
    layers = {layer.name: layer for layer in anatomy.layers}
    gone = Gone(anatomy)
    waiting: dict[str, list[int]] = {}
    odd: set[str] = set()  # layers that an eviction has left with some other width
    order: list[int] = []
    stops = [0]

    def uneven(name: str, also: Collection[int] = ()) -> bool:
        """Whether a layer's width is no multiple without what is gone and these neurons."""
        lost = len(gone.of(name)) + len(set(also) - gone.of(name))
        return bool((layers[name].neurons - lost) * layers[name].channels % multiple_of)

    for position, step in enumerate(steps):
        if isinstance(step, Evict):
            block = anatomy.block(step.name)
            for name in block.layers:
                waiting.pop(name, None)
            order.append(position)
            moved = [name for name, neurons in gone.take(step).items() if neurons]
            odd = {name for name in (*odd, *moved) if name not in block.layers and uneven(name)}
        else:
            waiting.setdefault(step.name, []).append(position)
            if uneven(step.name, [neuron for k in waiting[step.name] for neuron in steps[k].gone]):
                continue
            for k in waiting.pop(step.name):
                order.append(k)
                gone.take(steps[k])
            odd.discard(step.name)
        if not odd:
            stops.append(len(order))
    return tuple(order), tuple(stops)
