"""Operators that take tensors apart and put them together: splits, concatenations, padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from hope.ops.protocols import Propagation, Tracer
from hope.ops.registry import TABLE, Form, Inputs, MomentPreserving, Operator, Parts, Reads, Signal
from hope.reasons import Cause
from hope.trace.labels import FIXED, along, dims
from hope.trace.program import Operation, Ref, Shape, references
from hope.trace.values import Value


class Split(Operator):
    """A dimension in several parts."""

    def channels(self, flow: Tracer, operation: Operation) -> Any:
        """Channels that are split by position are kept, except where every part loses the same ones."""
        x = flow.value(operation.first)
        if x is None or not operation.several:
            return None
        dim, single = (operation.arguments["dim"] or 0) % len(x.shape), operation.operator == "unbind"
        labels, reason = [], Cause.SPLIT.at(str(operation))
        for label in x.labels:
            if dim in dims(label) and len(operation.shapes) > 1:
                if len(dims(label)) > 1:
                    label = flow.bundle(label, [dim])
                elif single or len(set(operation.shapes)) > 1:
                    flow.pin(label, reason)
                else:
                    flow.grids.append((label.reshape(len(operation.shapes), -1), reason))
            labels.append(label)
        x = x.moved(x.shape, labels)
        values, start = [], 0
        for shape in operation.shapes:
            assert shape is not None
            size = 1 if single else shape[dim]
            where = range(start, start + size)
            labels = [label.take(where, axis=dim) if dim in dims(label) else label for label in x.labels]
            labels = [label.squeeze(dim) for label in labels] if single else labels
            values.append(x.moved(shape, (label for label in labels if label.size > 1)))
            start += size
        return values


class Item(MomentPreserving):
    """One of several results."""

    def channels(self, flow: Tracer, operation: Operation) -> Any:
        """The channels of that result."""
        base, index = operation.arguments.values()
        held = flow.raw(base)
        return (
            held[index] if isinstance(held, list) and isinstance(index, int) and index < len(held) else None
        )

    def form(self, operation: Operation, reads: Reads) -> Form | None:
        """The first result is the signal; whatever else an operation returns is not followed."""
        return super().form(operation, reads) if operation.arguments["1"] == 0 else None


class Concatenation(Operator):
    """Several values side by side."""

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """Ids stand side by side along the joined dimension, and must agree in the others."""
        parts = flow.values(operation.first)
        shape = operation.output
        ndim, what = len(shape), str(operation)
        dim = (operation.arguments["dim"] or 0) % ndim
        if operation.operator == "stack":
            parts = [
                part.moved(
                    (*part.shape[:dim], 1, *part.shape[dim:]), [np.expand_dims(x, dim) for x in part.labels]
                )
                for part in parts
            ]
        parts = [part for part in parts if len(part.shape) == ndim]
        pieces, level = [], []
        for part in parts:
            piece = np.full(part.shape[dim], FIXED, dtype=np.int64)
            for label in part.labels:
                if dims(label) == (dim,):
                    piece = label.ravel()
                elif dim in dims(label):
                    flow.pin(label, Cause.JOINED.at(what))
            pieces.append(piece)
            level.append(part.moved(_flat(part.shape, dim), (x for x in part.labels if dim not in dims(x))))
        joined = np.concatenate(pieces)
        # labels over the other dimensions must agree in every part, as in an element-wise operator
        rest = flow.combine(level, _flat(shape, dim), adds=True, what=what)
        signals = {writer: path for part in reversed(parts) for writer, path in part.signals.items()}
        own = (along(joined, dim, ndim),) if (joined >= 0).any() and len(joined) > 1 else ()
        result = Value(shape, (*own, *rest.labels), all(part.static for part in parts), None, signals)
        return result.then("concat", what) if len(parts) > 1 else result

    def form(self, operation: Operation, reads: Reads) -> Form | None:
        """Signals side by side, if the joined dimension is that of the channels."""
        if operation.operator == "stack":
            return None
        dim = (operation.arguments["dim"] or 0) % len(operation.output)
        order = tuple(references(operation.first))
        known = {read.position for read in reads}
        same = all(read.channel == dim for read in reads) and known.issuperset(order)
        return Form(operation, self, order, dim) if same else None

    def moments(self, at: Propagation, form: Form, inputs: Inputs) -> Signal | None:
        """Blocks of one covariance: each signal's own, and between them what is known."""
        parts = [signal for signal in inputs if signal is not None]
        if any(part.repeat != 1 for part in parts):
            return None
        rows = []
        for i, a in enumerate(parts):
            row = []
            for j, b in enumerate(parts):
                between = a.covariance if i == j else at.cross(form.inputs[i], form.inputs[j])
                row.append(_zeros(a, b) if between is None else between)
            rows.append(torch.cat(row, dim=1))
        return Signal(torch.cat([part.mean for part in parts]), torch.cat(rows))

    def covariance(self, at: Propagation, form: Form, parts: Parts, other: Signal) -> Tensor | None:
        """One above the other, zero where nothing is known."""
        found = []
        for position, part in zip(form.inputs, parts, strict=True):
            source = at.signals[position]
            assert source is not None
            found.append(_zeros(source, other) if part is None else part)
        return torch.cat(found)


def _flat(shape: Shape, dim: int) -> Shape:
    return tuple(1 if d == dim else size for d, size in enumerate(shape))


def _zeros(a: Signal, b: Signal) -> Tensor:
    return torch.zeros(len(a.mean), len(b.mean), dtype=torch.float64)


class Pad(MomentPreserving):
    """Places added around."""

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """Zeros next to the channels have no owner; anything else along them pins them."""
        x, args = flow.value(operation.first), operation.arguments
        amounts = list(args.get("pad") or args.get("padding") or [])
        if x is None or any(isinstance(amount, Ref) for amount in amounts):
            return None
        ndim = len(x.shape)
        around = {ndim - 1 - k: (amounts[2 * k], amounts[2 * k + 1]) for k in range(len(amounts) // 2)}
        constant = operation.operator == "constant_pad_nd" or args.get("mode") in (None, "constant")
        labels = []
        for label in x.labels:
            padded = {d: around[d] for d in dims(label) if around.get(d, (0, 0)) != (0, 0)}
            if padded and (not constant or len(dims(label)) > 1 or min(min(p) for p in padded.values()) < 0):
                flow.pin(label, Cause.PADDED.at(str(operation)))
                continue
            width = [padded.get(d, (0, 0)) for d in range(ndim)]
            labels.append(np.pad(label, width, constant_values=FIXED) if padded else label)
        return x.moved(operation.output, labels).then("pad", operation.operator)

    def form(self, operation: Operation, reads: Reads) -> Form | None:
        """Nothing, or (before, after): how many channels that are always zero."""
        x, shape, args = reads[0], operation.output, operation.arguments
        if x.channel is None or len(shape) != len(x.shape) or "pad" not in args:
            return None
        if shape[x.channel] == x.shape[x.channel]:
            return super().form(operation, reads)
        pads, last = args["pad"], 2 * (len(shape) - 1 - x.channel)
        zeros = not args.get("value") and args.get("mode", "constant") == "constant"
        if not zeros or len(pads) < last + 2 or min(pads[last], pads[last + 1]) < 0:
            return None
        around = (float(pads[last]), float(pads[last + 1]))
        return Form(operation, self, (x.position,), x.channel, around)

    def moments(self, at: Propagation, form: Form, inputs: Inputs) -> Signal | None:
        """Channels that do not move, before and after the others."""
        x = inputs[0]
        if not form.values or x is None:
            return x
        if x.repeat != 1:
            return None
        pads = tuple(int(value) for value in form.values)
        return Signal(functional.pad(x.mean, pads), functional.pad(x.covariance, pads + pads))

    def covariance(self, at: Propagation, form: Form, parts: Parts, other: Signal) -> Tensor | None:
        """Zero for the new channels."""
        first = parts[0]
        pads = (0, 0, *(int(value) for value in form.values))
        return functional.pad(first, pads) if form.values and first is not None else first


SPLITS = (
    "split",
    "split_with_sizes",
    "chunk",
    "unbind",
    "tensor_split",
    "unsafe_chunk",
    "unsafe_split",
    "split_copy",
)
TABLE.update(dict.fromkeys(SPLITS, Split()))
TABLE["getitem"] = Item()
TABLE.update(dict.fromkeys(("cat", "concat", "concatenate", "stack"), Concatenation()))
PADS = [f"{mode}_pad{n}d" for mode in ("reflection", "replication") for n in (1, 2, 3)]
TABLE.update(dict.fromkeys(("pad", "constant_pad_nd", *PADS), Pad()))
