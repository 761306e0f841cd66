"""Trace every channel through the program: its writers, its readers, and what joins or fixes it.

Every dimension of every parameter has one id per position. Operators move ids (views), join them (an add, a
BN, a grouped convolution), or pin them (whatever mixes channels without weights). Joined ids are one prunable
unit, and their positions in the parameters are exactly what must be cut to remove it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from hope import ops
from hope.ops.norm import mean_squares
from hope.reasons import Cause, Reason
from hope.trace.labels import FIXED, Ids, Shape, Ties, along, dims, pad_left
from hope.trace.program import Operation, Program, Ref, references
from hope.trace.values import Link, Value, origins_of


class ChannelTracer:
    """The channels of one or more programs of the same model (evaluation, and training if it differs).

    Args:
        streams: whether channels of streams may be removed: they are then traced through norms over channels.
    """

    def __init__(self, shapes: Mapping[str, Shape], *, streams: bool = False) -> None:
        self.shapes, self.streams = shapes, streams
        self.ties = Ties()
        self.ids: dict[tuple[str, int], Ids] = {}
        self.roles: dict[tuple[str, int], str] = {}
        self.pins: list[tuple[Ids, Reason]] = []
        self.mixed: list[tuple[Ids, Reason]] = []
        self.added: list[tuple[Ids, str]] = []
        self.grids: list[tuple[Ids, Reason]] = []  # channels in rows: whole rows or columns are prunable
        self.normed: list[tuple[Ids, Reason]] = []  # normalised together: prunable in streams only
        self.squares: Mapping[int, str] = {}  # means of squares in the current program
        self.counted: list[tuple[Ids, Reason]] = []  # as positions of a weight: its MACs shrink with them
        self.reads: dict[str, dict[str, tuple[Link, ...]]] = {}
        self.positions: Counter[str] = Counter()
        self.order: dict[str, int] = {}
        self.computed: dict[str, tuple[int, Reason]] = {}
        self.uses: Counter[str] = Counter()
        self._held: list[Any] = []  # per operation: a value, a list of values, or nothing
        self._evaluated: list[Any] = []

    # ---- ids of parameters ---------------------------------------------------------------------------------

    def tensor_ids(self, tensor: str, dim: int) -> Ids:
        """The ids of one dimension of a parameter or buffer, created on first use."""
        key = (tensor, dim)
        if key not in self.ids:
            self.ids[key] = self.ties.fresh(self.shapes[tensor][dim])
        return self.ids[key]

    def mark(self, tensor: str, dim: int, role: str) -> Ids:
        """Record the role of a weight's dimension ("out", "in", "through") and return its ids."""
        self.roles[(tensor, dim)] = role
        self.order.setdefault(tensor, len(self.order))
        return self.tensor_ids(tensor, dim)

    def pin(self, ids: Ids, reason: Reason, *, mixes: bool = True) -> None:
        """Pin ids: they are not prunable, for this reason.

        Args:
            mixes: whether one channel's signal may reach another's there (False where channels stay apart and
                only cannot be cut).
        """
        ids = ids[ids >= 0]
        if ids.size:
            self.pins.append((ids, reason))
            if mixes:
                self.mixed.append((ids, reason))

    def normalise(self, label: Ids, reason: Reason, weight: str, bias: str | None = None) -> None:
        """Channels are normalised together: with a weight per channel that can compensate, those of a stream
        are prunable; without one ("") they are pinned.
        """
        row = label.ravel()
        if self.shapes.get(weight) != row.shape:
            self.pin(label, reason)
            return
        self.roles[weight, 0] = "norm"
        for tensor in (weight, bias):
            if tensor:
                self.ties.tie(row[row >= 0], self.tensor_ids(tensor, 0)[row >= 0])
        self.normed.append((row[row >= 0], reason))

    def pin_all(self, values: Iterable[Value], reason: Reason, *, mixes: bool = True) -> None:
        """Pin all ids in these values."""
        for value in values:
            for label in value.labels:
                self.pin(label, reason, mixes=mixes)

    # ---- tracing -------------------------------------------------------------------------------------------

    def walk(self, program: Program, *, training: bool = False) -> frozenset[str]:
        """Trace one program, operator by operator; returns the parameters and buffers that it uses.

        A training program adds readers that exist in training only; counts (uses, positions) are those of
        evaluation.
        """
        self._held = []
        self.squares = mean_squares(program) if self.streams else {}
        positions = self.positions.copy()
        calls = (operation for operation in program if operation.tensor is None)
        used = Counter(name for operation in calls for name in set(operation.tensors.values()))
        for operation in program:
            self._held.append(self._follow(operation))
        if training:
            self.positions = positions
        else:
            self.uses, self._evaluated = used, self._held
        return frozenset(used)

    def _follow(self, operation: Operation) -> Any:
        match operation.operator:
            case "input" | "constant":
                return Value(operation.output)
            case "attribute":
                return Value(operation.output, static=True)
            case "tensor":
                return self._tensor(operation)
            case "output":
                return self.pin_all(self.values(operation.arguments), Cause.OUTPUT.at(), mixes=False)
        return ops.channels(self, operation)

    def _tensor(self, operation: Operation) -> Value:
        shape, tensor = operation.output, operation.tensors[""]
        if tensor not in self.shapes:
            return Value(shape, static=True)
        labels = (
            along(self.tensor_ids(tensor, dim), dim, len(shape)) for dim, size in enumerate(shape) if size > 1
        )
        return Value(shape, tuple(labels), static=True, tensor=tensor, origins=(tensor,))

    def value(self, argument: Any) -> Value | None:
        """The value of an argument, None if it is not a tensor."""
        found = self.raw(argument)
        return found if isinstance(found, Value) else None

    def raw(self, argument: Any) -> Any:
        """The value of an argument: a value, or a list of values."""
        return self._held[argument.position] if isinstance(argument, Ref) else None

    def values(self, arguments: Any) -> list[Value]:
        """All tensor values among (nested) arguments."""
        held = (self._held[position] for position in references(arguments))
        every = (value for one in held for value in (one if isinstance(one, list) else [one]))
        return [value for value in every if isinstance(value, Value)]

    def evaluated(self, position: int) -> Any:
        """The result of an operation in evaluation: a value, a list of values, or nothing."""
        return self._evaluated[position]

    def channel_dim(self, operation: Operation) -> int:
        """The channel dimension of a result in evaluation."""
        value = self.evaluated(operation.position)
        plain = min(1, len(operation.shape or ()) - 1)
        if not isinstance(value, Value):
            return plain
        single = [label for label in value.labels if len(dims(label)) == 1]
        written = [
            self.ids[key] for key, role in self.roles.items() if role == "out" and key[0] in value.signals
        ]
        fresh = [label for label in single if any(np.isin(ids, label).any() for ids in written)]
        return next((dims(label)[0] for label in (*fresh, *single)), plain)

    def along(self, operation: Operation, dim: int) -> Ids | None:
        """The ids along one dimension of a result in evaluation."""
        value = self._evaluated[operation.position]
        labels = value.labels if isinstance(value, Value) else ()
        return next((label.ravel() for label in labels if dims(label) == (dim,)), None)

    # ---- the two mechanisms of nearly all operators --------------------------------------------------------

    def carry(self, value: Value, shape: Shape, touched: Iterable[int], reason: Reason) -> Value:
        """An operator that works along some dimensions: ids in other dimensions pass, ids in these are pinned
        and dropped. Channels in rows that are combined along the rows are removed row by row.
        """
        touched = set(touched)
        kept = []
        for label in value.labels:
            if not touched & set(dims(label)):
                kept.append(label)
            elif touched >= set(dims(label)):
                self.pin(label, reason)
            else:
                kept.append(self.bundle(label, touched))
        return Value(shape, tuple(kept), value.static, None, value.signals if kept else {}, value.origins)

    def bundle(self, label: Ids, over: Iterable[int]) -> Ids:
        """Join channels that differ along some dimensions only, such as those of one attention head; the
        label then depends on the other dimensions.
        """
        for d in {*over} & {*dims(label)}:
            first = label.take([0], axis=d)
            if (label < 0).any():  # a position without an owner would be removed with the others
                self.pin(label, Cause.COMBINED.at("a place without a channel"))
            else:
                self.ties.tie(np.broadcast_to(first, label.shape), label)
            label = first
        return label

    def combine(self, values: Sequence[Value], shape: Shape, *, adds: bool, what: str) -> Value:
        """An element-wise operator with broadcasting: channels at the same position are joined."""
        ndim = len(shape)
        held: dict[tuple[int, ...], list[tuple[Value, Ids]]] = {}
        for value in values:
            for label in value.labels:
                padded = pad_left(label, ndim)
                held.setdefault(dims(padded), []).append((value, padded))
        result = []
        for over, holders in self._levelled(values, held, ndim).items():
            label = holders[0][1]
            for value in values:
                sizes = (1,) * (ndim - len(value.shape)) + tuple(value.shape)
                if not _among(value, holders) and any(sizes[d] != 1 for d in over):
                    for _, other in holders:
                        self.pin(other, Cause.UNTRACKED.at(what), mixes=False)
            for (first, a), (second, b) in pairwise(holders):
                self._tie(a, b, what, adds and not first.static and not second.static)
            for _, other in holders[1:]:
                label = np.where(label == FIXED, other, label)  # pinned, but its readers still see it
            result.append(label)
        runtime = [value for value in values if not value.static]
        signals: dict[str, tuple[Link, ...]] = {}
        for value in runtime:
            for writer, path in value.signals.items():
                signals.setdefault(writer, path)
        origins = () if runtime else origins_of(values)
        return Value(shape, tuple(result), not runtime, None, signals if result else {}, origins)

    def _levelled(
        self, values: Sequence[Value], held: dict[tuple[int, ...], list[tuple[Value, Ids]]], ndim: int
    ) -> dict[tuple[int, ...], list[tuple[Value, Ids]]]:
        """Channels in rows, combined with a tensor that varies along the rows only, are removed row
        by row.
        """
        found: dict[tuple[int, ...], list[tuple[Value, Ids]]] = {}
        for over, holders in held.items():
            own = {id(value) for value, _ in holders}
            met: set[int] = set()
            for value in (one for one in values if id(one) not in own):
                sizes = (1,) * (ndim - len(value.shape)) + tuple(value.shape)
                rows = [key for key, some in held.items() if {*key} < {*over} and _among(value, some)]
                known = {*min(rows)} if rows and not value.static else set()  # already in rows
                met |= {*over} - known if known else {d for d in over if sizes[d] != 1}
            if met and met < {*over}:
                holders = [(value, self.bundle(label, met)) for value, label in holders]
                over = tuple(d for d in over if d not in met)
            found.setdefault(over, []).extend(holders)
        return found

    def _tie(self, a: Ids, b: Ids, what: str, adds: bool) -> None:
        both = (a >= 0) & (b >= 0)
        differ = both & (a != b)
        self.ties.tie(a[differ], b[differ])
        if adds and differ.any():
            self.added.append((a[differ], what))
        reason = Cause.COMBINED.at(what)
        self.pin(a[(a >= 0) & (b == FIXED)], reason, mixes=False)
        self.pin(b[(b >= 0) & (a == FIXED)], reason, mixes=False)


def _among(value: Value, holders: Sequence[tuple[Value, Ids]]) -> bool:
    return any(value is holder for holder, _ in holders)
