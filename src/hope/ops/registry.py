"""The table of operators: each name has one rule, and whatever has none pins what it reads.

A rule gets the flow, the node and its arguments by name, and returns the node's value (or list of
values). Returning None means "not this case": the operator then counts as unknown. Cautious, never wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch.fx import Node

from hope.anatomy.flow import Flow, Value, arguments, describe, operator, origins_of, output_shape
from hope.anatomy.reasons import Cause
from hope.graph.capture import module_path

Rule: TypeAlias = Callable[[Flow, Node, dict[str, Any]], Any]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of these operators (named without the underscore of in-place ones)."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def apply(flow: Flow, node: Node) -> Any:
    """The value of a node under the rule of its operator."""
    name = operator(node)
    found = RULES.get(name)
    if found is None and "upsample" in name:
        found = RULES["upsample"]
    if (
        found is None
        and isinstance(node.target, torch._ops.OpOverload)
        and torch.Tag.pointwise in node.target.tags
    ):
        found = RULES["pointwise"]
    values = flow.values([node.args, node.kwargs])
    if found is not None and all(0 not in value.shape for value in values):
        result = found(flow, node, arguments(node))
        if result is not None:
            return result
    reason = Cause.UNKNOWN_OPERATOR.at(describe(node))
    flow.pin_all(values, reason)
    static = bool(values) and all(value.static for value in values)
    weights = [value for value in values if value.static and len(value.shape) > 1 and value.labels]
    if weights and not static:
        for name in [module_path(node)] if module_path(node) else origins_of(weights):
            flow.computed.setdefault(name, ((output_shape(node) or (1,))[-1], reason))
    return _unknown(node, static, origins_of(values) if static else ())


def _unknown(node: Node, static: bool, origins: tuple[str, ...]) -> Any:
    value = node.meta.get("val")
    if isinstance(value, (list, tuple)):
        tensors = [item if isinstance(item, torch.Tensor) else None for item in value]
        return [None if item is None else Value(tuple(item.shape), static=static) for item in tensors]
    return Value(output_shape(node), static=static, origins=origins)
