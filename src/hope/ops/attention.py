"""Operators that multiply signals with one another: attention, and products of matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
from torch import nn

from hope.ops.protocols import Tracer
from hope.ops.registry import TABLE, Operator
from hope.ops.weight import Transposing
from hope.reasons import Cause
from hope.trace.labels import dims
from hope.trace.program import Operation, Shape
from hope.trace.values import Value

SHARED_HEADS = ("num_key_value_heads", "num_kv_heads")  # of keys and values: several query heads share one
CONFIG_HEADS = ("num_attention_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads")
HEADS = (
    *SHARED_HEADS, "num_heads", "num_attention_heads", "n_head", "n_heads", "nhead", "n_kv_heads", "heads",
)  # fmt: skip
HEAD_WIDTH, STREAM_WIDTH = "head_dim", "hidden_size"  # in configurations of transformers
WIDTHS = (
    "attn_dim", "key_attn_dim", "val_attn_dim", "kv_dim", "all_head_size", "split_size", "inner_dim",
    "dim_head_total",
)  # fmt: skip


def counts_heads(module: nn.Module) -> bool:
    """Whether a module has an attribute with the number of its heads."""
    return any(_counts(module, name) for name in HEADS)


def head_width(config: Any, heads: int) -> int:
    """Channels of each of a configuration's heads, 0 if it does not say.

    >>> from types import SimpleNamespace
    >>> head_width(SimpleNamespace(hidden_size=96), 12), head_width(SimpleNamespace(head_dim=16), 12)
    (8, 16)
    """
    width: int = getattr(config, HEAD_WIDTH, None) or getattr(config, STREAM_WIDTH, 0) // heads
    return width


def recount(module: nn.Module, share: Fraction) -> None:
    """Set a module's attributes to its remaining heads."""
    for name in (*HEADS, *WIDTHS):
        if _counts(module, name) and (getattr(module, name) * share).denominator == 1:
            setattr(module, name, int(getattr(module, name) * share))


class Attention(Operator):
    """Scaled dot products of queries and keys, and what they make of values. Heads come and go as a whole."""

    def holds(self, module: nn.Module, before: Mapping[str, Shape]) -> bool:
        """A table with a bias for every head: `bias_shape` ends with the number of its columns."""
        shape, was = vars(module).get("bias_shape"), [*before.values()]
        return isinstance(shape, tuple) and len(was) == 1 and shape[-1:] == was[0][1:]

    def resize(self, module: nn.Module, before: Mapping[str, Shape]) -> None:
        """As many as are left."""
        heads = module.get_parameter(*before).shape[-1]
        setattr(module, "bias_shape", (*vars(module)["bias_shape"][:-1], heads))  # noqa: B010

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """Each head by itself; channels within a head, or along the sequence, are pinned. Without heads,
        channels of values pass.
        """
        args, what = operation.arguments, str(operation)
        query, key, value = (flow.value(args.get(name)) for name in ("query", "key", "value"))
        if query is None or key is None or value is None:
            return None
        last = len(value.shape) - 1
        plain = [label for label in value.labels if dims(label) == (last,)]
        value = value.moved(value.shape, [one for one in value.labels if dims(one) != (last,)])
        parts = [
            _without(flow, query, [-1], what), _without(flow, key, [-2, -1], what),
            _without(flow, value, [-2, -1], what),
        ]  # fmt: skip
        if args.get("enable_gqa"):
            parts = [_repeated(part, len(query.shape) - 3, query.shape[-3]) for part in parts]
        mask = flow.value(args.get("attn_mask"))
        if mask is not None:
            wide = (1,) * (len(query.shape) - len(mask.shape)) + mask.shape
            kept = _without(flow, mask, [-2, -1], what)
            parts.append(kept.moved((*wide[:-2], 1, 1), kept.labels))
        result = flow.combine(parts, operation.output, adds=False, what=what)
        signals = {**result.signals, **value.signals}
        result = replace(result, labels=(*result.labels, *plain), signals=signals)
        return result.then("attention", what)


def _counts(module: nn.Module, name: str) -> bool:
    value = vars(module).get(name)
    return isinstance(value, int) and not isinstance(value, bool) and value > 1


def _without(flow: Tracer, x: Value, touched: Sequence[int], what: str) -> Value:
    """A value that one result depends on all of in some dimensions, in the form of one place of them."""
    over = {d % len(x.shape) for d in touched if -d <= len(x.shape)}
    kept = flow.carry(x, x.shape, over, Cause.MIXED.at(what))
    return kept.moved(tuple(1 if d in over else size for d, size in enumerate(x.shape)), kept.labels)


def _repeated(x: Value, dim: int, heads: int) -> Value:
    """Heads of keys and values, each as many times as there are queries for it."""
    times = heads // x.shape[dim]
    labels = [np.repeat(one, times, axis=dim) if dim in dims(one) else one for one in x.labels]
    return x.moved((*x.shape[:dim], heads, *x.shape[dim + 1 :]), labels)


class AttentionProduct(Transposing):
    """A product of two matrices, of which one is a parameter."""

    def values(self, flow: Tracer, operation: Operation) -> tuple[Value | None, Value | None, Value | None]:
        """The two."""
        first, second = list(operation.arguments.values())[:2]
        return flow.value(first), flow.value(second), None

    def fits(self, x: Value, weight: Value) -> bool:
        """A signal times a parameter."""
        return not x.static and weight.tensor is not None and len(weight.shape) == 2 and len(x.shape) > 1

    form = Operator.form  # not known


class BatchedMatmul(AttentionProduct):
    """A product of matrices: of a signal and a parameter, or of two signals, batch by batch."""

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """Between two signals, those of one batch come and go together; what is summed over is kept."""
        first, second = (flow.value(one) for one in list(operation.arguments.values())[:2])
        if first is None or second is None or first.static or second.static:
            return super().channels(flow, operation)
        what = str(operation)
        if min(len(first.shape), len(second.shape)) < 3:
            return None
        first, second = _without(flow, first, [-1], what), _without(flow, second, [-2], what)
        parts = [_rows(flow, first, -2), _rows(flow, second, -1)]
        return flow.combine(parts, operation.output, adds=False, what=what).then("attention", what)


def _rows(flow: Tracer, x: Value, dim: int) -> Value:
    """Channels that stand both in a batch and along one of its dimensions come and go with the batch."""
    own = dim % len(x.shape)
    labels = [flow.bundle(one, [own]) if len(dims(one)) > 1 else one for one in x.labels]
    return x.moved(x.shape, labels)


TABLE.update({"mm": AttentionProduct(), "matmul": BatchedMatmul(), "bmm": BatchedMatmul()})
TABLE["scaled_dot_product_attention"] = Attention()
