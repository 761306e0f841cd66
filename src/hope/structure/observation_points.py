"""Observation points of a unit's signal: before the activation that a reader sees, or at the
reader's input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from hope import ops
from hope.ops.activation import Activation, known
from hope.ops.elementwise import Elementwise
from hope.ops.norm import BatchNorm, CrossChannelNorm, PerChannel, bn_of
from hope.ops.weight import Weighted
from hope.trace.labels import Ids, dims
from hope.trace.program import Operation, Program
from hope.trace.values import Link, Value

if TYPE_CHECKING:
    from hope.structure.channel_tracer import ChannelTracer
    from hope.structure.units import Reader, Unit

MIXING = (Weighted, Elementwise, PerChannel, CrossChannelNorm)  # changes of a signal after the activation


@dataclass(frozen=True, eq=False)
class ObservationPoint:
    """Where a unit's neurons stand in an operation's result."""

    operation: str  # its name
    dim: int  # the dimension that they stand in
    owner: Ids  # (size of the dimension,) the neuron at each place, -1 where there is none of them
    # the activation between the result and the reader; None if no later change is known
    # on
    activation: Link | None = None
    bn: str = ""  # the BN between that activation and the reader, "" if there is none


Taps = Mapping[tuple[str, str], ObservationPoint]


def find_taps(
    flow: ChannelTracer, program: Program, units: Iterable[Unit]
) -> dict[tuple[str, str], ObservationPoint]:
    """(Unit, reading weight) -> where to observe the unit's signal for this weight.

    For a layer, at the input of the last activation, if after it the signal is only moved, pooled or
    normalised by one BN; otherwise, and for streams, at the input of the weight.
    """
    root = flow.ties.resolve()
    readers: dict[str, int] = {}  # the operation that reads along a weight's dimension
    for operation in program:
        for weight in operation.tensors.values() if operation.tensor is None else ():
            readers.setdefault(weight, operation.position)
    found = {}
    for unit in units:
        where = _Where(flow, root, unit)
        for reader in unit.readers:
            tap = _tap(program, where, unit, reader, readers.get(reader.weight))
            if tap is not None:
                found[unit.name, reader.weight] = tap
    return found


class _Where:
    """Finds a unit's neurons in the results of operations."""

    def __init__(self, flow: ChannelTracer, root: Ids, unit: Unit) -> None:
        self._flow, self._root = flow, root
        self._neuron = np.full(len(root), -1, dtype=np.int64)
        for part in unit.places:
            self._neuron[root[flow.ids[part.tensor, part.dim]]] = np.where(
                part.owner >= 0, part.owner, self._neuron[root[flow.ids[part.tensor, part.dim]]]
            )

    def __call__(self, position: int) -> tuple[int, Ids] | None:
        """The dimension, and the neuron at each of its positions; None if the neurons are not in one
        dimension.
        """
        value = self._flow.evaluated(position)
        for label in value.labels if isinstance(value, Value) and not value.static else ():
            over, ids = dims(label), label.ravel()
            owner = np.where(ids >= 0, self._neuron[self._root[ids.clip(min=0)]], -1)
            if len(over) == 1 and (owner >= 0).any():
                return over[0], owner
        return None


def _tap(
    program: Program, where: _Where, unit: Unit, reader: Reader, at: int | None
) -> ObservationPoint | None:
    read = _source(program[at], where) if at is not None else None
    if read is None:
        return None
    if unit.kind == "layer":
        found = _before(program, where, read)
        if found is not None:
            return found
    dim, owner = where(read) or (0, np.empty(0, dtype=np.int64))
    return ObservationPoint(program[read].name, dim, owner)


def _before(program: Program, where: _Where, position: int) -> ObservationPoint | None:
    """The last activation before a position, if it is known and the signal in between is only moved, pooled
    or normalised by a BN.
    """
    bns: list[str] = []
    at: int | None = position
    while at is not None:
        operation = program[at]
        entry = ops.find(operation)
        source = _source(operation, where)
        if isinstance(entry, Activation) and known(entry.link(operation)):
            if source is None or len(bns) > 1:
                return None
            place = where(source)
            assert place is not None
            return ObservationPoint(program[source].name, *place, entry.link(operation), *bns)
        if isinstance(entry, BatchNorm) and bn_of(operation):
            bns.append(bn_of(operation))
        elif entry is None or isinstance(entry, MIXING):
            return None
        at = source
    return None


def _source(operation: Operation, where: _Where) -> int | None:
    """The result from which an operation reads a unit's neurons; None if there is none, or several."""
    found = [position for position in operation.inputs if where(position) is not None]
    return found[0] if len(found) == 1 else None
