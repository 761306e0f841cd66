"""What each operator does to channels. An operator without a rule pins what it reads: never wrong, at worst cautious."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from hope.anatomy.flow import Flow, Step, Value, arguments, describe, operator, output_shape
from hope.anatomy.labels import FIXED, Ids, along, dims, reshape

Rule = Callable[[Flow, Node, dict[str, Any]], Any]
_RULES: dict[str, Rule] = {}


def _rule(*names: str) -> Callable[[Rule], Rule]:
    def register(function: Rule) -> Rule:
        for name in names:
            _RULES[name] = function
        return function

    return register


def apply(flow: Flow, node: Node) -> Any:
    """The value of a node under the rule of its operator."""
    name = operator(node)
    rule = _RULES.get(name)
    if (
        rule is None
        and isinstance(node.target, torch._ops.OpOverload)
        and torch.Tag.pointwise in node.target.tags
    ):
        rule = _pointwise
    if rule is None and "upsample" in name:
        rule = _resize
    with_dims = flow.values([node.args, node.kwargs])
    if rule is not None and all(0 not in value.shape for value in with_dims):
        result = rule(flow, node, arguments(node))
        if result is not None:
            return result
    flow.pin_all(with_dims, f"{describe(node)} mixes or reorders channels in a way that is not analysed")
    return _unknown(node, static=bool(with_dims) and all(value.static for value in with_dims))


def _unknown(node: Node, static: bool) -> Any:
    value = node.meta.get("val")
    if isinstance(value, (list, tuple)):
        return [
            Value(tuple(item.shape), static=static) if isinstance(item, torch.Tensor) else None
            for item in value
        ]
    return Value(output_shape(node), static=static)


def _module_of(tensor: str) -> str:
    return tensor.rpartition(".")[0] or tensor


def _numbers(args: dict[str, Any]) -> tuple[float, ...]:
    return tuple(float(v) for v in args.values() if isinstance(v, (int, float)) and not isinstance(v, bool))


# ---- operators with weights -----------------------------------------------------------------------------------------


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
    if weight is None or weight.tensor is None or (bias is not None and bias.tensor is None):
        return _computed(flow, node, [x, *(v for v in (weight, bias) if v is not None)])
    name = weight.tensor
    reads, writes = flow.mark(name, in_dim, "in"), flow.mark(name, out_dim, "out")
    through = _read(flow, node, x, channel, reads)
    if x.labels:
        flow.reads.setdefault(name, {}).update(
            {w: p for w, p in x.signals.items() if w not in flow.reads.get(name, {})}
        )
    if bias is not None and bias.tensor is not None:
        flow.ties.tie(flow.tensor_ids(bias.tensor, 0), writes)
    labels = (*through, along(writes, channel, len(shape))) if len(writes) > 1 else through
    return Value(shape, labels, signals={name: ()})


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
            flow.pin(label, f"{describe(node)} mixes it by position")
    return tuple(through)


def _computed(flow: Flow, node: Node, values: list[Value]) -> Value:
    reason = f"{describe(node)} uses weights that are computed at run time (weight normalisation, standardisation or attention)"
    flow.pin_all(values, reason)
    for value in values:
        if value.static:
            flow.computed[describe(node)] = reason
    return Value(output_shape(node))


@_rule("conv1d", "conv2d", "conv3d", "convolution")
def _convolution(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    if args.get("transposed"):
        return _transposed(flow, node, {**args, "input": args["input"]})
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
        return _computed(flow, node, [x, weight])
    writes = flow.mark(weight.tensor, 0, "through")
    if bias is not None and bias.tensor is not None:
        flow.ties.tie(flow.tensor_ids(bias.tensor, 0), writes)
    return _grouped(flow, node, x, weight.tensor, args["groups"], channel, shape, writes)


@_rule("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
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
        return _computed(flow, node, [x, weight])
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
            flow.pin(out[(rows == FIXED).any(axis=1)], f"{describe(node)} reads channels that stay")
        elif channel not in over and all(d < channel for d in over):
            through.append(label)
        else:
            flow.pin(label, f"{describe(node)} mixes it by position")
    if not seen:
        flow.pin(out, f"{describe(node)} is grouped over channels that stay")
    labels = (*through, along(writes, channel, len(shape))) if len(writes) > 1 else tuple(through)
    step = Step("depthwise" if x.shape[channel] == groups else "grouped", _module_of(weight))
    carried = Value(shape, labels, signals=x.signals if seen else {}).then(step)
    return carried


@_rule("linear")
def _linear(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x, weight, bias = flow.value(args["input"]), flow.value(args["weight"]), flow.value(args["bias"])
    if x is None or weight is None or len(weight.shape) != 2:
        return None
    _count(flow, node, weight)
    return _weighted(flow, node, x, weight, bias, len(x.shape) - 1, 1, 0)


@_rule("addmm")
def _addmm(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x, weight, bias = flow.value(args["mat1"]), flow.value(args["mat2"]), flow.value(args["self"])
    if x is None or weight is None or not weight.static or x.static:
        return None
    _count(flow, node, weight)
    return _weighted(flow, node, x, weight, bias, len(x.shape) - 1, 0, 1)


@_rule("mm", "matmul")
def _matmul(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    first, second = list(args.values())[:2]
    x, weight = flow.value(first), flow.value(second)
    if x is None or weight is None or weight.tensor is None or len(weight.shape) != 2 or len(x.shape) < 2:
        return None
    _count(flow, node, weight)
    return _weighted(flow, node, x, weight, None, len(x.shape) - 1, 0, 1)


def _count(flow: Flow, node: Node, weight: Value) -> None:
    shape = output_shape(node)
    if weight.tensor is not None and shape:
        flow.positions[weight.tensor] += int(np.prod(shape[:-1]))


@_rule("embedding")
def _embedding(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    weight = flow.value(args["weight"])
    shape = output_shape(node)
    if weight is None or weight.tensor is None or shape[-1] == 1:
        return None
    flow.pin(flow.tensor_ids(weight.tensor, 0), "rows of an embedding are looked up by position")
    writes = flow.mark(weight.tensor, 1, "out")
    return Value(shape, (along(writes, len(shape) - 1, len(shape)),), signals={weight.tensor: ()})


# ---- channel-wise operators with parameters -------------------------------------------------------------------------


@_rule("batch_norm", "instance_norm", "_native_batch_norm_legit_no_training", "prelu")
def _per_channel(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    """One number per channel in dimension 1: as an element-wise operator with the parameters laid along it."""
    values = [value for value in (flow.value(arg) for arg in args.values()) if value is not None]
    x, parameters = values[0], values[1:]
    ndim = len(x.shape)
    if ndim < 2:
        return None
    laid = [
        replace(
            p,
            shape=(1, p.shape[0]) + (1,) * (ndim - 2),
            labels=tuple(along(lab.ravel(), 1, ndim) for lab in p.labels),
        )
        for p in parameters
    ]
    result = flow.combine([x, *laid], x.shape, adds=False, what=describe(node))
    name = operator(node)
    module = next((_module_of(p.tensor) for p in parameters if p.tensor is not None), name)
    if name == "prelu":
        return result.then(Step("activation", "prelu"))
    eps = args.get("eps")
    return result.then(
        Step("norm" if name == "instance_norm" else "bn", module, (float(eps),) if eps is not None else ())
    )


@_rule("layer_norm", "rms_norm")
def _layer_norm(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x = flow.value(args["input"])
    if x is None:
        return None
    last = range(len(x.shape) - len(args["normalized_shape"]), len(x.shape))
    return _normalised(flow, node, x, set(last))


@_rule("group_norm")
def _group_norm(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x = flow.value(args["input"])
    return None if x is None else _normalised(flow, node, x, set(range(1, len(x.shape))))


@_rule("softmax", "log_softmax", "_softmax", "_log_softmax")
def _softmax(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x = flow.value(next(iter(args.values())))
    return None if x is None else _normalised(flow, node, x, {args["dim"] % len(x.shape)})


def _normalised(flow: Flow, node: Node, x: Value, over: set[int]) -> Value:
    """Channels that are normalised together depend on one another; the labels stay, so that streams remain visible."""
    for label in x.labels:
        if over & set(dims(label)):
            flow.pin(label, f"{describe(node)} normalises its channels together")
    return replace(x, tensor=None).then(Step("norm", describe(node)))


# ---- element-wise operators -----------------------------------------------------------------------------------------

_PASS = (
    "dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "contiguous", "clone", "alias", "detach",
    "lift_fresh_copy", "to", "_to_copy", "type_as", "_assert_tensor_metadata",
)  # fmt: skip


@_rule(*_PASS)
def _pass(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x = flow.value(node.args[0]) if node.args else None
    return None if x is None else replace(x, tensor=None)


@_rule("hardtanh", "relu6")
def _relu6(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x = flow.value(node.args[0])
    bounds = (args.get("min_val", 0), args.get("max_val", 6))
    name = "relu6" if bounds == (0, 6) else "hardtanh"
    return (
        None
        if x is None
        else replace(x, tensor=None).then(
            Step("activation", name, () if name == "relu6" else tuple(map(float, bounds)))
        )
    )


@_rule(
    "relu",
    "leaky_relu",
    "gelu",
    "silu",
    "elu",
    "celu",
    "selu",
    "mish",
    "hardswish",
    "hardsigmoid",
    "softplus",
    "log_sigmoid",
    "rrelu",
)
def _pointwise(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    values = flow.values([node.args, node.kwargs])
    shape = output_shape(node)
    name = operator(node)
    if not values or len(shape) < max(len(value.shape) for value in values):
        return None
    product = name in ("mul", "div")
    result = flow.combine(values, shape, adds=not product, what=describe(node))
    runtime = [value for value in values if not value.static]
    if len(runtime) > 1:
        return result.then(Step("gate" if product else "add", describe(node)))
    if len(values) > 1:
        module = next((_module_of(value.tensor) for value in values if value.tensor), name)
        return result.then(Step("scale" if product else "shift", module))
    return result.then(Step("activation", name, _numbers(args)))


# ---- operators along other dimensions -------------------------------------------------------------------------------


@_rule(
    *(
        f"{kind}_pool{n}d{tail}"
        for kind in ("max", "avg", "adaptive_avg", "adaptive_max", "lp")
        for n in (1, 2, 3)
        for tail in ("", "_with_indices")
    )
)
def _pool(flow: Flow, node: Node, args: dict[str, Any]) -> Any:
    x = flow.value(node.args[0])
    if x is None:
        return None
    name = operator(node)
    ndim = len(x.shape)
    n = int(name[name.index("d", name.index("pool")) - 1])
    result = flow.carry(
        x, output_shape(node), range(ndim - n, ndim), f"{describe(node)} pools over its channels"
    )
    result = result.then(Step("pool", "max" if "max" in name else "average"))
    return [result, Value(result.shape)] if isinstance(node.meta.get("val"), (list, tuple)) else result


def _resize(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x = flow.value(node.args[0])
    if x is None:
        return None
    return flow.carry(
        x, output_shape(node), range(2, len(x.shape)), f"{describe(node)} resizes along its channels"
    ).then(Step("resize", operator(node)))


@_rule(
    "mean",
    "sum",
    "amax",
    "amin",
    "max",
    "min",
    "var",
    "std",
    "norm",
    "linalg_vector_norm",
    "logsumexp",
    "argmax",
    "var_mean",
)
def _reduction(flow: Flow, node: Node, args: dict[str, Any]) -> Any:
    x = flow.value(node.args[0])
    if x is None or "dim" not in args or isinstance(args.get("dim"), torch.fx.Node):
        values = flow.values([node.args, node.kwargs])
        return _pointwise(flow, node, args) if len(values) == 2 else None
    ndim = len(x.shape)
    over = args["dim"]
    reduced = (
        range(ndim)
        if over is None or over == []
        else [d % ndim for d in ([over] if isinstance(over, int) else over)]
    )
    result = flow.carry(x, x.shape, reduced, f"{describe(node)} sums up over its channels")
    if not args.get("keepdim"):
        gone = tuple(reduced)
        result = replace(result, labels=tuple(label.squeeze(gone) for label in result.labels))
    result = replace(result, shape=output_shape(node)).then(
        Step("pool", "average" if operator(node) in ("mean", "sum") else operator(node))
    )
    many = node.meta.get("val")
    return [result] * len(many) if isinstance(many, (list, tuple)) else result


# ---- views ----------------------------------------------------------------------------------------------------------


@_rule(
    "view",
    "reshape",
    "flatten",
    "unflatten",
    "_unsafe_view",
    "squeeze",
    "unsqueeze",
    "expand",
    "expand_as",
    "view_as",
    "reshape_as",
)
def _view(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    base = node.args[0]
    x = flow.value(base)
    shape = output_shape(node)
    if x is None or not isinstance(base, Node):
        return None
    old = x.shape
    if operator(node).startswith("expand"):
        old = (1,) * (len(shape) - len(old)) + old
        return replace(
            x,
            shape=shape,
            tensor=None,
            labels=tuple(label.reshape((1,) * (len(shape) - label.ndim) + label.shape) for label in x.labels),
        )
    labels = []
    for label in x.labels:
        moved = reshape(label, old, shape)
        if len(dims(moved)) > 1:
            flow.pin(moved, f"{describe(node)} splits its channels into groups by position")
        labels.append(moved)
    result = replace(x, shape=shape, tensor=None, labels=_disjoint(flow, node, labels))
    merged = any(
        label.size > 1 and moved.size > label.size for label, moved in zip(x.labels, labels, strict=True)
    )
    return result.then(Step("flatten", operator(node))) if merged else result


def _disjoint(flow: Flow, node: Node, labels: list[Ids]) -> tuple[Ids, ...]:
    """Two labels over one dimension (a view merged two kinds of channels) cannot be cut apart: pin both."""
    taken: dict[int, int] = {}
    clash: set[int] = set()
    for position, label in enumerate(labels):
        for d in dims(label):
            if d in taken:
                clash |= {position, taken[d]}
            taken[d] = position
    for position in clash:
        flow.pin(labels[position], f"{describe(node)} folds two kinds of channels into one dimension")
    return tuple(label for position, label in enumerate(labels) if position not in clash)


@_rule("permute", "transpose", "t", "movedim", "swapaxes", "numpy_T", "mT")
def _permute(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    base = node.args[0]
    x = flow.value(base)
    if x is None or not isinstance(base, Node):
        return None
    probe = torch.empty(x.shape, device="meta")
    order = _order(node, probe)
    return replace(
        x, shape=output_shape(node), tensor=None, labels=tuple(label.transpose(order) for label in x.labels)
    )


def _order(node: Node, probe: torch.Tensor) -> list[int]:
    """Where each dimension of the output comes from, found by doing it to a tensor with telling strides."""
    telling = torch.empty_strided(probe.shape, [2**k for k in range(probe.ndim)], device="meta")
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    moved = target(telling, *node.args[1:], **node.kwargs)
    return [int(stride).bit_length() - 1 for stride in moved.stride()]


@_rule("slice", "narrow")
def _slice(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    base = node.args[0]
    x = flow.value(base)
    shape = output_shape(node)
    if x is None or not isinstance(base, Node):
        return None
    dim = (args["dim"] or 0) % len(x.shape)
    labels = []
    for label in x.labels:
        if dim in dims(label) and shape[dim] != x.shape[dim]:
            flow.pin(label, f"{describe(node)} takes a part of its channels by position")
            step = args.get("step") or 1
            start = args.get("start") or 0
            start = start + x.shape[dim] if start < 0 else min(start, x.shape[dim])
            label = label.take(range(start, start + shape[dim] * step, step)[: shape[dim]], axis=dim)
        labels.append(label)
    return replace(x, shape=shape, tensor=None, labels=tuple(label for label in labels if label.size > 1))


@_rule("select")
def _select(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    base = node.args[0]
    x = flow.value(base)
    if x is None or not isinstance(base, Node):
        return None
    dim = args["dim"] % len(x.shape)
    result = flow.carry(x, x.shape, [dim], f"{describe(node)} takes one of its channels by position")
    return replace(
        result, shape=output_shape(node), labels=tuple(label.squeeze(dim) for label in result.labels)
    )


@_rule(
    "split",
    "split_with_sizes",
    "chunk",
    "unbind",
    "tensor_split",
    "unsafe_chunk",
    "unsafe_split",
    "split_copy",
)
def _split(flow: Flow, node: Node, args: dict[str, Any]) -> Any:
    x = flow.value(node.args[0])
    parts = node.meta.get("val")
    if x is None or not isinstance(parts, (list, tuple)):
        return None
    dim = (args["dim"] or 0) % len(x.shape)
    for label in x.labels:
        if dim in dims(label) and len(parts) > 1:
            flow.pin(label, f"{describe(node)} splits its channels by position")
    values = []
    start = 0
    for part in parts:
        shape = tuple(int(s) for s in part.shape)
        size = 1 if operator(node) == "unbind" else shape[dim]
        labels = [
            label.take(range(start, start + size), axis=dim) if dim in dims(label) else label
            for label in x.labels
        ]
        if operator(node) == "unbind":
            labels = [label.squeeze(dim) for label in labels]
        values.append(
            replace(x, shape=shape, tensor=None, labels=tuple(label for label in labels if label.size > 1))
        )
        start += size
    return values


@_rule("getitem")
def _getitem(flow: Flow, node: Node, args: dict[str, Any]) -> Any:
    base, index = node.args
    held = flow.raw(base) if isinstance(base, Node) else None
    if isinstance(held, list) and isinstance(index, int) and index < len(held):
        return held[index]
    return None


@_rule("cat", "concat", "concatenate", "stack")
def _cat(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    parts = flow.values(node.args[0])
    shape = output_shape(node)
    ndim = len(shape)
    dim = (args["dim"] or 0) % ndim
    if operator(node) == "stack":
        parts = [
            replace(
                p,
                shape=(*p.shape[:dim], 1, *p.shape[dim:]),
                labels=tuple(np.expand_dims(label, dim) for label in p.labels),
            )
            for p in parts
        ]
    parts = [part for part in parts if len(part.shape) == ndim]
    pieces = []
    across = []
    for part in parts:
        piece = np.full(part.shape[dim], FIXED, dtype=np.int64)
        for label in part.labels:
            if dims(label) == (dim,):
                piece = label.ravel()
            elif dim in dims(label):
                flow.pin(label, f"{describe(node)} joins it along a dimension it shares with others")
        pieces.append(piece)
        across.append(replace(part, labels=tuple(label for label in part.labels if dim not in dims(label))))
    joined = np.concatenate(pieces)
    # labels over the other dimensions must agree in every part, as in an element-wise operator over shapes equal there
    level = [
        replace(part, shape=tuple(1 if d == dim else s for d, s in enumerate(part.shape))) for part in across
    ]
    rest = flow.combine(
        level, tuple(1 if d == dim else s for d, s in enumerate(shape)), adds=True, what=describe(node)
    )
    signals = {writer: path for part in reversed(parts) for writer, path in part.signals.items()}
    own = (along(joined, dim, ndim),) if (joined >= 0).any() and len(joined) > 1 else ()
    result = Value(shape, (*own, *rest.labels), all(part.static for part in parts), None, signals)
    return result.then(Step("concat", describe(node))) if len(parts) > 1 else result


@_rule(
    "pad",
    "constant_pad_nd",
    *(f"{mode}_pad{n}d" for mode in ("reflection", "replication") for n in (1, 2, 3)),
)
def _pad(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x = flow.value(node.args[0])
    if x is None:
        return None
    ndim = len(x.shape)
    amounts = list(args.get("pad") or args.get("padding") or [])
    if any(isinstance(a, Node) for a in amounts):
        return None
    before = {ndim - 1 - k: (amounts[2 * k], amounts[2 * k + 1]) for k in range(len(amounts) // 2)}
    constant = operator(node) in ("constant_pad_nd",) or args.get("mode") in (None, "constant")
    labels = []
    for label in x.labels:
        padded = {d: before[d] for d in dims(label) if before.get(d, (0, 0)) != (0, 0)}
        if padded and (not constant or len(dims(label)) > 1 or min(min(p) for p in padded.values()) < 0):
            flow.pin(label, f"{describe(node)} pads along its channels")
            continue
        width = [padded.get(d, (0, 0)) for d in range(ndim)]
        labels.append(np.pad(label, width, constant_values=FIXED) if padded else label)
    return replace(x, shape=output_shape(node), tensor=None, labels=tuple(labels)).then(
        Step("pad", operator(node))
    )


@_rule("roll", "flip")
def _reordered(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x = flow.value(node.args[0])
    if x is None or not args.get("dims"):
        return None
    touched = [d % len(x.shape) for d in args["dims"]]
    return flow.carry(x, x.shape, touched, f"{describe(node)} reorders its channels by position")


@_rule("new_zeros", "new_ones", "new_full", "new_empty")
def _constant(flow: Flow, node: Node, args: dict[str, Any]) -> Value:
    return Value(output_shape(node), static=True)


@_rule("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like")
def _like(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x = flow.value(node.args[0])
    return None if x is None else Value(x.shape, x.labels)


@_rule("fill", "zero", "bernoulli", "uniform", "normal")
def _filled(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x = flow.value(node.args[0])
    return None if x is None else Value(x.shape, (), x.static)
