"""Run a captured network on other inputs, and listen to what its operations return.

What a forward pass computes between its modules (a functional activation, a module that is used twice) has no
hook. Its captured graph has a name for every result. A graph is made for the shapes of its inputs, so there
is one for each kind of batch. Batches are run one by one, and a result is let go when nobody reads it any
more (`execute` has all batches at an operation at once, to change what comes next).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import map_arg

from hope._util.calls import Example, as_call
from hope.errors import InvalidExample
from hope.trace.capture import Graph, capture
from hope.trace.interpreter import flat, signature
from hope.trace.program import Program, read_program, readers_of

Observer = Callable[[str, Tensor], None]


class Replay:
    """A network that can be run and listened to.

    Args:
        model: the network.
        program: its program, whose operations are listened to by their names.
    """

    def __init__(self, model: nn.Module, program: Program) -> None:
        self._model = model
        self._program = program
        self._captured: dict[Any, tuple[Graph, dict[str, str]]] = {}

    @torch.no_grad()
    def run(self, batch: Example, wanted: Collection[str], hear: Observer) -> None:
        """Run it in evaluation on one batch, as far as anything is wanted; `hear` is given the wanted
        operations' results as they are made.

        Raises:
            InvalidExample: the model cannot run on the batch, or does something else there than on its
                example.
        """
        call = flat(batch)
        key = (*signature(call), *as_call(batch)[1])  # named inputs may come in any order
        if key not in self._captured:
            graph = capture(self._model, batch, progress=False)
            self._captured[key] = graph, _same(self._program, read_program(graph))
        graph, there = self._captured[key]
        if any(name not in there for name in wanted):
            raise InvalidExample("the model does something else on it than on its example")
        asked = {there[name]: name for name in wanted}
        last = {other: node for node in graph.nodes for other in node.all_input_nodes}
        values: dict[Node, Any] = self._given(graph, call)
        nodes = list(graph.nodes)
        end = max((place + 1 for place, node in enumerate(nodes) if node.name in asked), default=0)
        for node in nodes[:end]:
            if node.op == "call_function":
                args, kwargs = (
                    map_arg(node.args, values.__getitem__),
                    map_arg(node.kwargs, values.__getitem__),
                )
                assert callable(node.target)
                values[node] = result = node.target(*args, **kwargs)
                if node.name in asked and isinstance(result, Tensor):
                    hear(asked[node.name], result)  # now: later operations may write into it
            for other in node.all_input_nodes:
                if last[other] is node:
                    del values[other]

    def _given(self, graph: Graph, call: list[Any]) -> dict[Node, Any]:
        """What is there before anything is computed: parameters, buffers, inputs and constants."""
        every = dict([*self._model.named_parameters(), *self._model.named_buffers()])
        given: Mapping[str, Any] = {
            **graph.constants,
            **{name: every[tensor] for name, tensor in graph.tensors.items() if tensor in every},
            **dict(zip(graph.inputs, call, strict=True)),
        }
        return {node: given[node.name] for node in graph.nodes if node.name in given}


def _same(known: Program, there: Program) -> dict[str, str]:
    """Names of operations -> of the same ones in another program of the network: with a mask, or without, it
    may have more of them, and then names are not the same.
    """
    first, second = _what(known), _what(there)
    blocks: Iterable[tuple[int, int, int]] = [(0, 0, len(first))]
    if first != second:
        blocks = SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks()
    pairs = ((known[i + k], there[j + k]) for i, j, count in blocks for k in range(count))
    return {one.name: other.name for one, other in pairs}


def _what(program: Program) -> list[tuple[Any, ...]]:
    """Of each operation its operator, where it is, the weights that it uses, and the same of its readers."""
    own = [(one.operator, one.module, *sorted(one.tensors.items())) for one in program]
    readers = readers_of(program)
    told = ({str(own[one.position]) for one in readers.get(k, ())} for k in range(len(program)))
    return [(what, *sorted(some)) for what, some in zip(own, told, strict=True)]
