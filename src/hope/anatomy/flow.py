"""Follow every channel through the graph: who writes it, who reads it, what ties it, what holds it fast.

One mechanism does it all. Every dimension of every parameter has an id per place. Operators move ids (views),
tie them (an add, a BN, a grouped convolution), or pin them (whatever mixes channels without weights). Ids
that end up tied are one removable unit, and the places where they stand in the parameters are exactly what
must be cut to remove it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

from hope.anatomy.labels import FIXED, Ids, Shape, Ties, dims, pad_left
from hope.anatomy.reasons import Cause, Reason
from hope.graph.capture import Graph, module_path, shape_of


class Step(NamedTuple):
    """One channel-wise operation between a neuron's filter and the weights that read it.

    Attributes:
        kind: "bn", "activation", "pool", "depthwise", "gate", "scale", "add", "concat", "flatten", "resize",
            "pad" or "norm".
        name: the module (for what has parameters) or the operator.
        values: its numbers, e.g. (eps,) of a BN or (slope,) of a leaky ReLU.
        tensor: the parameter it uses, where that is not told by the module (the slopes of a PReLU).
    """

    kind: str
    name: str
    values: tuple[float, ...] = ()
    tensor: str = ""


@dataclass(frozen=True)
class Value:
    """What is known of one tensor: where channels stand in it and how they came there.

    Attributes:
        labels: label arrays, no two over the same dimensions.
        static: computed from parameters and constants alone.
        tensor: the name, if this is a parameter or buffer itself.
        signals: weight that wrote a channel found here -> what was done to it since.
        origins: the parameters and buffers that this is computed from, if from nothing else.
    """

    shape: Shape
    labels: tuple[Ids, ...] = ()
    static: bool = False
    tensor: str | None = None
    signals: Mapping[str, tuple[Step, ...]] = field(default_factory=dict)
    origins: tuple[str, ...] = ()

    def then(self, step: Step) -> Value:
        """The same value with one more step in every signal."""
        return replace(self, signals={writer: (*path, step) for writer, path in self.signals.items()})


class Flow:
    """The result of following one or more graphs of the same model (evaluation, and training where it
    differs).
    """

    def __init__(self, shapes: Mapping[str, Shape]) -> None:
        self.shapes = shapes
        self.ties = Ties()
        self.ids: dict[tuple[str, int], Ids] = {}
        self.roles: dict[tuple[str, int], str] = {}
        self.pins: list[tuple[Ids, Reason]] = []
        self.mixed: list[tuple[Ids, Reason]] = []
        self.added: list[tuple[Ids, str]] = []
        self.reads: dict[str, dict[str, tuple[Step, ...]]] = {}
        self.positions: Counter[str] = Counter()
        self.order: dict[str, int] = {}
        self.computed: dict[str, tuple[int, Reason]] = {}
        self.uses: Counter[str] = Counter()
        self._env: dict[Node, Any] = {}
        self._evaluated: dict[Node, Any] = {}

    # ---- ids of parameters ---------------------------------------------------------------------------------

    def tensor_ids(self, tensor: str, dim: int) -> Ids:
        """The ids of one dimension of a parameter or buffer, made when first asked for."""
        key = (tensor, dim)
        if key not in self.ids:
            self.ids[key] = self.ties.fresh(self.shapes[tensor][dim])
        return self.ids[key]

    def mark(self, tensor: str, dim: int, role: str) -> Ids:
        """Note what a dimension of a weight does ("out", "in", "through") and return its ids."""
        self.roles[(tensor, dim)] = role
        self.order.setdefault(tensor, len(self.order))
        return self.tensor_ids(tensor, dim)

    def pin(self, ids: Ids, reason: Reason, *, mixes: bool = True) -> None:
        """Hold ids fast: they can never be removed, for this reason.

        Args:
            ids: whom.
            reason: why.
            mixes: whether one channel's signal may reach another's there (False where channels stay apart and
                only cannot be cut).
        """
        ids = ids[ids >= 0]
        if ids.size:
            self.pins.append((ids, reason))
            if mixes:
                self.mixed.append((ids, reason))

    def pin_all(self, values: Iterable[Value], reason: Reason, *, mixes: bool = True) -> None:
        """Hold fast whatever stands in these values."""
        for value in values:
            for label in value.labels:
                self.pin(label, reason, mixes=mixes)

    # ---- the walk ------------------------------------------------------------------------------------------

    def walk(self, graph: Graph, rules: Callable[[Flow, Node], Any]) -> frozenset[str]:
        """Follow one graph with the given operator rules; returns the parameters and buffers that it uses.

        A training graph adds what only training reads; counts (uses, positions) are those of evaluation.
        """
        self._env = {}
        positions = self.positions.copy()
        used: Counter[str] = Counter()
        for node in graph.nodes:
            if node.op == "placeholder":
                tensor = graph.tensors.get(node.name)
                self._env[node] = self._placeholder(node, tensor)
                if tensor is not None and node.users:
                    used[tensor] = len(node.users)
            elif node.op == "get_attr":
                self._env[node] = Value(shape_of(node) or (), static=True)
            elif node.op == "call_function":
                self._env[node] = rules(self, node)
                if is_in_place(node) and isinstance(node.args[0], Node):
                    self._env[node.args[0]] = self._env[node]
            elif node.op == "output":
                self.pin_all(self.values(node.args), Cause.OUTPUT.at(), mixes=False)
        if graph.training:
            self.positions = positions
        else:
            self.uses, self._evaluated = used, self._env
        return frozenset(used)

    def _placeholder(self, node: Node, tensor: str | None) -> Value:
        shape = shape_of(node) or ()
        if tensor is None or tensor not in self.shapes:
            return Value(shape, static=tensor is not None)
        labels = []
        for dim, size in enumerate(shape):
            if size > 1:
                spread = [1] * len(shape)
                spread[dim] = size
                labels.append(self.tensor_ids(tensor, dim).reshape(spread))
        return Value(shape, tuple(labels), static=True, tensor=tensor, origins=(tensor,))

    def value(self, node: Any) -> Value | None:
        """The value of one node, None for what is not a tensor."""
        found = self._env.get(node) if isinstance(node, Node) else None
        return found if isinstance(found, Value) else None

    def raw(self, node: Node) -> Any:
        """Whatever a node evaluates to: a value, or a list of values."""
        return self._env.get(node)

    def values(self, args: Any) -> list[Value]:
        """All tensor values among (nested) arguments."""
        found: list[Value] = []

        def visit(item: Any) -> None:
            if isinstance(item, Value):
                found.append(item)
            elif isinstance(item, Node):
                visit(self._env.get(item))
            elif isinstance(item, Mapping):
                for inner in item.values():
                    visit(inner)
            elif isinstance(item, (list, tuple)):
                for inner in item:
                    visit(inner)

        visit(args)
        return found

    def channel_dim(self, node: Node) -> int:
        """The dimension of a node's value that channels stand in, as far as evaluation shows."""
        value = self._evaluated.get(node)
        ndim = len(shape_of(node) or ())
        if not isinstance(value, Value):
            return min(1, ndim - 1)
        single = [label for label in value.labels if len(dims(label)) == 1]
        written = [
            self.ids[key] for key, role in self.roles.items() if role == "out" and key[0] in value.signals
        ]
        fresh = [label for label in single if any(np.isin(ids, label).any() for ids in written)]
        return next((dims(label)[0] for label in (*fresh, *single)), min(1, ndim - 1))

    # ---- the two mechanisms that nearly all operators are made of ------------------------------------------

    def carry(self, value: Value, shape: Shape, touched: Iterable[int], reason: Reason) -> Value:
        """An operator that works along some dimensions: labels elsewhere pass, labels there are pinned and
        dropped.
        """
        touched = set(touched)
        kept = []
        for label in value.labels:
            if touched & set(dims(label)):
                self.pin(label, reason)
            else:
                kept.append(label)
        return Value(shape, tuple(kept), value.static, None, value.signals if kept else {}, value.origins)

    def combine(self, values: Sequence[Value], shape: Shape, *, adds: bool, what: str) -> Value:
        """An element-wise operator with broadcasting: channels at the same place are tied."""
        ndim = len(shape)
        held: dict[tuple[int, ...], list[tuple[Value, Ids]]] = {}
        for value in values:
            for label in value.labels:
                padded = pad_left(label, ndim)
                held.setdefault(dims(padded), []).append((value, padded))
        result = []
        for over, holders in held.items():
            label = holders[0][1]
            for value in values:
                sizes = (1,) * (ndim - len(value.shape)) + tuple(value.shape)
                if not any(value is holder for holder, _ in holders) and any(sizes[d] != 1 for d in over):
                    for _, other in holders:
                        self.pin(other, Cause.UNTRACKED.at(what), mixes=False)
            for (first, a), (second, b) in pairwise(holders):
                self._tie(a, b, what, adds and not first.static and not second.static)
            for _, other in holders[1:]:
                label = np.where(label == FIXED, other, label)  # held fast, but still seen by its readers
            result.append(label)
        runtime = [value for value in values if not value.static]
        signals: dict[str, tuple[Step, ...]] = {}
        for value in runtime:
            for writer, path in value.signals.items():
                signals.setdefault(writer, path)
        origins = () if runtime else origins_of(values)
        return Value(shape, tuple(result), not runtime, None, signals if result else {}, origins)

    def _tie(self, a: Ids, b: Ids, what: str, adds: bool) -> None:
        both = (a >= 0) & (b >= 0)
        differ = both & (a != b)
        self.ties.tie(a[differ], b[differ])
        if adds and differ.any():
            self.added.append((a[differ], what))
        reason = Cause.COMBINED.at(what)
        self.pin(a[(a >= 0) & (b == FIXED)], reason, mixes=False)
        self.pin(b[(b >= 0) & (a == FIXED)], reason, mixes=False)


def origins_of(values: Iterable[Value]) -> tuple[str, ...]:
    """All parameters and buffers that these values are computed from."""
    return tuple(dict.fromkeys(name for value in values for name in value.origins))


def operator(node: Node) -> str:
    """The bare name of a node's operator, in-place or not: "add" for `aten.add_.Tensor`."""
    target = node.target
    packet = getattr(target, "overloadpacket", None)
    name = packet.__name__ if packet is not None else getattr(target, "__name__", str(target))
    return str(name[:-1]) if name.endswith("_") and not name.endswith("__") else str(name)


def is_in_place(node: Node) -> bool:
    """Whether a node's operator writes into its first argument."""
    target = node.target
    return (
        isinstance(target, torch._ops.OpOverload)
        and target._schema.is_mutable
        and bool(target._schema.arguments)
        and (
            target._schema.arguments[0].alias_info is not None
            and target._schema.arguments[0].alias_info.is_write
        )
    )


def arguments(node: Node) -> dict[str, Any]:
    """A node's arguments by name, defaults included."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return {}
    bound: dict[str, Any] = {}
    for position, argument in enumerate(target._schema.arguments):
        if position < len(node.args):
            bound[argument.name] = node.args[position]
        elif argument.name in node.kwargs:
            bound[argument.name] = node.kwargs[argument.name]
        else:
            bound[argument.name] = argument.default_value if argument.has_default_value() else None
    return bound


def describe(node: Node) -> str:
    """An operator and where it is, in words: "softmax in layer1.attention"."""
    path = module_path(node)
    return f"{operator(node)} in {path}" if path else operator(node)


def output_shape(node: Node) -> Shape:
    """The shape of a node's (first) output, () if unknown."""
    value = node.meta.get("val")
    if isinstance(value, (list, tuple)):
        value = next((item for item in value if isinstance(item, Tensor)), None)
    return (
        tuple(int(s) for s in value.shape)
        if isinstance(value, Tensor) and all(isinstance(s, int) for s in value.shape)
        else ()
    )


def module_of(tensor: str) -> str:
    """The module that holds a parameter; the parameter's own name if it is no plain weight or bias."""
    owner, _, attribute = tensor.rpartition(".")
    return owner if owner and attribute in ("weight", "bias", "running_mean", "running_var") else tensor
