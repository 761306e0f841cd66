"""From followed channels to units, and what is left alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import TypeAlias, TypeVar

import numpy as np

from hope.anatomy.flow import Flow
from hope.anatomy.sizes import released
from hope.anatomy.units import Places, Reader, Skipped, Unit
from hope.graph.labels import Ids, Shape
from hope.graph.program import module_of
from hope.reasons import Cause, Reason

T = TypeVar("T")
Key: TypeAlias = tuple[str, int]  # a tensor's name and one of its dimensions


class _Resolved:
    """Resolved ids: what is held fast or tied by adds, and where each unit has its places."""

    def __init__(self, flow: Flow) -> None:
        root = flow.ties.resolve()
        self.pinned = _first_words(root, flow.pins)
        self.mixed = _first_words(root, flow.mixed)
        self.added = _first_words(root, flow.added)
        self.places: dict[Key, Ids] = {key: root[ids] for key, ids in flow.ids.items()}
        self._homes: dict[int, list[Key]] = {}
        for key, units in self.places.items():
            for unit in np.unique(units).tolist():
                self._homes.setdefault(unit, []).append(key)

    def of(self, keys: Iterable[Key]) -> Ids:
        """The units with places in these dimensions."""
        return np.unique(np.concatenate([self.places[key] for key in keys]))

    def touched(self, units: Ids) -> list[Key]:
        """All dimensions that these units have places in."""
        return list(dict.fromkeys(key for unit in units.tolist() for key in self._homes[unit]))


def _first_words(root: Ids, noted: Iterable[tuple[Ids, T]]) -> dict[int, T]:
    words: dict[int, T] = {}
    for ids, text in noted:
        for unit in np.unique(root[ids]).tolist():
            words.setdefault(unit, text)
    return words


def read(
    flow: Flow, parameters: frozenset[str], shared: Mapping[str, tuple[str, ...]]
) -> tuple[list[Unit], list[Skipped]]:
    """Group the resolved ids into units (layers, then streams), and what is left alone.

    Args:
        flow: the followed graphs.
        parameters: the names that count as parameters (the others are buffers).
        shared: parameter -> all the names it goes by, for those with several.
    """
    for (tensor, _), ids in flow.ids.items():
        if tensor in shared:
            flow.pin(ids, Cause.SHARED_WEIGHT.at(" and ".join(shared[tensor])))
        elif flow.uses[tensor] > 1:
            flow.pin(ids, Cause.USED_AGAIN.at(tensor, str(flow.uses[tensor])))
    units = _Resolved(flow)
    writers = [key for key, role in flow.roles.items() if role == "out"]
    writers.sort(key=lambda key: flow.order[key[0]])
    layers: list[Unit] = []
    streams: list[Unit] = []
    skipped: list[Skipped] = []
    for group in _connected(writers, units.places):
        own = units.of(group)
        touched = units.touched(own)
        tie = next((units.added[unit] for unit in own.tolist() if unit in units.added), None)
        if tie is not None and len(group) > 1:
            mixed = next((units.mixed[unit] for unit in own.tolist() if unit in units.mixed), None)
            streams.append(_unit(flow, "stream", group, _places(flow, touched, units.places, own), mixed))
        reason = _reason(flow, group, units, own, touched, tie)
        if reason is None:
            order = _in_order(group[0], units.places, own)
            places = _places(flow, touched, units.places, order)
            # alike: every one of them stands in the first writer, and in each tensor as often as any other
            if len(order) == len(own) and all(p.even and p.owner.max() + 1 == len(own) for p in places):
                layers.append(_unit(flow, "layer", group, places, None, parameters))
                continue
        why = reason or Cause.UNLIKE.at()
        skipped += [
            Skipped(module_of(name), flow.shapes[t][d], why) for t, d in group for name in shared.get(t, (t,))
        ]
    cut = {part.tensor for layer in layers for part in layer.places}
    for (tensor, dim), role in flow.roles.items():
        if role == "through" and tensor not in cut:
            held = [units.pinned[unit] for unit in units.places[tensor, dim].tolist() if unit in units.pinned]
            why = held[0] if held else Cause.GOES_WITH_GROUPS.at()
            skipped.append(Skipped(module_of(tensor), flow.shapes[tensor][dim], why))
    skipped += [Skipped(name, channels, why) for name, (channels, why) in flow.computed.items()]
    return layers + streams, skipped


def _reason(
    flow: Flow, group: list[Key], units: _Resolved, own: Ids, touched: list[Key], tie: str | None
) -> Reason | None:
    """Why a group of producers is left alone; None if its neurons can go one by one."""
    pinned = next((units.pinned[unit] for unit in own.tolist() if unit in units.pinned), None)
    if pinned is not None:
        return pinned
    if tie is not None and len(group) > 1:
        names = _others(tuple(module_of(tensor) for tensor, _ in group))
        return Cause.STREAM.at(tie, names)
    if all(len(units.places[key]) == 1 for key in group):
        return Cause.SINGLE.at()
    if not any(flow.roles.get(key) == "in" for key in touched):
        return Cause.UNREAD.at()
    if len(own) == 1:
        return Cause.ALL_AT_ONCE.at()
    return None


def _others(names: tuple[str, ...]) -> str:
    shown = ", ".join(names[:3])
    return f"{shown} and {len(names) - 3} more" if len(names) > 3 else shown


def _connected(writers: list[Key], places: Mapping[Key, Ids]) -> list[list[Key]]:
    """Writers that share a unit belong together; groups in order of their first writer."""
    group_of_unit: dict[int, int] = {}
    groups: list[list[Key]] = []
    for key in writers:
        met = sorted({group_of_unit[u] for u in np.unique(places[key]).tolist() if u in group_of_unit})
        target = met[0] if met else len(groups)
        if not met:
            groups.append([])
        for other in met[1:]:
            groups[target] += groups[other]
            groups[other] = []
            group_of_unit = {unit: target if g == other else g for unit, g in group_of_unit.items()}
        groups[target].append(key)
        group_of_unit.update(dict.fromkeys(np.unique(places[key]).tolist(), target))
    position = {key: i for i, key in enumerate(writers)}
    return [sorted(group, key=position.__getitem__) for group in groups if group]


def _in_order(key: Key, places: Mapping[Key, Ids], units: Ids) -> Ids:
    """Resolved ids in the order in which they stand in a tensor."""
    wanted = set(units.tolist())
    found = [unit for unit in dict.fromkeys(places[key].tolist()) if unit in wanted]
    return np.array(found, dtype=np.int64)


def _places(flow: Flow, touched: list[Key], places: Mapping[Key, Ids], units: Ids) -> tuple[Places, ...]:
    """For every touched dimension, who owns each place: neuron n is the n-th of the resolved ids."""
    order = np.argsort(units)
    found = []
    for tensor, dim in touched:
        ids = places[tensor, dim]
        own = np.isin(ids, units)
        owner = np.full(len(ids), -1, dtype=np.int64)
        owner[own] = order[np.searchsorted(units[order], ids[own])]
        role = flow.roles.get((tensor, dim), "along")
        found.append(Places(tensor, dim, "along" if role == "through" else role, owner))
    return tuple(found)


def _unit(
    flow: Flow,
    kind: str,
    group: list[Key],
    places: tuple[Places, ...],
    mixed: Reason | None,
    parameters: frozenset[str] = frozenset(),
) -> Unit:
    weight, dim = group[0]
    own = next(part for part in places if (part.tensor, part.dim) == (weight, dim))
    neurons = 1 + max(int(part.owner.max()) for part in places)
    reading = sorted((part for part in places if part.role == "in"), key=lambda part: flow.order[part.tensor])
    readers = tuple(Reader(part.tensor, flow.reads.get(part.tensor, {}).get(weight, ())) for part in reading)
    along = [
        part.tensor
        for part in places
        if (part.role == "along" and (part.tensor, part.dim) in flow.roles)
        or (part.role == "out" and part.tensor != weight)
    ]
    layer = kind == "layer"
    return Unit(
        name=module_of(weight),
        kind=kind,
        weight=weight,
        neurons=neurons,
        channels=own.each if layer else 1,
        fan_in=_entries(flow.shapes, [own]) // neurons,
        fan_out=_entries(flow.shapes, reading) // neurons,
        release=released(flow.shapes, [p for p in places if p.tensor in parameters]) if layer else 0,
        writers=(module_of(weight),) if layer else tuple(module_of(tensor) for tensor, _ in group),
        readers=readers,
        places=places,
        along=tuple(dict.fromkeys(module_of(tensor) for tensor in along)),
        mixed=mixed,
    )


def _entries(shapes: Mapping[str, Shape], places: Sequence[Places]) -> int:
    """Entries of tensors that neurons own."""
    return sum(len(p.owned) * prod(shapes[p.tensor]) // shapes[p.tensor][p.dim] for p in places)
