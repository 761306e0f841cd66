"""Operators that work element by element, and those that do nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod

import torch
from torch import Tensor

from hope.ops.protocols import Propagation, Tracer
from hope.ops.registry import POINTWISE, TABLE, Form, Inputs, MomentPreserving, Operator, Parts, Reads, Signal
from hope.trace.labels import along
from hope.trace.program import Operation, Ref, module_of, numbers
from hope.trace.values import Value


class Elementwise(Operator):
    """Every channel by itself; several values are combined place by place, with broadcasting."""

    product = False  # whether zero times anything remains zero

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """Channels at the same place are tied."""
        values, shape = flow.values(operation.arguments), operation.output
        if not values or len(shape) < max(len(value.shape) for value in values):
            return None
        result = flow.combine(values, shape, adds=not self.product, what=str(operation))
        live = [value for value in values if not value.static]
        if len(live) > 1:
            return _met(result, live, "gate" if self.product else "add", str(operation))
        if len(values) > 1:
            module = next((module_of(value.tensor) for value in values if value.tensor), operation.operator)
            return result.then("scale" if self.product else "shift", module)
        return result.then("activation", operation.operator, numbers(operation))


def _met(result: Value, values: Sequence[Value], kind: str, what: str) -> Value:
    """Products of different signals, and of a signal with itself: an activation in several parts, x·σ(x) or
    x/(1 + |x|), whose moments are unknown.
    """
    times = Counter(writer for value in values for writer in value.signals)
    others, itself = result.then(kind, what), result.then("activation", what)
    signals = {w: (itself if times[w] > 1 else others).signals[w] for w in result.signals}
    return replace(result, signals=signals)


class Add(Elementwise):
    """A sum: of two signals, their moments and twice their covariance."""

    def form(self, operation: Operation, reads: Reads) -> Form | None:
        """Two signals of one form, or one signal twice."""
        other = operation.arguments.get("other")
        if operation.arguments.get("alpha") not in (None, 1) or not isinstance(other, Ref):
            return None
        if len(operation.inputs) == 1:
            return Form(operation, self, (other.position, other.position), reads[0].channel)
        if len(reads) != 2 or (reads[0].channel, reads[0].shape) != (reads[1].channel, reads[1].shape):
            return None
        return Form(operation, self, (reads[0].position, reads[1].position), reads[0].channel)

    def moments(self, at: Propagation, form: Form, inputs: Inputs) -> Signal | None:
        """Means and covariances add up, and so does what the two have in common, as far as it is known."""
        a, b = (signal for signal in inputs if signal is not None)
        if len(a.mean) != len(b.mean) or a.repeat != b.repeat:
            return None
        total = a.covariance + b.covariance
        between = at.cross(*form.inputs)
        if between is not None:
            total = total + between + between.T
        return Signal(a.mean + b.mean, total, a.repeat)

    def covariance(self, at: Propagation, form: Form, parts: Parts, other: Signal) -> Tensor | None:
        """The sum of what is known."""
        there = [part for part in parts if part is not None]
        return torch.stack(there).sum(dim=0) if there else None


class ElementwiseProduct(Elementwise):
    """A product or quotient. One signal times another is taken as a gate: its mean counts, not its motion."""

    product = True

    def form(self, operation: Operation, reads: Reads) -> Form | None:
        """The wider signal, then the gate. What divides is no gate."""
        if operation.operator != "mul" or len(reads) != 2:
            return None
        wide = max(reads, key=lambda read: prod(read.shape))
        narrow = next(read for read in reads if read is not wide)
        same = wide.channel == narrow.channel
        return Form(operation, self, (wide.position, narrow.position), wide.channel) if same else None

    def moments(self, at: Propagation, form: Form, inputs: Inputs) -> Signal | None:
        """Each channel is multiplied by its gate's mean."""
        wide, gate = (signal for signal in inputs if signal is not None)
        if len(gate.mean) != len(wide.mean) or wide.repeat != 1:
            return None
        outer = torch.outer(gate.mean, gate.mean)
        return Signal(wide.mean * gate.mean, wide.covariance * outer, gain=gate.mean)


class Identity(MomentPreserving):
    """What only looks like an operation, at least when the model is evaluated."""

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """The same channels."""
        x = flow.value(operation.first)
        return None if x is None else replace(x, tensor=None)


def per_channel(flow: Tracer, operation: Operation) -> tuple[Value, list[Value]] | None:
    """One number per channel in dimension 1: element-wise, with the parameters laid along it.

    Returns:
        The result and the parameters.
    """
    found = [value for value in map(flow.value, operation.arguments.values()) if value is not None]
    x, parameters = found[0], found[1:]
    ndim = len(x.shape)
    if ndim < 2:
        return None
    laid = [
        replace(
            p,
            shape=(1, p.shape[0]) + (1,) * (ndim - 2),
            labels=tuple(along(label.ravel(), 1, ndim) for label in p.labels),
        )
        for p in parameters
    ]
    return flow.combine([x, *laid], x.shape, adds=False, what=str(operation)), parameters


NOTHING = (
    "dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "contiguous", "clone", "alias",
    "detach", "lift_fresh_copy", "to", "_to_copy", "type_as", "_assert_tensor_metadata",
)  # fmt: skip

TABLE.update(
    {POINTWISE: Elementwise(), "add": Add(), "mul": ElementwiseProduct(), "div": ElementwiseProduct()}
)
TABLE.update(dict.fromkeys(NOTHING, Identity()))
