"""Operators with weights that mix channels: convolutions, linear layers, embeddings."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch.fx import Node

from hope.anatomy.flow import Flow, Step, Value, describe, module_of, origins_of, output_shape
from hope.anatomy.labels import FIXED, Ids, along, dims
from hope.anatomy.reasons import Cause
from hope.graph.capture import module_path
from hope.ops.registry import rule


def _weighted(
    flow: Flow,
    node: Node,
    x: Value,
    weight: Value | None,
    bias: Value | None,
    channel: int,
    in_dim: int,
    out_dim: int,
) -> Value | None:
    """A dense map of channels: its weight reads along one of its dimensions and writes along another."""
    shape = output_shape(node)
    if weight is None or weight.tensor is None:
        return _computed(flow, node, [x, *(v for v in (weight, bias) if v is not None)], channel)
    name = weight.tensor
    reads, writes = flow.mark(name, in_dim, "in"), flow.mark(name, out_dim, "out")
    through = _read(flow, node, x, channel, reads)
    if x.labels:
        flow.reads.setdefault(name, {}).update(
            {w: p for w, p in x.signals.items() if w not in flow.reads.get(name, {})}
        )
    labels = (*through, along(writes, channel, len(shape))) if len(writes) > 1 else through
    result = Value(shape, labels, signals={name: ()})
    if bias is not None and bias.tensor is not None and bias.shape == (len(writes),):
        flow.ties.tie(flow.tensor_ids(bias.tensor, 0), writes)
    elif bias is not None:  # a matrix product may add anything that broadcasts
        result = flow.combine([result, bias], shape, adds=False, what=describe(node))
    return result


def _read(flow: Flow, node: Node, x: Value, channel: int, reads: Ids) -> tuple[Ids, ...]:
    """Tie what stands in the channel dimension to the weight's input side; labels over the batch pass."""
    through: list[Ids] = []
    for label in x.labels:
        over = dims(label)
        if over == (channel,):
            row = label.ravel()
            flow.ties.tie(row[row >= 0], reads[row >= 0])
        elif channel not in over and all(d < channel for d in over):
            through.append(label)
        else:
            flow.pin(label, Cause.MIXED.at(describe(node)))
    return tuple(through)


def _computed(flow: Flow, node: Node, values: list[Value], channel: int) -> Value:
    """Weights that are not parameters themselves: their rows and columns cannot be cut."""
    reason = Cause.COMPUTED.at(describe(node))
    flow.pin_all(values, reason)
    shape = output_shape(node)
    for name in [module_path(node)] if module_path(node) else origins_of(v for v in values if v.static):
        flow.computed[name] = (shape[channel], reason)
    return Value(shape)


@rule("conv1d", "conv2d", "conv3d", "convolution")
def _convolution(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    if args.get("transposed"):
        transposed: Value | None = _transposed(flow, node, args)
        return transposed
    x, weight, bias = flow.value(args["input"]), flow.value(args["weight"]), flow.value(args["bias"])
    if x is None or weight is None:
        return None
    channel = len(x.shape) - len(weight.shape) + 1
    shape = output_shape(node)
    if weight.tensor is not None:
        flow.positions[weight.tensor] += int(np.prod(shape)) // shape[channel]
    if args["groups"] == 1:
        return _weighted(flow, node, x, weight, bias, channel, 1, 0)
    if weight.tensor is None or (bias is not None and bias.tensor is None):
        return _computed(flow, node, [x, weight], channel)
    writes = flow.mark(weight.tensor, 0, "through")
    if bias is not None and bias.tensor is not None:
        flow.ties.tie(flow.tensor_ids(bias.tensor, 0), writes)
    return _grouped(flow, node, x, weight.tensor, args["groups"], channel, shape, writes)


@rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x, weight, bias = flow.value(args["input"]), flow.value(args["weight"]), flow.value(args["bias"])
    if x is None or weight is None:
        return None
    channel = len(x.shape) - len(weight.shape) + 1
    shape = output_shape(node)
    if weight.tensor is not None:
        flow.positions[weight.tensor] += int(np.prod(x.shape)) // x.shape[channel]
    if args["groups"] == 1:
        return _weighted(flow, node, x, weight, bias, channel, 0, 1)
    if weight.tensor is None or (bias is not None and bias.tensor is None):
        return _computed(flow, node, [x, weight], channel)
    rows = flow.mark(weight.tensor, 0, "through").reshape(args["groups"], -1)
    flow.ties.tie(np.broadcast_to(rows[:, :1], rows.shape), rows)
    writes = np.repeat(rows[:, 0], shape[channel] // args["groups"])
    if bias is not None and bias.tensor is not None:
        flow.ties.tie(flow.tensor_ids(bias.tensor, 0), writes)
    return _grouped(flow, node, x, weight.tensor, args["groups"], channel, shape, writes)


def _grouped(
    flow: Flow,
    node: Node,
    x: Value,
    weight: str,
    groups: int,
    channel: int,
    shape: tuple[int, ...],
    writes: Ids,
) -> Value:
    """A grouped or depthwise convolution: a group's inputs and outputs come and go together."""
    out = writes.reshape(groups, -1)
    flow.ties.tie(np.broadcast_to(out[:, :1], out.shape), out)
    seen = False
    through: list[Ids] = []
    for label in x.labels:
        over = dims(label)
        if over == (channel,):
            seen = True
            rows = label.reshape(groups, -1)
            flow.ties.tie(np.where(rows >= 0, rows, out[:, :1]), np.broadcast_to(out[:, :1], rows.shape))
            flow.pin(out[(rows == FIXED).any(axis=1)], Cause.READS_FIXED.at(describe(node)))
        elif channel not in over and all(d < channel for d in over):
            through.append(label)
        else:
            flow.pin(label, Cause.MIXED.at(describe(node)))
    if not seen:
        flow.pin(out, Cause.GROUPED.at(describe(node)))
    labels = (*through, along(writes, channel, len(shape))) if len(writes) > 1 else tuple(through)
    step = Step("depthwise" if x.shape[channel] == groups else "grouped", module_of(weight))
    carried = Value(shape, labels, signals=x.signals if seen else {}).then(step)
    return carried


@rule("linear")
def _linear(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x, weight, bias = flow.value(args["input"]), flow.value(args["weight"]), flow.value(args["bias"])
    if x is None or weight is None or len(weight.shape) != 2:
        return None
    _count(flow, node, weight)
    return _weighted(flow, node, x, weight, bias, len(x.shape) - 1, 1, 0)


@rule("addmm")
def _addmm(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x, weight, bias = flow.value(args["mat1"]), flow.value(args["mat2"]), flow.value(args["self"])
    if x is None or weight is None or not weight.static or x.static:
        return None
    _count(flow, node, weight)
    return _weighted(flow, node, x, weight, bias, len(x.shape) - 1, 0, 1)


@rule("mm", "matmul")
def _matmul(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    first, second = list(args.values())[:2]
    x, weight = flow.value(first), flow.value(second)
    if x is None or x.static or weight is None or weight.tensor is None:
        return None
    if len(weight.shape) != 2 or len(x.shape) < 2:
        return None
    _count(flow, node, weight)
    return _weighted(flow, node, x, weight, None, len(x.shape) - 1, 0, 1)


def _count(flow: Flow, node: Node, weight: Value) -> None:
    shape = output_shape(node)
    if weight.tensor is not None and shape:
        flow.positions[weight.tensor] += int(np.prod(shape[:-1]))


@rule("embedding")
def _embedding(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    weight = flow.value(args["weight"])
    shape = output_shape(node)
    if weight is None or weight.tensor is None or shape[-1] == 1:
        return None
    flow.pin(flow.tensor_ids(weight.tensor, 0), Cause.LOOKED_UP.at())
    writes = flow.mark(weight.tensor, 1, "out")
    return Value(shape, (along(writes, len(shape) - 1, len(shape)),), signals={weight.tensor: ()})
