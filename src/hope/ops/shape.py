"""Operators that show a tensor in another shape, another order, or a part of it."""

from __future__ import annotations

from math import prod

import numpy as np
import torch
from torch import Tensor

from hope.ops.protocols import Propagation, Tracer
from hope.ops.registry import TABLE, Form, Inputs, MomentPreserving, Operator, Parts, Reads, Signal
from hope.reasons import Cause
from hope.trace.labels import Ids, dims, pad_left, reshape
from hope.trace.program import Operation
from hope.trace.values import Value


class View(MomentPreserving):
    """The same elements in another shape."""

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """Ids move along; where channels end up in rows over several dimensions, rows or columns can go."""
        x, shape = flow.value(operation.first), operation.output
        if x is None:
            return None
        labels = [reshape(label, x.shape, shape) for label in x.labels]
        for label in labels:
            if len(dims(label)) > 1:
                flow.grids.append((label, Cause.SPLIT_INTO_GROUPS.at(str(operation))))
        result = x.moved(shape, _disjoint(flow, operation, labels))
        pairs = zip(x.labels, labels, strict=True)
        merged = any(label.size > 1 and moved.size > label.size for label, moved in pairs)
        return result.then("flatten", operation.operator) if merged else result

    def form(self, operation: Operation, reads: Reads) -> Form | None:
        """Channels by themselves in some dimension, or in the last one with their positions after them."""
        x, shape = reads[0], operation.output
        assert x.channel is not None
        width, after, before = x.shape[x.channel], prod(x.shape[x.channel + 1 :]), prod(x.shape[: x.channel])
        for dim, size in enumerate(shape):
            if prod(shape[:dim]) == before and size == width and prod(shape[dim + 1 :]) == after:
                return Form(operation, self, (x.position,), dim)
        if shape and prod(shape[:-1]) == before and shape[-1] == width * after:
            return Form(operation, self, (x.position,), len(shape) - 1, (float(after),))
        return None

    def moments(self, at: Propagation, form: Form, inputs: Inputs) -> Signal | None:
        """Those of what it reads, at several places after a flatten."""
        x = inputs[0]
        if not form.values or x is None:
            return x
        return Signal(x.mean, x.covariance, int(form.values[0])) if x.repeat == 1 else None

    def covariance(self, at: Propagation, form: Form, parts: Parts, other: Signal) -> Tensor | None:
        """That of its input, except after a flatten."""
        return None if form.values else parts[0]


def _disjoint(flow: Tracer, operation: Operation, labels: list[Ids]) -> tuple[Ids, ...]:
    """Two labels over one dimension (a view merged two kinds of channels) cannot be cut apart: pin both."""
    taken: dict[int, int] = {}
    clash: set[int] = set()
    for position, label in enumerate(labels):
        for d in dims(label):
            if d in taken:
                clash |= {position, taken[d]}
            taken[d] = position
    for position in clash:
        flow.pin(labels[position], Cause.FOLDED.at(str(operation)))
    return tuple(label for position, label in enumerate(labels) if position not in clash)


class PlainView(View):
    """A view whose signals are not followed."""

    form = Operator.form  # not known


class Expand(Operator):
    """The same elements seen several times."""

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """Ids stay in their dimension, counted from the right."""
        x, shape = flow.value(operation.first), operation.output
        return None if x is None else x.moved(shape, (pad_left(label, len(shape)) for label in x.labels))


class Permute(Operator):
    """Dimensions in another order."""

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """Ids move with their dimension."""
        x = flow.value(operation.first)
        if x is None:
            return None
        order = self._order(operation, len(x.shape))
        return x.moved(operation.output, (label.transpose(order) for label in x.labels))

    def _order(self, operation: Operation, ndim: int) -> list[int]:
        """Where each dimension comes from, found by doing it to a tensor whose strides identify them."""
        tensor = torch.empty_strided((2,) * ndim, [2**k for k in range(ndim)], device="meta")
        rest = list(operation.arguments.values())[1:]
        moved = getattr(torch.ops.aten, operation.operator)(tensor, *rest)
        return [int(stride).bit_length() - 1 for stride in moved.stride()]


class Cut(MomentPreserving):
    """A part of a dimension."""

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """A part of the channels by position holds all of them fast; a part of every row keeps rows whole."""
        x, shape, args = flow.value(operation.first), operation.output, operation.arguments
        if x is None:
            return None
        dim = (args["dim"] or 0) % len(x.shape)
        labels = []
        for label in x.labels:
            if dim in dims(label) and shape[dim] != x.shape[dim]:
                if len(dims(label)) > 1:
                    labels.append(flow.bundle(label, [dim]))
                    continue
                flow.pin(label, Cause.PART_TAKEN.at(str(operation)))
                step = args.get("step") or 1
                start = args.get("start") or 0
                start = start + x.shape[dim] if start < 0 else min(start, x.shape[dim])
                label = label.take(range(start, start + shape[dim] * step, step)[: shape[dim]], axis=dim)
            labels.append(label)
        return x.moved(shape, (label for label in labels if label.size > 1))

    def form(self, operation: Operation, reads: Reads) -> Form | None:
        """Nothing, or (start, step, count) of the channels that are left."""
        x, shape, args = reads[0], operation.output, operation.arguments
        if x.channel is None or len(shape) != len(x.shape):
            return None
        if shape[x.channel] == x.shape[x.channel]:
            return Form(operation, self, (x.position,), x.channel)
        start, step = args.get("start") or 0, args.get("step") or 1
        start += x.shape[x.channel] if start < 0 else 0
        return Form(
            operation, self, (x.position,), x.channel, (float(start), float(step), float(shape[x.channel]))
        )

    def moments(self, at: Propagation, form: Form, inputs: Inputs) -> Signal | None:
        """Those of the channels that are left."""
        x = inputs[0]
        if not form.values or x is None:
            return x
        part = _part(form)
        return Signal(x.mean[part], x.covariance[part][:, part]) if x.repeat == 1 else None

    def covariance(self, at: Propagation, form: Form, parts: Parts, other: Signal) -> Tensor | None:
        """That of the channels that are left."""
        first = parts[0]
        return first[_part(form)] if form.values and first is not None else first


def _part(form: Form) -> Tensor:
    """The channels that are kept."""
    start, step, count = (int(value) for value in form.values)
    return torch.arange(start, start + step * count, step)


class Select(Operator):
    """One place of a dimension."""

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """One channel by position holds all of them fast."""
        x = flow.value(operation.first)
        if x is None:
            return None
        dim = operation.arguments["dim"] % len(x.shape)
        result = flow.carry(x, x.shape, [dim], Cause.ONE_TAKEN.at(str(operation)))
        return result.moved(operation.output, (label.squeeze(dim) for label in result.labels))


class Reordered(Operator):
    """The same places in another order."""

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """Channels along a reordered dimension are kept."""
        x, over = flow.value(operation.first), operation.arguments.get("dims")
        if x is None or not over:
            return None
        return flow.carry(x, x.shape, [d % len(x.shape) for d in over], Cause.REORDERED.at(str(operation)))


class Interleaved(Operator):
    """Every place of a dimension so many times, one after the other."""

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """The same channels, each so many times."""
        x, args = flow.value(operation.first), operation.arguments
        times, dim = args.get("repeats"), args.get("dim")
        if x is None or not isinstance(times, int) or not isinstance(dim, int):
            return None
        dim %= len(x.shape)
        labels = [np.repeat(one, times, axis=dim) if dim in dims(one) else one for one in x.labels]
        return x.moved(operation.output, labels)


class Index(Operator):
    """Places of one dimension, looked up by a tensor of positions."""

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """Channels along that dimension are pinned; others come after the looked-up ones."""
        x, args = flow.value(operation.first), operation.arguments
        if x is None:
            return None
        if "indices" in args:
            over = [d for d, one in enumerate(args["indices"]) if one is not None]
            if len(over) != 1:
                return None
            (dim,) = over
        else:
            dim = args["dim"] % len(x.shape)
        more = len(operation.output) - len(x.shape)  # dimensions that the positions have beyond one
        result = flow.carry(x, x.shape, [dim], Cause.LOOKED_UP.at())
        labels = [
            np.expand_dims(one, tuple(range(dim, dim + more))) if more > 0 else one for one in result.labels
        ]
        return None if more < 0 else result.moved(operation.output, labels)


TABLE.update(dict.fromkeys(("view", "reshape", "flatten", "_unsafe_view", "squeeze", "unsqueeze"), View()))
TABLE.update(dict.fromkeys(("unflatten", "view_as", "reshape_as"), PlainView()))
TABLE.update(dict.fromkeys(("expand", "expand_as"), Expand()))
TABLE.update(dict.fromkeys(("permute", "transpose", "t", "movedim", "swapaxes", "numpy_T", "mT"), Permute()))
TABLE.update({"index": Index(), "index_select": Index(), "repeat_interleave": Interleaved()})
TABLE.update({"slice": Cut(), "narrow": Cut(), "select": Select(), "roll": Reordered(), "flip": Reordered()})
