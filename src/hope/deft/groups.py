"""What gets an elasticity: the neurons of each layer and the channels of each stream, with all their places.

A channel of a residual stream is written and read by many weights. It gets one elasticity over all of them,
so that identity paths join equals only (the paper's assumption of bipartite separability).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import numpy as np

from hope import ops
from hope.anatomy.anatomy import Anatomy
from hope.anatomy.labels import Ids
from hope.anatomy.reasons import Cause
from hope.anatomy.units import NeuronLayer, Skipped, Stream
from hope.errors import HopeError
from hope.ops.weight import is_weight

HARMLESS = (Cause.OUTPUT, Cause.SINGLE, Cause.UNREAD)


class NotSeparable(HopeError):
    """Slack cannot be kept apart from core in this network; the message names the place."""


@dataclass(frozen=True, eq=False)
class Places:
    """Where the units of a group stand along one dimension of one tensor.

    Attributes:
        tensor: a parameter or buffer.
        dim: the dimension.
        role: "out" (incoming weights of the units), "in" (outgoing weights), "along" (BN numbers, biases, …).
        owner: (size of the dimension,) the unit at each place, -1 where another group or nothing stands.
    """

    tensor: str
    dim: int
    role: str
    owner: Ids


@dataclass(frozen=True, eq=False)
class Group:
    """Units that get an elasticity each: a layer's neurons, or a stream's channels.

    Attributes:
        name: of the layer or stream (its first writer).
        units: how many.
        places: everywhere they stand.
        layer: the neuron layer; None for a stream.
        modules: the writers' module paths.
    """

    name: str
    units: int
    places: tuple[Places, ...]
    layer: NeuronLayer | None
    modules: tuple[str, ...]


def find_groups(anatomy: Anatomy) -> list[Group]:
    """All layers and streams that some weight reads, in order of execution as the anatomy lists them."""
    found = [_of_layer(layer, anatomy) for layer in anatomy.layers]
    found += [_of_stream(stream, anatomy) for stream in anatomy.streams]
    return [group for group in found if any(place.role == "in" for place in group.places)]


def _of_layer(layer: NeuronLayer, anatomy: Anatomy) -> Group:
    places = []
    for part in layer.slices:
        owner = np.full(anatomy.shapes[part.tensor][part.dim], -1, dtype=np.int64)
        owner[part.index] = np.arange(layer.neurons)[:, None]
        places.append(Places(part.tensor, part.dim, part.role, owner))
    return Group(layer.name, layer.neurons, tuple(places), layer, (layer.name, *layer.also))


def _of_stream(stream: Stream, anatomy: Anatomy) -> Group:
    places = []
    for part, channels in zip(stream.slices, stream.owners, strict=True):
        owner = np.full(anatomy.shapes[part.tensor][part.dim], -1, dtype=np.int64)
        owner[part.index[:, 0]] = channels
        places.append(Places(part.tensor, part.dim, part.role, owner))
    return Group(stream.name, stream.channels, tuple(places), None, stream.writers)


def matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether any of the names fits any of the patterns (`*`, `?`)."""
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def find_head(anatomy: Anatomy, name: str | None) -> str:
    """The module whose outputs are the model's: what a new task replaces."""
    modules = {tensor.rpartition(".")[0] for tensor in anatomy.parameters}
    if name is not None:
        if name not in modules:
            raise NotSeparable(
                f"there is no module {name!r} with parameters to be the head: name one that has"
            )
        reader = _reader(anatomy, name)
        if reader:
            raise NotSeparable(
                f"{name} is in the middle of the network and no head, since {reader} reads what it computes: "
                "name the layer that ends the model with head="
            )
        return name
    found = [one.name for one in anatomy.skipped if one.kind == "layer" and one.reason.cause is Cause.OUTPUT]
    if not found:
        raise NotSeparable(
            f"no layer of {anatomy.model} ends in its outputs as it is (a softmax behind the head is one "
            "reason): name the head with head="
        )
    if len(found) > 1:
        raise NotSeparable(
            f"{len(found)} layers of {anatomy.model} end in its outputs ({', '.join(found)}): "
            "name the head with head="
        )
    return found[0]


def _reader(anatomy: Anatomy, module: str) -> str:
    """A weight that reads what a module computes, at however many removes; "" if there is none."""
    behind: set[int] = set()
    for form in ops.forms(anatomy.program):
        if form is None:
            continue
        tensors = form.operation.tensors
        own = any(f"{tensor}.".startswith(f"{module}.") for tensor in tensors.values())
        fed = not behind.isdisjoint(form.inputs)
        if fed and not own and is_weight(form):
            return tensors["weight"]
        if fed or own:
            behind.add(form.operation.position)
    return ""


def check_separable(
    anatomy: Anatomy, groups: Sequence[Group], head: str, core: Sequence[str]
) -> list[Skipped]:
    """Refuse networks in which slack would reach core other than through a weight that can be severed.

    What the anatomy leaves alone is core as a whole. That is right for whatever reads no slack, and for
    further outputs; in the middle of the network it would cut all slack before it off from the head.

    Returns:
        What is left alone and therefore core.
    """
    for stream in anatomy.streams:
        if stream.mixed and not matches(stream.writers, core):
            raise NotSeparable(
                f"the stream of {stream.name} cannot be split into core and slack: {stream.mixed}, so slack "
                f"would reach core; freeze it as a whole with core=[{stream.name!r}]"
            )
    inside = {module for group in groups for module in group.modules}
    left = [one for one in anatomy.skipped if one.name not in inside and one.name != head]
    reading = {p.tensor.rpartition(".")[0] for g in groups for p in g.places if p.role == "in"}
    for one in left:
        if one.kind != "layer" or one.reason.cause in HARMLESS or one.name not in reading:
            continue
        if not matches([one.name], core):
            raise NotSeparable(
                f"{one.name} cannot be split into core and slack: {one.reason}; "
                f"freeze it as a whole with core=[{one.name!r}]"
            )
    return left
