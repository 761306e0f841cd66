"""From traced channels to units, and reasons for what is kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import TypeAlias, TypeVar

import numpy as np

from hope.reasons import Cause, Reason
from hope.structure.channel_tracer import ChannelTracer
from hope.structure.sizes import released
from hope.structure.units import IndexMap, Reader, Skipped, Unit
from hope.trace.labels import Ids, Shape
from hope.trace.program import module_of
from hope.trace.values import Link

T = TypeVar("T")
Key: TypeAlias = tuple[str, int]  # a tensor's name and one of its dimensions


class _Resolved:
    """Resolved ids: which are pinned or joined by adds, and the positions of each unit."""

    def __init__(self, flow: ChannelTracer) -> None:
        root = flow.ties.resolve()
        self.pinned = _first_words(root, flow.pins)
        self.held = _first_words(root, [pin for pin in flow.pins if pin[1].cause is not Cause.COMBINED])
        self.counted = _first_words(root, flow.counted)
        self.normed = _first_words(root, flow.normed)
        self.mixed = _first_words(root, [*flow.mixed, *flow.normed])
        self.added = _first_words(root, flow.added)
        self.places: dict[Key, Ids] = {key: root[ids] for key, ids in flow.ids.items()}
        self._homes: dict[int, list[Key]] = {}
        for key, units in self.places.items():
            for unit in np.unique(units).tolist():
                self._homes.setdefault(unit, []).append(key)

    def of(self, keys: Iterable[Key]) -> Ids:
        """The units with positions in these dimensions."""
        return np.unique(np.concatenate([self.places[key] for key in keys]))

    def touched(self, units: Ids) -> list[Key]:
        """All dimensions with positions of these units."""
        return list(dict.fromkeys(key for unit in units.tolist() for key in self._homes[unit]))

    def alike(self, units: Ids) -> list[Ids]:
        """Units in groups with positions in the same dimensions."""
        found: dict[tuple[Key, ...], list[int]] = {}
        for unit in units.tolist():
            found.setdefault(tuple(self._homes[unit]), []).append(unit)
        return [np.array(some, dtype=np.int64) for some in found.values()]


def _first_words(root: Ids, noted: Iterable[tuple[Ids, T]]) -> dict[int, T]:
    words: dict[int, T] = {}
    for ids, text in noted:
        for unit in np.unique(root[ids]).tolist():
            words.setdefault(unit, text)
    return words


def read(
    flow: ChannelTracer,
    parameters: frozenset[str],
    shared: Mapping[str, tuple[str, ...]],
    *,
    streams: bool = False,
) -> tuple[list[Unit], list[Skipped]]:
    """Group the resolved ids into units (layers, then streams), and reasons for what is kept.

    Args:
        parameters: the names that count as parameters (the others are buffers).
        shared: parameter -> all its names, if there are several.
        streams: whether channels of streams are prunable.
    """
    for (tensor, _), ids in flow.ids.items():
        if tensor in shared:
            flow.pin(ids, Cause.SHARED_WEIGHT.at(" and ".join(shared[tensor])))
        elif flow.uses[tensor] > 1:
            flow.pin(ids, Cause.USED_AGAIN.at(tensor, str(flow.uses[tensor])))
    _hold_grids(flow)
    units = _Resolved(flow)
    writers = [key for key, role in flow.roles.items() if role == "out"]
    writers.sort(key=lambda key: flow.order[key[0]])
    layers: list[Unit] = []
    tied: list[Unit] = []
    skipped: list[Skipped] = []

    def leave(group: list[Key], why: Reason, some: Ids | None = None) -> None:
        for tensor, dim in group:
            count = flow.shapes[tensor][dim]
            if some is not None:
                count = int(np.isin(units.places[tensor, dim], some).sum())
            names = shared.get(tensor, (tensor,)) if count else ()
            skipped.extend(Skipped(module_of(name), count, why) for name in names)

    for group in _connected(writers, units.places):
        own = units.of(group)
        touched = units.touched(own)
        tie = next((units.added[unit] for unit in own.tolist() if unit in units.added), None)
        if tie is not None and len(group) > 1:
            mixed = next((units.mixed[unit] for unit in own.tolist() if unit in units.mixed), None)
            whole = _unit(flow, "stream", group, _places(flow, touched, units.places, own), mixed)
            found = _parts(flow, group, units, own, parameters)
            tied += [part for part, _ in found] if streams and found else [whole]
            free = np.concatenate([np.empty(0, dtype=np.int64), *(ids for _, ids in found)])
            if found and not streams:
                leave(group, _stream(group, tie), free)
            stay = np.setdiff1d(own, free)
            if len(stay):
                counted = next((units.counted[unit] for unit in own.tolist() if unit in units.counted), None)
                reason = _reason(flow, group, units, stay, touched) or counted
                leave(group, reason or Cause.UNLIKE.at(), stay)
            continue
        normed = next((units.normed[unit] for unit in own.tolist() if unit in units.normed), None)
        reason = _reason(flow, group, units, own, touched) or normed
        if reason is None:
            order = _in_order(group[0], units.places, own)
            places = _places(flow, touched, units.places, order)
            # of equal shape: each is in the first writer, and in every tensor equally often
            if len(order) == len(own) and _even(places, len(own)):
                layers.append(_unit(flow, "layer", group, places, None, parameters))
                continue
        leave(group, reason or Cause.UNLIKE.at())
    cut = {part.tensor for layer in layers for part in layer.places}
    cut |= {part.tensor for stream in tied if stream.open for part in stream.places}
    for (tensor, dim), role in flow.roles.items():
        if role == "through" and tensor not in cut:
            held = [units.pinned[unit] for unit in units.places[tensor, dim].tolist() if unit in units.pinned]
            why = held[0] if held else Cause.TIED_TO_GROUPS.at()
            skipped.append(Skipped(module_of(tensor), flow.shapes[tensor][dim], why))
    skipped += [Skipped(name, channels, why) for name, (channels, why) in flow.computed.items()]
    return layers + tied, skipped


def _hold_grids(flow: ChannelTracer) -> None:
    """Channels that the code arranges in rows are prunable by whole rows, or by one position of every row:
    complete rows must remain. Equal parts of a split lose the same positions: their code may rely on that.
    """
    root = flow.ties.resolve()
    for label, reason in flow.grids:
        if reason.cause is Cause.SPLIT and (label >= 0).all() and _varies(root, label):
            flow.ties.tie(np.broadcast_to(label[:1], label.shape), label)
            root = flow.ties.resolve()
    for label, reason in flow.grids:
        if _varies(root, label):
            flow.pin(label, reason)


def _varies(root: Ids, label: Ids) -> bool:
    """Whether channels differ along several dimensions."""
    units = np.where(label >= 0, root[label.clip(min=0)], label)
    return sum(bool((units != units.take([0], axis=d)).any()) for d in range(units.ndim)) > 1


def _parts(
    flow: ChannelTracer, group: list[Key], units: _Resolved, own: Ids, parameters: frozenset[str]
) -> list[tuple[Unit, Ids]]:
    """The prunable channels of a stream, in units of channels in the same tensors.

    A channel that is added to a kept one (such as zero-padding of a skip) is kept. Any other pin keeps the
    whole stream.
    """
    if any(unit in units.held or unit in units.counted for unit in own.tolist()):
        return []
    found: list[tuple[Unit, Ids]] = []
    for some in units.alike(np.array([unit for unit in own.tolist() if unit not in units.pinned], np.int64)):
        touched = units.touched(some)
        places = _places(flow, touched, units.places, some)
        read = any(part.role == "in" for part in places)
        if len(some) > 1 and read and _even(places, len(some)):
            writing = [key for key in group if key in touched]
            mixed = next((units.mixed[unit] for unit in some.tolist() if unit in units.mixed), None)
            part = _unit(flow, "stream", writing, places, mixed, parameters)
            taken = {one.name for one, _ in found}
            name = f"{part.name}#{len(found) + 1}" if part.name in taken else part.name
            found.append((replace(part, name=name), some))
    return found


def _even(places: tuple[IndexMap, ...], neurons: int) -> bool:
    """Whether every neuron is in each tensor, equally often."""
    return all(part.even and part.owner.max() + 1 == neurons for part in places)


def _stream(group: list[Key], tie: str) -> Reason:
    return Cause.STREAM.at(tie, _others(tuple(module_of(tensor) for tensor, _ in group)))


def _reason(
    flow: ChannelTracer, group: list[Key], units: _Resolved, own: Ids, touched: list[Key]
) -> Reason | None:
    """Why a group of producers is kept; None if its neurons are prunable one by one."""
    pinned = next((units.pinned[unit] for unit in own.tolist() if unit in units.pinned), None)
    if pinned is not None:
        return pinned
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
    """Writers that share a unit form a group; groups in order of their first writer."""
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
    """Resolved ids in the order of their positions in a tensor."""
    wanted = set(units.tolist())
    found = [unit for unit in dict.fromkeys(places[key].tolist()) if unit in wanted]
    return np.array(found, dtype=np.int64)


def _places(
    flow: ChannelTracer, touched: list[Key], places: Mapping[Key, Ids], units: Ids
) -> tuple[IndexMap, ...]:
    """For every affected dimension, the owner of each position: neuron n is the n-th of the resolved ids."""
    order = np.argsort(units)
    found = []
    for tensor, dim in touched:
        ids = places[tensor, dim]
        own = np.isin(ids, units)
        owner = np.full(len(ids), -1, dtype=np.int64)
        owner[own] = order[np.searchsorted(units[order], ids[own])]
        role = flow.roles.get((tensor, dim), "along")
        found.append(IndexMap(tensor, dim, "along" if role == "through" else role, owner))
    return tuple(found)


def _unit(
    flow: ChannelTracer,
    kind: str,
    group: list[Key],
    places: tuple[IndexMap, ...],
    mixed: Reason | None,
    parameters: frozenset[str] | None = None,
) -> Unit:
    """A unit; of kept channels, without sizes of parameters."""
    weight, dim = group[0]
    own = next(part for part in places if (part.tensor, part.dim) == (weight, dim))
    neurons = 1 + max(int(part.owner.max()) for part in places)
    reading = sorted((part for part in places if part.role == "in"), key=lambda part: flow.order[part.tensor])
    layer = kind == "layer"
    first = group[:1] if layer or parameters is None else group
    readers = tuple(Reader(part.tensor, _path(flow, part.tensor, first)) for part in reading)
    along = [
        part.tensor
        for part in places
        if (part.role == "along" and (part.tensor, part.dim) in flow.roles)
        or (part.role == "out" and part.tensor != weight)
    ]
    return Unit(
        name=module_of(weight),
        kind=kind,
        weight=weight,
        neurons=neurons,
        channels=1 if parameters is None else own.each,
        fan_in=_entries(flow.shapes, [own]) // neurons,
        fan_out=_entries(flow.shapes, reading) // neurons,
        release=released(flow.shapes, [p for p in places if p.tensor in (parameters or ())]),
        writers=(module_of(weight),) if layer else tuple(module_of(tensor) for tensor, _ in group),
        readers=readers,
        places=places,
        along=tuple(dict.fromkeys(module_of(tensor) for tensor in along)),
        mixed=mixed,
    )


def _path(flow: ChannelTracer, reader: str, group: list[Key]) -> tuple[Link, ...]:
    """The operations on a signal's path to a reader, from the first writer."""
    paths = flow.reads.get(reader, {})
    return next((paths[weight] for weight, _ in group if weight in paths), ())


def _entries(shapes: Mapping[str, Shape], places: Sequence[IndexMap]) -> int:
    """Entries of tensors that neurons own."""
    return sum(len(p.owned) * prod(shapes[p.tensor]) // shapes[p.tensor][p.dim] for p in places)
