"""Operators that reduce: pools, means, sums; and those that resize."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hope.ops.protocols import Tracer
from hope.ops.registry import POINTWISE, TABLE, Form, MomentPreserving, Operator, Reads
from hope.reasons import Cause
from hope.trace.labels import dims
from hope.trace.program import Operation, Ref
from hope.trace.values import Value


class Pool(MomentPreserving):
    """A pool over the last dimensions. Moments are taken to be those at one place.

    Args:
        kind: "max", "average" or another.
    """

    def __init__(self, kind: str, spatial: int) -> None:
        self.kind, self.spatial = kind, spatial

    def channels(self, flow: Tracer, operation: Operation) -> Any:
        """Channels along a pooled dimension are kept."""
        x = flow.value(operation.first)
        if x is None:
            return None
        ndim = len(x.shape)
        pooled = range(ndim - self.spatial, ndim)
        result = flow.carry(x, operation.output, pooled, Cause.POOLED.at(str(operation)))
        result = result.then("pool", "max" if self.kind == "max" else "average")
        return [result, Value(result.shape)] if operation.several else result

    def form(self, operation: Operation, reads: Reads) -> Form | None:
        """Channels stay in their dimension; the moments of other norms are not known."""
        return super().form(operation, reads) if self.kind in ("max", "average") else None


class Reduction(MomentPreserving):
    """A mean, sum, extreme or norm over some dimensions."""

    def channels(self, flow: Tracer, operation: Operation) -> Any:
        """Channels along a reduced dimension are kept."""
        x, over = flow.value(operation.first), operation.arguments.get("dim")
        if x is None or "dim" not in operation.arguments or isinstance(over, Ref):
            two = len(flow.values(operation.arguments)) == 2  # the larger of two values, place by place
            return TABLE[POINTWISE].channels(flow, operation) if two else None
        ndim = len(x.shape)
        if ndim == 0:  # a number has no channels; torch takes dim=0 and dim=-1 of it
            return None
        every = range(ndim) if over is None or over == [] else [over] if isinstance(over, int) else over
        reduced = tuple(d % ndim for d in every)
        inside = [label for label in x.labels if {*dims(label)} & {*reduced}]
        if operation.position in flow.squares and all(dims(label) == reduced for label in inside):
            for label in inside:
                why = Cause.NORMALISED.at(str(operation))
                flow.normalise(label, why, flow.squares[operation.position])
            return Value(operation.output, tuple(one for one in x.labels if not {*dims(one)} & {*reduced}))
        result = flow.carry(x, x.shape, reduced, Cause.SUMMED.at(str(operation)))
        if not operation.arguments.get("keepdim"):
            result = replace(result, labels=tuple(label.squeeze(reduced) for label in result.labels))
        name = "average" if operation.operator in ("mean", "sum") else operation.operator
        result = replace(result, shape=operation.output).then("pool", name)
        return [result] * len(operation.shapes) if operation.several else result

    def form(self, operation: Operation, reads: Reads) -> Form | None:
        """Only a mean over other dimensions than the channels' is followed."""
        (x,), over = reads, operation.arguments.get("dim")
        if operation.operator != "mean" or not over or x.channel is None:
            return None
        reduced = [d % len(x.shape) for d in over]
        if x.channel in reduced:
            return None
        before = 0 if operation.arguments.get("keepdim") else sum(d < x.channel for d in reduced)
        return Form(operation, self, (x.position,), x.channel - before)


class Resize(Operator):
    """Interpolation in space."""

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """Channels along a resized dimension are kept."""
        x = flow.value(operation.first)
        if x is None:
            return None
        result = flow.carry(x, operation.output, range(2, len(x.shape)), Cause.RESIZED.at(str(operation)))
        return result.then("resize", operation.operator)


KINDS = {"max": "max", "avg": "average", "adaptive_avg": "average", "adaptive_max": "max", "lp": "norm"}
TABLE.update(
    {
        f"{name}_pool{n}d{tail}": Pool(kind, n)
        for name, kind in KINDS.items()
        for n in (1, 2, 3)
        for tail in ("", "_with_indices")
    }
)
TABLE.update(
    dict.fromkeys(
        ("mean", "sum", "amax", "amin", "max", "min", "var", "std", "norm", "linalg_vector_norm", "logsumexp",
         "argmax", "var_mean"),
        Reduction(),
    )
)  # fmt: skip
UPSAMPLE = (
    "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d", "_upsample_nearest_exact1d",
    "_upsample_nearest_exact2d", "_upsample_nearest_exact3d", "upsample_linear1d", "upsample_bilinear2d",
    "upsample_trilinear3d", "upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa",
    "_upsample_lanczos2d_aa", "__upsample", "__upsample_bilinear", "__upsample_nearest",
)  # fmt: skip
TABLE.update(dict.fromkeys(UPSAMPLE, Resize()))
