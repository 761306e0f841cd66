"""From followed channels to neuron layers, streams, and what is left alone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TypeAlias, TypeVar

import numpy as np

from hope.anatomy.flow import Flow
from hope.anatomy.labels import Ids, Shape
from hope.anatomy.reasons import Cause, Reason
from hope.anatomy.values import Link
from hope.graph.program import module_of

T = TypeVar("T")
Key: TypeAlias = tuple[str, int]  # a tensor's name and one of its dimensions


@dataclass(frozen=True, eq=False)
class Slice:
    """The places that neurons own along one dimension of one parameter or buffer.

    Attributes:
        tensor: name in the model's `state_dict` (or of a non-persistent buffer).
        dim: the dimension to cut.
        role: "out" (a filter), "in" (outgoing weights, the consumers' side) or "along" (BN numbers, biases,
            depthwise filters, gates: whatever goes with the neuron).
        index: (neurons, places) positions; row n is what neuron n owns.
    """

    tensor: str
    dim: int
    role: str
    index: Ids


@dataclass(frozen=True)
class Consumer:
    """A weight that reads a layer's neurons, and what is done to their signal on the way.

    Attributes:
        weight: name of the reading weight.
        path: channel-wise steps from the filter to this weight, in order.
    """

    weight: str
    path: tuple[Link, ...]

    @property
    def module(self) -> str:
        """Path of the reading module."""
        return self.weight.rpartition(".")[0] or self.weight

    def last(self, kind: str) -> Link | None:
        """The last step of a kind on the way, e.g. the BN whose output this consumer sees."""
        return next((step for step in reversed(self.path) if step.kind == kind), None)

    @property
    def activation(self) -> str:
        """The kind of the last activation behind the last BN, "identity" if there is none."""
        kinds = [step.kind for step in self.path]
        start = len(kinds) - 1 - kinds[::-1].index("bn") if "bn" in kinds else 0
        names = [step.name for step in self.path[start:] if step.kind == "activation"]
        return names[-1] if names else "identity"


@dataclass(frozen=True, eq=False)
class NeuronLayer:
    """A layer whose neurons can be removed one by one.

    Attributes:
        name: the producer's module path (or weight name for a bare parameter).
        weight: the producer's weight.
        neurons: how many there are.
        channels: channels of the producer per neuron (more than 1 where a grouped convolution ties them).
        fan_in, fan_out: incoming and outgoing weights of one neuron.
        release: parameters that removing one neuron releases, in the network as it is.
        consumers: who reads the neurons, and through what.
        slices: everything that is cut when neurons go.
        also: further modules whose outputs go with the neurons (depthwise convolutions, gates).
        block: the residual block whose branch it lies in, if any.
    """

    name: str
    weight: str
    neurons: int
    channels: int
    fan_in: int
    fan_out: int
    release: int
    consumers: tuple[Consumer, ...]
    slices: tuple[Slice, ...]
    also: tuple[str, ...]
    block: str | None = None

    @cached_property
    def bn(self) -> str | None:
        """Path of the BN whose output the consumers see; None if they see none, or not all the same."""
        found = {step.name if step else None for step in (consumer.last("bn") for consumer in self.consumers)}
        return found.pop() if len(found) == 1 else None

    @cached_property
    def activation(self) -> str:
        """The activation's kind ("relu", "silu", …, "identity"), or "several" if the consumers differ."""
        found = {consumer.activation for consumer in self.consumers}
        return found.pop() if len(found) == 1 else "several"


@dataclass(frozen=True, eq=False)
class Stream:
    """Channels that several producers write into by adds: they can only go together. Not compressed yet.

    Attributes:
        name: its first writer's module path.
        channels: how many separate channels it has.
        writers, readers: module paths, in order of execution.
        slices: everything that would be cut.
        owners: for each slice, the channel (0 to channels − 1) that each of its places belongs to.
        mixed: why its channels do not stay apart; None if they do.
    """

    name: str
    channels: int
    writers: tuple[str, ...]
    readers: tuple[str, ...]
    slices: tuple[Slice, ...]
    owners: tuple[Ids, ...] = ()
    mixed: Reason | None = None


@dataclass(frozen=True)
class Skipped:
    """Something that is left alone, and why.

    Attributes:
        name: module path.
        outputs: its output channels.
        reason: why.
        kind: "layer", "block" or "parameter".
    """

    name: str
    outputs: int
    reason: Reason
    kind: str = "layer"


@dataclass(frozen=True)
class Reading:
    """What the channels of a network turned out to be."""

    layers: tuple[NeuronLayer, ...]
    streams: tuple[Stream, ...]
    skipped: tuple[Skipped, ...]


class _Units:
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


def read(flow: Flow, parameters: frozenset[str], shared: Mapping[str, tuple[str, ...]]) -> Reading:
    """Group the resolved ids into layers, streams and what is left alone.

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
    units = _Units(flow)
    writers = [key for key, role in flow.roles.items() if role == "out"]
    writers.sort(key=lambda key: flow.order[key[0]])
    layers: list[NeuronLayer] = []
    streams: list[Stream] = []
    skipped: list[Skipped] = []
    for group in _connected(writers, units.places):
        own = units.of(group)
        touched = units.touched(own)
        tie = next((units.added[unit] for unit in own.tolist() if unit in units.added), None)
        if tie is not None and len(group) > 1:
            mixed = next((units.mixed[unit] for unit in own.tolist() if unit in units.mixed), None)
            streams.append(_stream(flow, group, touched, units.places, own, mixed))
        reason = _reason(flow, group, units, own, touched, tie)
        slices = _slices(flow, touched, units.places, own) if reason is None else None
        if slices is not None:
            layers.append(_layer(flow, group, slices, len(own), parameters))
        else:
            why = reason or Cause.UNLIKE.at()
            skipped += [
                Skipped(module_of(name), flow.shapes[t][d], why)
                for t, d in group
                for name in shared.get(t, (t,))
            ]
    cut = {part.tensor for layer in layers for part in layer.slices}
    for (tensor, dim), role in flow.roles.items():
        if role == "through" and tensor not in cut:
            held = [units.pinned[unit] for unit in units.places[tensor, dim].tolist() if unit in units.pinned]
            why = held[0] if held else Cause.GOES_WITH_GROUPS.at()
            skipped.append(Skipped(module_of(tensor), flow.shapes[tensor][dim], why))
    skipped += [Skipped(name, channels, why) for name, (channels, why) in flow.computed.items()]
    return Reading(tuple(layers), tuple(streams), tuple(skipped))


def _reason(
    flow: Flow, group: list[Key], units: _Units, own: Ids, touched: list[Key], tie: str | None
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


def _slices(
    flow: Flow, touched: list[Key], places: Mapping[Key, Ids], units: Ids
) -> tuple[Slice, ...] | None:
    """For every touched dimension, which places each unit owns; None if the units are not alike."""
    slices = []
    for tensor, dim in touched:
        owner = places[tensor, dim]
        where = np.flatnonzero(np.isin(owner, units))
        rank = np.searchsorted(units, owner[where])
        counts = np.bincount(rank, minlength=len(units))
        if (counts != counts[0]).any():
            return None
        index = where[np.argsort(rank, kind="stable")].reshape(len(units), -1)
        role = flow.roles.get((tensor, dim), "along")
        slices.append(Slice(tensor, dim, "along" if role == "through" else role, index))
    return tuple(slices)


def _layer(
    flow: Flow,
    group: list[Key],
    slices: tuple[Slice, ...],
    neurons: int,
    parameters: frozenset[str],
) -> NeuronLayer:
    weight, dim = group[0]
    own = next(s for s in slices if s.tensor == weight and s.dim == dim)
    order = np.argsort(own.index[:, 0], kind="stable")
    slices = tuple(Slice(s.tensor, s.dim, s.role, s.index[order]) for s in slices)
    sizes = {
        s: s.index.shape[1] * prod(flow.shapes[s.tensor]) // flow.shapes[s.tensor][s.dim] for s in slices
    }
    consumers = tuple(
        Consumer(s.tensor, flow.reads.get(s.tensor, {}).get(weight, ()))
        for s in sorted((s for s in slices if s.role == "in"), key=lambda s: flow.order[s.tensor])
    )
    along = [
        s.tensor
        for s in slices
        if (s.role == "along" and (s.tensor, s.dim) in flow.roles) or (s.role == "out" and s.tensor != weight)
    ]
    return NeuronLayer(
        name=module_of(weight),
        weight=weight,
        neurons=neurons,
        channels=own.index.shape[1],
        fan_in=sizes[next(s for s in slices if s.tensor == weight and s.dim == dim)],
        fan_out=sum(sizes[s] for s in slices if s.role == "in"),
        release=_release(flow.shapes, slices, parameters),
        consumers=consumers,
        slices=slices,
        also=tuple(dict.fromkeys(module_of(t) for t in along)),
    )


def _release(shapes: Mapping[str, Shape], slices: tuple[Slice, ...], parameters: frozenset[str]) -> int:
    """Parameters that vanish with one neuron; the crossing of a row and a column counts once."""
    kept: dict[str, list[int]] = {}
    for s in slices:
        if s.tensor in parameters:
            kept.setdefault(s.tensor, list(shapes[s.tensor]))[s.dim] -= s.index.shape[1]
    return sum(prod(shapes[tensor]) - prod(shape) for tensor, shape in kept.items())


def _stream(
    flow: Flow,
    group: list[Key],
    touched: list[Key],
    places: Mapping[Key, Ids],
    units: Ids,
    mixed: Reason | None,
) -> Stream:
    readers = sorted(
        (key for key in touched if flow.roles.get(key) == "in"), key=lambda key: flow.order[key[0]]
    )
    slices, owners = [], []
    for tensor, dim in touched:
        owner = places[tensor, dim]
        where = np.flatnonzero(np.isin(owner, units))
        role = flow.roles.get((tensor, dim), "along")
        slices.append(Slice(tensor, dim, "along" if role == "through" else role, where.reshape(-1, 1)))
        owners.append(np.searchsorted(units, owner[where]))
    writers = tuple(module_of(tensor) for tensor, _ in group)
    return Stream(
        writers[0],
        len(units),
        writers,
        tuple(dict.fromkeys(module_of(t) for t, _ in readers)),
        tuple(slices),
        tuple(owners),
        mixed,
    )
