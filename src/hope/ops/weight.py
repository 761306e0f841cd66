"""Operators with weights that mix channels: convolutions, linear layers, embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import TypeGuard

import numpy as np
from torch import Tensor, nn

from hope.ops.protocols import Propagation, Tracer
from hope.ops.reading import dense, depthwise, isotropic, sources, weighted_sum
from hope.ops.registry import TABLE, Form, Inputs, Operator, Parts, Reads, Signal
from hope.reasons import Cause
from hope.trace.labels import FIXED, Ids, along, dims
from hope.trace.program import Operation, Shape, module_of
from hope.trace.values import Value, origins_of


class Weighted(Operator):
    """A dense map of channels: its weight reads along one of its dimensions and writes along another.

    Attributes:
        sides: the dimensions of the weight that read and write.
        names: the arguments that are its input, weight and bias.
    """

    alone = True
    sides = (1, 0)
    names = ("input", "weight", "bias")

    def positions(self, operation: Operation, reads: Shape, channel: int) -> int:
        """One use per place of its output."""
        return prod(operation.output) // operation.output[channel]

    def values(self, flow: Tracer, operation: Operation) -> tuple[Value | None, Value | None, Value | None]:
        """Its input, weight and bias."""
        x, weight, bias = (flow.value(operation.arguments.get(name)) for name in self.names)
        return x, weight, bias

    def weighted(
        self,
        flow: Tracer,
        operation: Operation,
        x: Value,
        weight: Value,
        bias: Value | None,
        channel: int,
    ) -> Value:
        """Read the channels of x in one dimension, and write new ones there."""
        shape, name = operation.output, weight.tensor
        if name is None:
            return self.computed(flow, operation, [x, weight, *([bias] if bias is not None else [])], channel)
        reads, writes = flow.mark(name, self.sides[0], "in"), flow.mark(name, self.sides[1], "out")
        for label in x.labels:
            if dims(label) == (channel,):
                row = label.ravel()
                flow.ties.tie(row[row >= 0], reads[row >= 0])
        through = _through(flow, operation, x, channel)
        if x.labels:
            known = flow.reads.setdefault(name, {})
            known.update({writer: path for writer, path in x.signals.items() if writer not in known})
        labels = (*through, along(writes, channel, len(shape))) if len(writes) > 1 else through
        result = Value(shape, labels, signals={name: ()})
        if bias is not None and bias.tensor is not None and bias.shape == (len(writes),):
            flow.ties.tie(flow.tensor_ids(bias.tensor, 0), writes)
        elif bias is not None:  # a matrix product may add anything that broadcasts
            result = flow.combine([result, bias], shape, adds=False, what=str(operation))
        return result

    def computed(self, flow: Tracer, operation: Operation, values: list[Value], channel: int) -> Value:
        """Weights that are not parameters themselves: their rows and columns cannot be cut."""
        reason = Cause.COMPUTED.at(str(operation))
        flow.pin_all(values, reason)
        names = [operation.module] if operation.module else origins_of(v for v in values if v.static)
        for name in names:
            flow.computed[name] = (operation.output[channel], reason)
        return Value(operation.output)

    def guess(self, form: Form, raw: Tensor) -> Signal | None:
        """What it computes from inputs that are not known."""
        return isotropic(raw)

    def weighted_sum(self, at: Propagation, form: Form, x: Signal, raw: Tensor) -> Signal | None:
        """What it computes from a known signal."""
        return None

    def moments(self, at: Propagation, form: Form, inputs: Inputs) -> Signal | None:
        """Those of weighted sums."""
        x, name = inputs[0], form.operation.tensors["weight"]
        if name not in at.tensors:
            return None
        raw = at.tensors[name]
        found = None if x is None or x.guess else self.weighted_sum(at, form, x, raw)
        guessed = x is None or x.guess or at.isotropic
        if guessed and (form.operation.position not in at.read or not at.following_bn):
            return None  # only a BN makes something of a guess, and a vocabulary's would be very wide
        return self.guess(form, raw) if guessed else found

    def covariance(self, at: Propagation, form: Form, parts: Parts, other: Signal) -> Tensor | None:
        """Through the weights, as they stand at the middle of the kernel."""
        first, signal = parts[0], at.signals[form.operation.position]
        reading = at.by_operation.get(form.operation.position)
        if first is None or signal is None:
            return None
        if signal.gain is not None:  # a depthwise convolution
            return signal.gain[:, None] * first[sources(len(first), len(signal.gain))]
        return None if reading is None else reading.central(first)

    def count(self, flow: Tracer, operation: Operation, x: Value, weight: Value, channel: int) -> None:
        """Add what it costs."""
        if weight.tensor is not None:
            flow.positions[weight.tensor] += self.positions(operation, x.shape, channel)


def _through(flow: Tracer, operation: Operation, x: Value, channel: int) -> tuple[Ids, ...]:
    """Labels over the batch pass; those over places that the weight covers are kept."""
    others = [label for label in x.labels if dims(label) != (channel,)]
    through = tuple(label for label in others if all(d < channel for d in dims(label)))
    why = Cause.MIXED.at(str(operation))
    flow.counted += [(label, why) for label in through]
    for label in (one for one in others if not any(one is other for other in through)):
        flow.pin(label, why)
    return through


class Convolution(Weighted):
    """A convolution, dense, grouped or depthwise."""

    modules: tuple[type[nn.Module], ...] = (nn.Conv1d, nn.Conv2d, nn.Conv3d)

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """New channels; those of a group come and go together."""
        if operation.arguments.get("transposed") and not isinstance(self, Transposed):
            return TRANSPOSED.channels(flow, operation)
        x, weight, bias = self.values(flow, operation)
        if x is None or weight is None:
            return None
        channel, groups = len(x.shape) - len(weight.shape) + 1, operation.arguments["groups"]
        self.count(flow, operation, x, weight, channel)
        if groups == 1:
            return self.weighted(flow, operation, x, weight, bias, channel)
        if weight.tensor is None or (bias is not None and bias.tensor is None):
            return self.computed(flow, operation, [x, weight], channel)
        writes = self.writes(flow, weight.tensor, groups, operation.output[channel])
        if bias is not None and bias.tensor is not None:
            flow.ties.tie(flow.tensor_ids(bias.tensor, 0), writes)
        return _grouped(flow, operation, x, weight.tensor, channel, writes)

    def writes(self, flow: Tracer, weight: str, groups: int, outputs: int) -> Ids:
        """The channels that a grouped convolution writes."""
        return flow.mark(weight, 0, "through")

    def form(self, operation: Operation, reads: Reads) -> Form | None:
        """Channels stand in front of the places."""
        args = operation.arguments
        if args.get("transposed") or len(reads) != 1 or "weight" not in operation.tensors:
            return None
        plain = operation.operator != "convolution"
        places = int(operation.operator[len("conv")]) if plain else len(args["padding"])
        channel = len(operation.output) - places - 1
        return Form(operation, self, (reads[0].position,), channel, (float(args["groups"]),))

    def guess(self, form: Form, raw: Tensor) -> Signal | None:
        """Of a dense one."""
        return super().guess(form, raw) if form.values == (1.0,) else None

    def weighted_sum(self, at: Propagation, form: Form, x: Signal, raw: Tensor) -> Signal | None:
        """A sum over the places that the kernel covers."""
        groups, width = int(form.values[0]), len(x.mean)
        if groups == width > 1 and x.repeat == 1:
            return depthwise(at, form, x, raw)
        flat = raw.double().flatten(2) if raw.ndim > 2 else raw.double()[:, :, None]
        if flat.shape[1] * groups != width or x.repeat != 1:
            return None
        return weighted_sum(at, form, x, dense(flat, groups), tuple(raw.shape[2:]))

    def resize(self, module: nn.Module, before: Mapping[str, Shape]) -> None:
        """As many channels and groups as are left; whole groups go."""
        assert isinstance(module, nn.modules.conv._ConvNd)
        shape = tuple(module.weight.shape)
        if "weight" in before and module.groups > 1:
            module.groups = module.groups * shape[0] // before["weight"][0]
        sizes = [shape[0], shape[1] * module.groups]
        module.in_channels, module.out_channels = (sizes[side] for side in self.sides)


class Transposed(Convolution):
    """A transposed convolution."""

    sides = (0, 1)
    modules = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)

    def positions(self, operation: Operation, reads: Shape, channel: int) -> int:
        """One use per place of its input."""
        return prod(reads) // reads[channel]

    def writes(self, flow: Tracer, weight: str, groups: int, outputs: int) -> Ids:
        """The same number of channels per group of rows."""
        rows = flow.mark(weight, 0, "through").reshape(groups, -1)
        flow.ties.tie(np.broadcast_to(rows[:, :1], rows.shape), rows)
        return np.repeat(rows[:, 0], outputs // groups)

    form = Operator.form  # not known


def _grouped(flow: Tracer, operation: Operation, x: Value, weight: str, channel: int, writes: Ids) -> Value:
    """A grouped or depthwise convolution: a group's inputs and outputs come and go together."""
    groups, shape, what = operation.arguments["groups"], operation.output, str(operation)
    out = writes.reshape(groups, -1)
    flow.ties.tie(np.broadcast_to(out[:, :1], out.shape), out)
    seen = False
    for label in x.labels:
        if dims(label) == (channel,):
            seen = True
            rows = label.reshape(groups, -1)
            flow.ties.tie(np.where(rows >= 0, rows, out[:, :1]), np.broadcast_to(out[:, :1], rows.shape))
            flow.pin(out[(rows == FIXED).any(axis=1)], Cause.READS_FIXED.at(what))
    through = _through(flow, operation, x, channel)
    if not seen:
        flow.pin(out, Cause.GROUPED.at(what))
    labels = (*through, along(writes, channel, len(shape))) if len(writes) > 1 else through
    kind = "depthwise" if x.shape[channel] == groups else "grouped"
    return Value(shape, labels, signals=x.signals if seen else {}).then(kind, module_of(weight))


class Linear(Weighted):
    """A linear layer: channels in the last dimension."""

    modules: tuple[type[nn.Module], ...] = (nn.Linear,)

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """New channels in the last dimension."""
        x, weight, bias = self.values(flow, operation)
        if x is None or weight is None or not self.fits(x, weight):
            return None
        channel = len(x.shape) - 1
        self.count(flow, operation, x, weight, channel)
        return self.weighted(flow, operation, x, weight, bias, channel)

    def fits(self, x: Value, weight: Value) -> bool:
        """Whether it is called in a way that is known."""
        return len(weight.shape) == 2

    def form(self, operation: Operation, reads: Reads) -> Form | None:
        """Channels stand in the last dimension."""
        known = len(reads) == 1 and "weight" in operation.tensors
        return Form(operation, self, (reads[0].position,), len(operation.output) - 1) if known else None

    def weighted_sum(self, at: Propagation, form: Form, x: Signal, raw: Tensor) -> Signal | None:
        """A sum over all places of a flattened signal."""
        width = len(x.mean)
        if raw.ndim != 2 or raw.shape[1] != width * x.repeat:
            return None
        laid = raw.double().reshape(len(raw), width, x.repeat).transpose(1, 2).contiguous()
        return weighted_sum(at, form, x, laid, ())

    def resize(self, module: nn.Module, before: Mapping[str, Shape]) -> None:
        """As many features as are left."""
        assert isinstance(module, nn.Linear)
        module.out_features, module.in_features = module.weight.shape


class Transposing(Linear):
    """A matrix product whose weight reads along its rows, as in the linear layers of GPT-2."""

    sides = (0, 1)
    modules = ()

    def fits(self, x: Value, weight: Value) -> bool:
        """A signal times something made of parameters."""
        return weight.static and not x.static

    def form(self, operation: Operation, reads: Reads) -> Form | None:
        """Channels stand in the last dimension; what is added is a bias."""
        args = operation.arguments
        return super().form(operation, reads) if args.get("beta") == args.get("alpha") == 1 else None

    def guess(self, form: Form, raw: Tensor) -> Signal | None:
        """Of its columns."""
        return super().guess(form, raw.T)

    def weighted_sum(self, at: Propagation, form: Form, x: Signal, raw: Tensor) -> Signal | None:
        """A sum over its rows."""
        return super().weighted_sum(at, form, x, raw.T)

    def holds(self, module: nn.Module, before: Mapping[str, Shape]) -> bool:
        """Its module has a size of its own kind."""
        weight = getattr(module, "weight", None)
        return (
            "weight" in before and isinstance(weight, Tensor) and weight.ndim == 2 and hasattr(module, "nf")
        )

    def resize(self, module: nn.Module, before: Mapping[str, Shape]) -> None:
        """As many features as are left."""
        vars(module)["nf"] = int(module.get_parameter("weight").shape[1])


class Embedding(Weighted):
    """Rows of a table, looked up by position."""

    modules = (nn.Embedding,)

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """New channels in the last dimension; the rows are kept."""
        weight, shape = flow.value(operation.arguments["weight"]), operation.output
        if weight is None or weight.tensor is None or shape[-1] == 1:
            return None
        flow.pin(flow.tensor_ids(weight.tensor, 0), Cause.LOOKED_UP.at())
        writes = flow.mark(weight.tensor, 1, "out")
        return Value(shape, (along(writes, len(shape) - 1, len(shape)),), signals={weight.tensor: ()})

    def resize(self, module: nn.Module, before: Mapping[str, Shape]) -> None:
        """As many rows and channels as are left."""
        assert isinstance(module, nn.Embedding)
        module.num_embeddings, module.embedding_dim = module.weight.shape


TRANSPOSED = Transposed()
TABLE.update(dict.fromkeys(("conv1d", "conv2d", "conv3d", "convolution"), Convolution()))
TABLE.update(dict.fromkeys(("conv_transpose1d", "conv_transpose2d", "conv_transpose3d"), TRANSPOSED))
TABLE.update({"linear": Linear(), "embedding": Embedding(), "addmm": Transposing()})


def is_weight(form: Form | None) -> TypeGuard[Form]:
    """Whether an operation is one whose weight and what it reads are followed."""
    return form is not None and isinstance(form.operator, Weighted)


def spatial(module: nn.Module) -> int | None:
    """The dimensions of space that a module's weight reads along: 0 of a linear layer; None if not known."""
    if isinstance(module, nn.modules.conv._ConvNd) and not module.transposed:
        return len(module.kernel_size)
    return 0 if isinstance(module, nn.Linear) else None
