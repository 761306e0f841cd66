"""Where values come from that no weight wrote: the model's inputs, and tensors made on the way."""

from __future__ import annotations

import torch

from hope.ops.protocols import Propagation, Tracer
from hope.ops.registry import TABLE, Form, Inputs, Operator, Reads, Signal
from hope.trace.program import Operation
from hope.trace.values import Value

COLOURS = 0.95  # correlation between the channels of natural images


class Input(Operator):
    """What enters the model: standardised images, whose colours resemble one another."""

    def form(self, operation: Operation, reads: Reads) -> Form | None:
        """Channels are in dimension 1."""
        return Form(operation, self, (), 1)

    def moments(self, at: Propagation, form: Form, inputs: Inputs) -> Signal | None:
        """Mean 0 and variance 1."""
        if len(form.operation.output) < 2:
            return None
        channels = form.operation.output[1]
        colours = torch.full((channels, channels), COLOURS if channels == 3 else 0.0, dtype=torch.float64)
        return Signal(torch.zeros(channels, dtype=torch.float64), colours.fill_diagonal_(1.0))


class Constant(Operator):
    """A new tensor without any channels in it."""

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """No channels."""
        return Value(operation.output, static=True)


class Like(Operator):
    """A new tensor of the same shape."""

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """The same channels, since it must be cut with them."""
        x = flow.value(operation.first)
        return None if x is None else Value(x.shape, x.labels)


class Filled(Operator):
    """A tensor whose elements are replaced."""

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """No channels any more."""
        x = flow.value(operation.first)
        return None if x is None else Value(x.shape, (), x.static)


TABLE["input"] = Input()
TABLE.update(dict.fromkeys(("new_zeros", "new_ones", "new_full", "new_empty"), Constant()))
LIKE = ("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like")
TABLE.update(dict.fromkeys(LIKE, Like()))
TABLE.update(dict.fromkeys(("fill", "zero", "bernoulli", "uniform", "normal"), Filled()))
