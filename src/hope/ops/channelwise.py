"""Operators that treat every channel by itself, or normalise channels together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from hope.anatomy.flow import Flow, Step, Value, describe, module_of, operator, output_shape
from hope.anatomy.labels import along, dims
from hope.anatomy.reasons import Cause
from hope.ops.registry import rule


def _numbers(args: dict[str, Any]) -> tuple[float, ...]:
    return tuple(float(v) for v in args.values() if isinstance(v, (int, float)) and not isinstance(v, bool))


@rule("batch_norm", "instance_norm", "_native_batch_norm_legit_no_training", "prelu")
def _per_channel(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    """One number per channel in dimension 1: element-wise, with the parameters laid along it."""
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
    module = next((module_of(p.tensor) for p in parameters if p.tensor is not None), name)
    if name == "prelu":
        return result.then(Step("activation", "prelu", (), parameters[0].tensor or ""))
    eps = args.get("eps")
    return result.then(
        Step("norm" if name == "instance_norm" else "bn", module, (float(eps),) if eps is not None else ())
    )


@rule("layer_norm", "rms_norm")
def _layer_norm(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x = flow.value(args["input"])
    if x is None:
        return None
    last = range(len(x.shape) - len(args["normalized_shape"]), len(x.shape))
    return _normalised(flow, node, x, set(last))


@rule("group_norm")
def _group_norm(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x = flow.value(args["input"])
    return None if x is None else _normalised(flow, node, x, set(range(1, len(x.shape))))


@rule("softmax", "log_softmax", "_softmax", "_log_softmax")
def _softmax(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x = flow.value(next(iter(args.values())))
    return None if x is None else _normalised(flow, node, x, {args["dim"] % len(x.shape)})


def _normalised(flow: Flow, node: Node, x: Value, over: set[int]) -> Value:
    """Channels normalised together depend on one another; the labels stay, so that streams remain visible."""
    for label in x.labels:
        if over & set(dims(label)):
            flow.pin(label, Cause.NORMALISED.at(describe(node)))
    return replace(x, tensor=None).then(Step("norm", describe(node)))


_PASS = (
    "dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout", "contiguous", "clone", "alias",
    "detach",     "lift_fresh_copy", "to", "_to_copy", "type_as", "_assert_tensor_metadata",
)  # fmt: skip


@rule(*_PASS)
def _pass(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x = flow.value(node.args[0]) if node.args else None
    return None if x is None else replace(x, tensor=None)


@rule("hardtanh", "relu6")
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


@rule(
    "pointwise",
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
        module = next((module_of(value.tensor) for value in values if value.tensor), name)
        return result.then(Step("scale" if product else "shift", module))
    return result.then(Step("activation", name, _numbers(args)))


@rule(
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
    result = flow.carry(x, output_shape(node), range(ndim - n, ndim), Cause.POOLED.at(describe(node)))
    result = result.then(Step("pool", "max" if "max" in name else "average"))
    return [result, Value(result.shape)] if isinstance(node.meta.get("val"), (list, tuple)) else result


@rule("upsample")
def _resize(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x = flow.value(node.args[0])
    if x is None:
        return None
    return flow.carry(x, output_shape(node), range(2, len(x.shape)), Cause.RESIZED.at(describe(node))).then(
        Step("resize", operator(node))
    )


@rule(
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
    result = flow.carry(x, x.shape, reduced, Cause.SUMMED.at(describe(node)))
    if not args.get("keepdim"):
        gone = tuple(reduced)
        result = replace(result, labels=tuple(label.squeeze(gone) for label in result.labels))
    result = replace(result, shape=output_shape(node)).then(
        Step("pool", "average" if operator(node) in ("mean", "sum") else operator(node))
    )
    many = node.meta.get("val")
    return [result] * len(many) if isinstance(many, (list, tuple)) else result
