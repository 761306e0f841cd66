"""Where a call holds its inputs: in the rows of its tensors, or in the entries of its lists."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hope._util.calls import Example, as_call, evaluation
from hope.errors import InvalidExample, first_line

# rows: every tensor has one input per row; lists: every list of tensors has one input per entry, and other
# tensors one per row; plain: the same as rows, but lists, tuples and dicts are left as they are
Batching: TypeAlias = Literal["rows", "lists", "plain"]
EVERY: tuple[Batching, ...] = ("rows", "lists", "plain")


@dataclass(frozen=True)
class Nesting:
    """How the values of a call are nested."""

    spec: pytree.TreeSpec
    stacked: tuple[type | None, ...]  # of each value, the kind of list whose entries it has as its rows


def flatten(example: Example | None, batching: Batching = "rows") -> tuple[list[Any], Nesting]:
    """The values of a call, keyword inputs by their names in order, and how they are nested. Where lists hold
    inputs, each is one tensor with their entries as rows.

    >>> values, form = flatten(([torch.zeros(3, 8, 8), torch.zeros(3, 8, 8)],), "lists")
    >>> [tuple(value.shape) for value in values]
    [(2, 3, 8, 8)]
    >>> [tuple(one.shape) for one in unflatten(values, form)[0][0]]
    [(3, 8, 8), (3, 8, 8)]
    """
    args, kwargs = as_call(example)
    kwargs = {name: kwargs[name] for name in sorted(kwargs)}
    whole = {id(args), id(kwargs)}
    top = {id(value) for value in (*args, *kwargs.values())}

    def stops(value: Any) -> bool:
        if batching == "plain":
            return id(value) in top
        return batching == "lists" and id(value) not in whole and _is_list(value)

    leaves, spec = pytree.tree_flatten((args, kwargs), is_leaf=stops)
    lists = [batching == "lists" and _is_list(value) for value in leaves]
    kinds = tuple(type(value) if is_list else None for value, is_list in zip(leaves, lists, strict=True))
    values = [
        torch.stack(list(value)) if is_list else value for value, is_list in zip(leaves, lists, strict=True)
    ]
    return values, Nesting(spec, kinds)


def unflatten(values: Sequence[Any], form: Nesting) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call with other values."""
    pairs = zip(values, form.stacked, strict=True)
    leaves = [value if kind is None else kind(value.unbind()) for value, kind in pairs]
    call: tuple[tuple[Any, ...], dict[str, Any]] = pytree.tree_unflatten(leaves, form.spec)
    return call


def as_example(values: Sequence[Any], form: Nesting) -> tuple[Any, ...] | dict[str, Any]:
    """The same as one example."""
    args, kwargs = unflatten(values, form)
    return kwargs or args


def batching_of(model: nn.Module, example: Example | None) -> Batching:
    """Where a model's calls hold their inputs: found by giving it another number of them.

    Raises:
        InvalidExample: it runs on no other number of inputs.
    """
    args, kwargs = as_call(example)
    if not any(_nests(value) for value in (*args, *kwargs.values())):
        return "rows"
    failures = []
    for batching in EVERY:
        values, form = flatten(example, batching)
        tensors = [v for v in values if _has_rows(v)]
        if not tensors or (batching == "lists" and not any(form.stacked)):
            continue
        rows = next(n for n in count(2) if all(n != len(v) for v in tensors))
        more = [v[:1].expand(rows, *v.shape[1:]).clone() if _has_rows(v) else v for v in values]
        call = unflatten(more, form)
        try:
            with evaluation(model), torch.no_grad():
                model(*call[0], **call[1])
        except Exception as error:  # whatever its forward raises: then its inputs are elsewhere
            failures.append(first_line(error))
            continue
        return batching
    raise InvalidExample(
        "the model must take any number of inputs for synthetic ones, as the rows of its tensors or the "
        f"entries of its lists, got {type(model).__name__}, which runs on the example's number only "
        f"({failures[0] if failures else 'no tensor has rows'}): compress the sub-module that does the work "
        "(model.backbone = hope.encode(model.backbone, x, ...).model)"
    )


def _has_rows(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0


def _nests(value: Any) -> bool:
    """Whether tensors are inside a list, a tuple or a dict."""
    return not isinstance(value, Tensor) and any(isinstance(v, Tensor) for v in pytree.tree_leaves(value))


def _is_list(value: Any) -> bool:
    """Whether it has tensors of one shape, which can be one input each."""
    if type(value) not in (list, tuple) or not value or isinstance(value, Mapping):
        return False
    first = value[0]
    return isinstance(first, Tensor) and all(
        isinstance(v, Tensor) and (v.shape, v.dtype) == (first.shape, first.dtype) for v in value
    )
