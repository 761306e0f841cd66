"""Run a captured network operation by operation, over several batches at once.

What is asked for is computed when it is asked for, with the model's parameters as they are at that moment,
and forgotten when everything that reads it has been computed. So a pass can stop at an operation, change what
it uses, and go on; and two networks can be run side by side.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from hope._util.calls import Example, as_call
from hope._util.memory import filed
from hope.errors import InvalidExample
from hope.trace.capture import Graph, capture
from hope.trace.program import Program, read_program, standings

Value: TypeAlias = list[Any]  # a result per batch
HELD = 4 << 30  # bytes of results in memory; what goes beyond is held in files


class Execution:
    """A network on the way from its inputs to its outputs.

    Attributes:
        model: whose parameters are used, as they are when an operation is run.
        program: its operations; results are asked for by their positions.
        after: called with a position right after that operation was run, while what it read is still there;
            True if it is to be run again, because its parameters have changed.
    """

    def __init__(
        self,
        model: nn.Module,
        batches: Sequence[Example],
        *,
        after: Callable[[int], bool] | None = None,
    ) -> None:
        self.model, self.after = model, after
        self._calls = [flat(batch) for batch in batches]
        shapes = [signature(call) for call in self._calls]
        graphs = {shape: capture(model, batches[shapes.index(shape)], progress=False) for shape in {*shapes}}
        self._graphs = [graphs[shape] for shape in shapes]
        self.program: Program = read_program(self._graphs[0])
        if any(_targets(graph) != _targets(self._graphs[0]) for graph in graphs.values()):
            raise InvalidExample(
                "batches of different sizes take different ways through the model: give equal ones"
            )
        self._reads = [operation.inputs for operation in self.program]
        self._left = Counter(position for reads in self._reads for position in reads)
        self._values: dict[int, Value] = {}
        self._done: set[int] = set()
        self._held = 0
        self._at = {id(graph): _resolved(graph) for graph in graphs.values()}

    def keep(self, positions: Iterable[int]) -> None:
        """Results that are asked for once more than the program does: `get` each once."""
        self._left.update(positions)

    def get(self, position: int) -> Value:
        """A result that was kept, computed now if it was not yet."""
        self.run_to(position)
        value = self._values[position]
        self._used(position)
        return value

    def look(self, position: int) -> Value:
        """A result that is still there."""
        return self._values[position]

    @torch.no_grad()
    def run_to(self, position: int) -> None:
        """Compute a result, and what it needs."""
        waiting = [position]
        while waiting:
            now = waiting[-1]
            missing = [other for other in self._reads[now] if other not in self._done]
            if now in self._done:
                waiting.pop()
            elif missing:
                waiting += reversed(missing)
            else:
                self._run(now)
                waiting.pop()

    def _run(self, position: int) -> None:
        self._done.add(position)
        self._compute(position)
        if self.after is not None and self.after(position):
            self._compute(position)
        for other in self._reads[position]:
            self._used(other)
        if not self._left[position]:
            self._forget(position)

    def _compute(self, position: int) -> None:
        operation = self.program[position]
        if operation.operator == "tensor":
            every = dict([*self.model.named_parameters(), *self.model.named_buffers()])
            self._values[position] = [every[operation.tensors[""]].detach()] * len(self._graphs)
            return
        self._forget(position)
        found: Value = []
        for batch, graph in enumerate(self._graphs):
            one = self._one(graph.nodes[position], graph, batch)
            size = one.nbytes if isinstance(one, Tensor) else 0
            found.append(filed(one) if size and self._held + size > HELD else one)
            self._held += size
        self._values[position] = found

    def _used(self, position: int) -> None:
        self._left[position] -= 1
        if not self._left[position]:
            self._forget(position)

    def _forget(self, position: int) -> None:
        value = self._values.pop(position, [])
        if self.program[position].operator != "tensor":
            self._held -= sum(one.nbytes for one in value if isinstance(one, Tensor))

    def _one(self, node: Node, graph: Graph, batch: int) -> Any:
        if node.op == "placeholder" and node.name in graph.inputs:
            return self._calls[batch][graph.inputs.index(node.name)]
        if node.op in ("placeholder", "get_attr"):
            return graph.constants[node.name]
        at = self._at[id(graph)][node]
        find: Callable[[Node], Any] = lambda other: self._values[at[other]][batch]  # noqa: E731
        if node.op == "output":
            return map_arg(node.args, find)
        args, kwargs = map_arg(node.args, find), map_arg(node.kwargs, find)
        if self.program[at[node]].in_place and isinstance(args[0], Tensor):
            args = (args[0].clone(), *args[1:])  # others may still have to read it as it was
        assert callable(node.target)
        return node.target(*args, **kwargs)


def flat(batch: Example) -> list[Any]:
    """The inputs of a call in the order in which the graph has them."""
    args, kwargs = as_call(batch)
    return pytree.tree_leaves((args, kwargs))


def signature(call: Sequence[Any]) -> tuple[Any, ...]:
    """What a graph is captured for: shapes and types of tensors, and everything else as it is."""
    return tuple((tuple(v.shape), v.dtype) if isinstance(v, Tensor) else v for v in call)


def _targets(graph: Graph) -> list[tuple[str, str]]:
    return [(node.op, str(node.target)) for node in graph.nodes]


def _resolved(graph: Graph) -> dict[Node, Mapping[Node, int]]:
    """Node -> where it finds what it reads (its own position included): writing in place moves a result."""
    found: dict[Node, Mapping[Node, int]] = {}
    for position, (node, at) in enumerate(standings(graph)):
        found[node] = {**{other: at[other] for other in node.all_input_nodes}, node: position}
    return found
