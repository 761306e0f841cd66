"""Operators that move, split and join: views, concatenations, padding, constants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from hope.anatomy.flow import Flow, Step, Value, describe, operator, output_shape
from hope.anatomy.labels import FIXED, Ids, along, dims, reshape
from hope.anatomy.reasons import Cause
from hope.ops.registry import rule


@rule(
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
            flow.pin(moved, Cause.SPLIT_INTO_GROUPS.at(describe(node)))
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
        flow.pin(labels[position], Cause.FOLDED.at(describe(node)))
    return tuple(label for position, label in enumerate(labels) if position not in clash)


@rule("permute", "transpose", "t", "movedim", "swapaxes", "numpy_T", "mT")
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


@rule("slice", "narrow")
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
            flow.pin(label, Cause.PART_TAKEN.at(describe(node)))
            step = args.get("step") or 1
            start = args.get("start") or 0
            start = start + x.shape[dim] if start < 0 else min(start, x.shape[dim])
            label = label.take(range(start, start + shape[dim] * step, step)[: shape[dim]], axis=dim)
        labels.append(label)
    return replace(x, shape=shape, tensor=None, labels=tuple(label for label in labels if label.size > 1))


@rule("select")
def _select(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    base = node.args[0]
    x = flow.value(base)
    if x is None or not isinstance(base, Node):
        return None
    dim = args["dim"] % len(x.shape)
    result = flow.carry(x, x.shape, [dim], Cause.ONE_TAKEN.at(describe(node)))
    return replace(
        result, shape=output_shape(node), labels=tuple(label.squeeze(dim) for label in result.labels)
    )


@rule(
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
            flow.pin(label, Cause.SPLIT.at(describe(node)))
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


@rule("getitem")
def _getitem(flow: Flow, node: Node, args: dict[str, Any]) -> Any:
    base, index = node.args
    held = flow.raw(base) if isinstance(base, Node) else None
    if isinstance(held, list) and isinstance(index, int) and index < len(held):
        return held[index]
    return None


@rule("cat", "concat", "concatenate", "stack")
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
                flow.pin(label, Cause.JOINED.at(describe(node)))
        pieces.append(piece)
        across.append(replace(part, labels=tuple(label for label in part.labels if dim not in dims(label))))
    joined = np.concatenate(pieces)
    # labels over the other dimensions must agree in every part, as in an element-wise operator
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


@rule(
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
            flow.pin(label, Cause.PADDED.at(describe(node)))
            continue
        width = [padded.get(d, (0, 0)) for d in range(ndim)]
        labels.append(np.pad(label, width, constant_values=FIXED) if padded else label)
    return replace(x, shape=output_shape(node), tensor=None, labels=tuple(labels)).then(
        Step("pad", operator(node))
    )


@rule("roll", "flip")
def _reordered(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x = flow.value(node.args[0])
    if x is None or not args.get("dims"):
        return None
    touched = [d % len(x.shape) for d in args["dims"]]
    return flow.carry(x, x.shape, touched, Cause.REORDERED.at(describe(node)))


@rule("new_zeros", "new_ones", "new_full", "new_empty")
def _constant(flow: Flow, node: Node, args: dict[str, Any]) -> Value:
    return Value(output_shape(node), static=True)


@rule("zeros_like", "ones_like", "full_like", "empty_like", "rand_like", "randn_like")
def _like(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x = flow.value(node.args[0])
    return None if x is None else Value(x.shape, x.labels)


@rule("fill", "zero", "bernoulli", "uniform", "normal")
def _filled(flow: Flow, node: Node, args: dict[str, Any]) -> Value | None:
    x = flow.value(node.args[0])
    return None if x is None else Value(x.shape, (), x.static)
