"""Widths that hardware and configurations like: removals wait until they come to a multiple, or to one width
for all layers that are alike.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hope.actions import Action
from hope.errors import UnknownMethod
from hope.structure.anatomy import Anatomy
from hope.structure.removed import Removed


@dataclass(frozen=True)
class Group:
    """Layers that keep one width.

    Attributes:
        names: of the layers.
        counts: how many neurons of each may be removed; None if any number may.
    """

    names: tuple[str, ...]
    counts: frozenset[int] | None = None


Groups: TypeAlias = Sequence[Group]


def check_multiple(multiple_of: Any) -> None:
    """Refuse what is no whole number from 1."""
    whole = hasattr(multiple_of, "__index__") and not isinstance(multiple_of, bool)
    if not whole or multiple_of < 1:
        raise UnknownMethod(
            f"multiple_of must be a whole number from 1, got {multiple_of!r}: give 8, 16, or 1 for any"
        )


def check_uniform(uniform: Any, streams: bool) -> bool:
    """Whether layers that are alike keep one width; refuse what does not go with it."""
    if not isinstance(uniform, bool):
        raise UnknownMethod(f"uniform must be True or False, got {uniform!r}: give True for one width")
    if uniform and streams:
        raise UnknownMethod("streams must be off with uniform=True, got streams=True: leave one of them out")
    return uniform


def widest(anatomy: Anatomy, names: Collection[str]) -> int:
    """The width of the widest of these layers: widths that are multiples of as much cannot be had."""
    return max((one.neurons * one.channels for one in anatomy.layers if one.name in names), default=0)


def alike(anatomy: Anatomy) -> list[Group]:
    """Layers that differ in the numbers on their way only, and have as many neurons: the same layer of every
    block. Those whose width is fixed are among them.

    >>> import torch, hope
    >>> net = torch.nn.Sequential(*[torch.nn.Linear(4, 4) for _ in range(3)])
    >>> alike(hope.inspect(net, torch.zeros(1, 4)))
    [Group(names=('0', '1'), counts=None)]
    """
    found: dict[tuple[str, int, int], list[str]] = {}
    for unit in anatomy.units:
        if unit.kind == "layer":
            way = ".".join("*" if part.isdigit() else part for part in unit.name.split("."))
            found.setdefault((way, unit.neurons, unit.channels), []).append(unit.name)
    return [Group(tuple(names)) for names in found.values()]


def aligned(
    anatomy: Anatomy, steps: Sequence[Action], multiple_of: int, groups: Groups = ()
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Order steps so that surviving widths are multiples, leaving out those that would only break it.

    A layer's steps are held back until its width is a multiple again, and are then done in one go; what
    never comes to a multiple is not done. Within a layer the order stays. The layers of a group wait for one
    another as well, until they have one width.

    The eviction of a segment of a chain can leave the layer before it with a width that is no multiple; then
    the run may not be ended before that layer's next steps make it one.

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
    together = {name: group for group in groups for name in group.names}
    removed = Removed(anatomy)
    waiting: dict[Group, list[int]] = {}
    pending: dict[str, set[int]] = {name: set() for name in layers}  # neurons that wait to be removed
    odd: set[str] = set()  # layers that an eviction has left with some other width
    order: list[int] = []
    stops = [0]

    def take(step: Action) -> dict[str, set[int]]:
        lost_now = removed.take(step)
        for name in pending.keys() & lost_now.keys():
            pending[name] -= lost_now[name]
        return lost_now

    def uneven(group: Group, *, waited: bool = False) -> bool:
        """Whether widths are no multiples, or not the same, without what is removed, and what waits."""
        lost = [len(removed.of(name)) + (len(pending[name]) if waited else 0) for name in group.names]
        left = {
            (layers[name].neurons - count) * layers[name].channels
            for name, count in zip(group.names, lost, strict=True)
        }
        barred = group.counts is not None and lost[0] not in group.counts
        return barred or len(left) > 1 or any(width % multiple_of for width in left)

    for position, step in enumerate(steps):
        if step.evicts is not None:
            block = anatomy.block(step.evicts)
            for name in block.layers:
                if waiting.pop(Group((name,)), None) is not None:
                    pending[name].clear()
            order.append(position)
            moved = [name for name, neurons in take(step).items() if neurons]
            odd = {name for name in (*odd, *moved) if name not in block.layers and uneven(Group((name,)))}
        else:
            group = together.get(step.name, Group((step.name,)))
            waiting.setdefault(group, []).append(position)
            pending[step.name].update(set(step.removed) - removed.of(step.name))
            if uneven(group, waited=True):
                continue
            for k in waiting.pop(group):
                order.append(k)
                take(steps[k])
            odd.difference_update(group.names)
        if not odd:
            stops.append(len(order))
    return tuple(order), tuple(stops)
