"""A captured graph for other sizes: a network whose layers are narrower, or a batch with more inputs.

A graph holds the sizes that it was captured with as literal numbers: `view(x, [32, 4, 8])`. They follow the
shapes of what operations read now. Some literals have two readings: of a width that is split in two, either
part may be the one that changed. So the graph and the model are run on the batch, and the graph is used only
if all answers are equal, to the bit.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph as FxGraph
from torch.fx import Node
from torch.utils import _pytree as pytree

from hope._util.calls import Example, as_call, evaluation, tensors_in
from hope._util.frozen_bn import as_batch_norm
from hope.trace.exporting import unchanged
from hope.trace.interpreter import Interpreter
from hope.trace.program import Captured, read_program

Sizes: TypeAlias = "tuple[int, ...]"
PARTS = 3  # readings of a size that is split


def adapted(known: Sequence[Captured], model: nn.Module, batch: Example | None) -> Captured | None:
    """A captured graph of another batch, or of a network with other widths, for this model and batch; None if
    it does not give the model's answers.
    """
    known = [one for one in known if _is_plain(one)]
    if not known or not any(map(_varies, pytree.tree_leaves(as_call(batch)))):
        return None
    with suppress(Exception), evaluation(model), torch.no_grad():  # then an export says why
        args, kwargs = _copy(as_call(batch))
        with unchanged(model), as_batch_norm(model):
            answers = tensors_in(model(*args, **kwargs))
        for captured in known:
            for part in range(PARTS):
                with suppress(Exception):  # sizes that do not fit together
                    found, got = _resized(captured, model, pytree.tree_leaves(_copy(as_call(batch))), part)
                    if len(got) == len(answers) and all(map(torch.equal, got, answers)):
                        return found
    return None


def _varies(value: Any) -> bool:
    """Whether an input has different entries: on zeros, different operators may give equal answers."""
    return isinstance(value, Tensor) and value.numel() > 1 and bool((value != value.flatten()[0]).any())


def _copy(call: Any) -> Any:
    """The same inputs: a model may write into what it is given."""
    return pytree.tree_map_only(Tensor, Tensor.clone, call)


def _is_plain(captured: Captured) -> bool:
    """Whether a graph only calls operators, some perhaps without gradients, and writes into no parameter or
    buffer.
    """
    calls = (node.target for node in captured.graph.nodes if node.op == "call_function")
    program = captured.program
    written = (one.inputs[0] for one in program if one.in_place and one.inputs)
    return all(map(_is_operator, calls)) and not any(
        program[position].operator == "tensor" for position in written
    )


def _is_operator(target: Any) -> bool:
    plain = isinstance(target, OpOverload) or target is operator.getitem
    return plain or getattr(target, "__name__", "") == "wrap_with_set_grad_enabled"


def _resized(
    captured: Captured, model: nn.Module, call: list[Any], part: int
) -> tuple[Captured, list[Tensor]]:
    """The graph with the sizes of a model and a call, and its answers.

    Args:
        part: of a size that is split in several, which of them changes.
    """
    copy, new = FxGraph(), dict[Node, Node]()
    for node in captured.graph.nodes:
        new[node] = copy.node_copy(node, new.__getitem__)
        new[node].name = node.name  # by which parameters and inputs are found; fx has others for some
    nodes, before = tuple(new.values()), {node: node.meta.get("val") for node in new.values()}
    graph, fake, answers = replace(captured.graph, nodes=nodes), FakeTensorMode(), list[Tensor]()

    def after(position: int) -> None:
        node, (value,) = nodes[position], run.value(position)
        node.meta["val"] = pytree.tree_map_only(Tensor, fake.from_tensor, value)
        if node.op == "output":
            answers.extend(tensors_in(value))
        if position + 1 < len(nodes) and nodes[position + 1].op == "call_function":
            _resize(nodes[position + 1], before, part)

    run = Interpreter(model, [Captured(graph, captured.program)], [call], after=after, in_place=True)
    run.run_in_order(len(nodes) - 1)
    return Captured(graph, read_program(graph)), answers


def _resize(node: Node, before: Mapping[Node, Any], part: int) -> None:
    """Give a node the sizes that follow from what it reads now.

    Args:
        before: node -> its value when the graph was captured, without data.
    """
    args: list[Any] = list(node.args)
    reads = [one for one in args if isinstance(one, Node)]
    old, now = [_shape(before[one]) for one in reads], [_shape(one.meta["val"]) for one in reads]
    if old == now or args[0] is not reads[0] or not isinstance(node.target, OpOverload):
        return
    name, was, here = node.target.overloadpacket.__name__, old[0], now[0]
    dim = _argument(node, "dim", 0)
    dim = dim % len(was) if isinstance(dim, int) and was else 0
    if name in ("view", "reshape", "_unsafe_view"):
        args[1] = _split(was, here, _shape(before[node]), part)
    elif name == "unflatten":
        sizes = _shape(before[node])[dim : dim + len(args[2])]  # one of them may be given as -1
        args[2] = _split(was[dim : dim + 1], here[dim : dim + 1], sizes, part)
    elif name == "expand":
        lead = len(args[1]) - len(was)
        pairs = [*[(0, 0)] * lead, *zip(was, here, strict=True)]
        args[1] = [size if size != a else b for size, (a, b) in zip(args[1], pairs, strict=True)]
    elif name in ("split", "split_with_sizes"):
        several = isinstance(args[1], (list, tuple))
        parts = [_scaled(size, was[dim], here[dim]) for size in (args[1] if several else [args[1]])]
        args[1] = parts if several else parts[0]
    elif name == "slice":
        ends = [_scaled(end, was[dim], here[dim]) if abs(end or 0) <= was[dim] else end for end in args[2:4]]
        args[2:4] = ends
    elif name in ("conv1d", "conv2d", "conv3d") and len(args) > 6:
        args[6] = here[1] // now[1][1]  # a weight says how many channels each of its groups reads
    elif _names(node)[1:2] == ["normalized_shape"]:
        args[1] = list(here[len(here) - len(args[1]) :])
    node.args = tuple(args)


def _argument(node: Node, name: str, default: Any) -> Any:
    """An argument by its name."""
    places = _names(node)
    if name in places[: len(node.args)]:
        return node.args[places.index(name)]
    return node.kwargs.get(name, default)


def _names(node: Node) -> list[str]:
    assert isinstance(node.target, OpOverload)
    return [argument.name for argument in node.target._schema.arguments]


def _shape(value: Any) -> Sizes:
    return tuple(value.shape) if isinstance(value, Tensor) else ()


def _scaled(size: int | None, was: int, now: int) -> int | None:
    """A part of a size that has changed."""
    if size is None:
        return None
    if size * now % was:
        raise ValueError(f"a part of {size} in {was} must be whole in {now}, got a fraction")
    return size * now // was


def _split(was: Sizes, now: Sizes, out: Sizes, part: int = 0) -> list[int]:
    """The shape that a tensor is viewed in, now that its own has changed.

    >>> _split((2, 5, 12), (2, 5, 8), (2, 5, 3, 4))
    [2, 5, 2, 4]
    >>> _split((2, 5, 3, 4), (7, 5, 2, 4), (10, 12))
    [35, 8]
    """
    found: list[int] = []
    i = j = 0
    while i < len(was) or j < len(out):
        first, begin = i, j
        i, j = i + 1, j + 1
        while prod(was[first:i]) != prod(out[begin:j]) or (i < len(was)) != (j < len(out)):
            less = i < len(was) and (j >= len(out) or prod(was[first:i]) < prod(out[begin:j]))
            i, j = (i + 1, j) if less else (i, j + 1)
            if i > len(was) or j > len(out):
                raise ValueError(f"{out} must be a view of {was}, got another shape")
        before, total, parts = prod(was[first:i]), prod(now[first:i]), list(out[begin:j])
        if total != before:
            places = [k for k, size in enumerate(parts) if size > 1] or [0]
            place = places[min(part, len(places) - 1)]
            rest = before // parts[place]
            if total % rest:
                raise ValueError(f"parts of {out} must divide {total}, got {rest}")
            parts[place] = total // rest
        found += parts
    return found
