"""Units of neurons, their writers and readers, and their positions in tensors."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, TypeVar

import numpy as np

from hope.reasons import Reason
from hope.trace.labels import Ids
from hope.trace.program import module_of
from hope.trace.values import Link

T = TypeVar("T")
Key: TypeAlias = tuple[str, int]  # a tensor's name and one of its dimensions


@dataclass(frozen=True, eq=False, repr=False)
class IndexMap:
    """The places that a unit's neurons own along one dimension of one parameter or buffer."""

    tensor: str  # name in the model's `state_dict` (or of a non-persistent buffer)
    dim: int  # the dimension
    # "out" (a filter), "in" (outgoing weights, the readers' side), "norm" (the weight of a norm over all
    # channels of a stream) or "along" (BN numbers, biases, depthwise filters, gates: whatever else is removed
    # with the neuron)
    role: str
    owner: Ids  # (size of the dimension,) the neuron at each place, -1 if it belongs to another unit or none

    @cached_property
    def owned(self) -> Ids:
        """Positions with an owner, sorted by neuron."""
        own = np.flatnonzero(self.owner >= 0)
        return own[np.argsort(self.owner[own], kind="stable")]

    @cached_property
    def even(self) -> bool:
        """Whether every neuron owns equally many positions."""
        counts = np.bincount(self.owner[self.owned])
        return bool((counts == counts[0]).all())

    @cached_property
    def index(self) -> Ids:
        """(neurons, positions); row n is what neuron n owns. Only if all own equally many."""
        assert self.even, f"neurons own different numbers of places in {self.tensor}"
        return self.owned.reshape(int(self.owner.max()) + 1, -1)

    @property
    def each(self) -> int:
        """How many positions a neuron owns."""
        return int(self.index.shape[1])

    def __repr__(self) -> str:
        neurons = int(self.owner.max()) + 1
        return f"<IndexMap of {neurons} neurons in {self.tensor}, dim {self.dim} ({self.role})>"


@dataclass(frozen=True)
class Reader:
    """A weight that reads neurons, and what is done to their signal on the way."""

    weight: str  # name of the reading weight
    path: tuple[Link, ...]  # channel-wise operations from the filter to this weight, in order

    @property
    def module(self) -> str:
        """Path of the reading module."""
        return self.weight.rpartition(".")[0] or self.weight

    def last(self, kind: str) -> Link | None:
        """The last operation of a kind on the path, e.g. the BN whose output this reader reads."""
        return next((link for link in reversed(self.path) if link.kind == kind), None)

    def reads_norm(self, weight: str) -> bool:
        """Whether it reads the output of a norm with that weight, unchanged."""
        last = self.path[-1] if self.path else None
        scaled = last is not None and last.kind == "scale" and last.name == module_of(weight)
        return last is not None and (last.tensor == weight or scaled)

    @property
    def has_bn_statistics(self) -> bool:
        """Whether a BN stores the statistics of this reader's input: one is on the path, with no attention
        after it.
        """
        kinds = [link.kind for link in self.path if link.kind in ("bn", "attention")]
        return kinds[-1:] == ["bn"]

    @property
    def activation(self) -> str:
        """The kind of the last activation after the last BN, "identity" if there is none."""
        kinds = [link.kind for link in self.path]
        start = len(kinds) - 1 - kinds[::-1].index("bn") if "bn" in kinds else 0
        names = [link.name for link in self.path[start:] if link.kind == "activation"]
        return names[-1] if names else "identity"


@dataclass(frozen=True, eq=False, repr=False)
class Unit:
    """What is removed together: a layer's neurons, or a stream's channels.

    A neuron of a unit can only go with everything it owns: its rows in the writers, its columns in the
    readers, and what is between (BN parameters, biases, depthwise filters, gates).
    """

    name: str  # the first writer's module path (or weight name for a bare parameter)
    kind: str  # "layer", or "stream": channels that several writers write into by adds
    weight: str  # the first writer's weight
    neurons: int  # how many there are (of a stream: channels)
    # channels of the first writer per neuron (more than 1 where a grouped convolution ties them)
    channels: int
    fan_in: int  # fan_in, fan_out: incoming and outgoing weights of one neuron, on average
    fan_out: int
    # parameters that removing one neuron releases, in the network as it is; 0 for a stream whose channels
    # stay
    release: int
    writers: tuple[str, ...]  # module paths, in order of execution
    readers: tuple[Reader, ...]  # who reads the neurons, and through what
    places: tuple[IndexMap, ...]  # everything that is cut when neurons go
    # further modules whose outputs go with the neurons (depthwise convolutions, gates)
    along: tuple[str, ...] = ()
    block: str | None = None  # the residual block whose branch it lies in, if any
    mixed: Reason | None = None  # why its neurons do not stay apart from one another; None if they do
    # why none of its neurons can go, where the model's own code does not accept another width; the unit is
    # then in `anatomy.skipped`, too. What cuts nothing need not mind
    fixed: Reason | None = None

    @cached_property
    def bn(self) -> str | None:
        """Path of the BN whose output the readers read; None if there is none, or not the same for all."""
        found = {step.name if step else None for step in (reader.last("bn") for reader in self.readers)}
        return found.pop() if len(found) == 1 else None

    @cached_property
    def activation(self) -> str:
        """The activation's kind ("relu", "silu", …, "identity"), or "several" if the readers differ."""
        found = {reader.activation for reader in self.readers}
        return found.pop() if len(found) == 1 else "several"

    @property
    def attends(self) -> bool:
        """Whether attention is between its neurons and their readers: they are heads."""
        return any(reader.last("attention") for reader in self.readers)

    @property
    def open(self) -> bool:
        """Whether its neurons are prunable one by one."""
        return self.fixed is None and (self.kind == "layer" or self.release > 0)

    @property
    def written(self) -> tuple[str, ...]:
        """The weights that write it: without all of them the unit does not exist."""
        if self.kind == "layer":
            return (self.weight,)
        return tuple(part.tensor for part in self.places if part.role == "out")

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules whose outputs these neurons are."""
        return tuple(dict.fromkeys((*self.writers, *self.along)))

    def at(self, tensor: str, role: str | None = None) -> IndexMap | None:
        """The positions of its neurons in a tensor."""
        return next((p for p in self.places if p.tensor == tensor and role in (None, p.role)), None)

    def __repr__(self) -> str:
        return f"<Unit {self.name}: a {self.kind} of {self.neurons} neurons, {len(self.readers)} readers>"


@dataclass(frozen=True)
class Skipped:
    """Something that is left alone, and why."""

    name: str  # module path
    outputs: int  # its output channels
    reason: Reason  # why
    kind: str = "layer"  # "layer", "block" or "parameter"
