"""The interpreter: runs captured graphs operation by operation, with the parameters that a model has now.

It is the only code that runs them. All batches are at one operation at a time, so that a pass can stop there,
change a parameter and go on, and two networks can be run side by side; or one batch is run in the order of
the program, as the model itself runs, up to an operation. Observers are called with each operation's position
as soon as its result is there. A result is released when everything that reads it has been computed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.fx import Node
from torch.fx.node import map_arg

from hope._util.memory import filed
from hope.trace.program import Captured

Value: TypeAlias = list[Any]  # a result per batch
HELD = 4 << 30  # bytes of results in memory; more is held in files


class Interpreter:
    """A network on the way from its inputs to its outputs.

    Args:
        model: whose parameters are used, as they are when an operation is run.
        captured: of each batch, the captured network; all with the same operations.
        calls: of each batch, its inputs in the order of the graph.
        after: an observer, called with a position right after that operation was run, while what it read is
            still there; True if it is to be run again, because its parameters have changed.
        in_place: write in place where the network does, for passes in the order of the program. Otherwise a
            copy is written into, since the result that was there may still be asked for.

    Attributes:
        program: the operations; results are asked for by their positions.
    """

    def __init__(
        self,
        model: nn.Module,
        captured: Sequence[Captured],
        calls: Sequence[Sequence[Any]],
        *,
        after: Callable[[int], bool | None] | None = None,
        in_place: bool = False,
    ) -> None:
        self.model, self.program, self.after = model, captured[0].program, after
        self._captured, self._calls, self._in_place = captured, calls, in_place
        self._tensors = dict([*model.named_parameters(), *model.named_buffers()])
        self._reads = [operation.inputs for operation in self.program]
        self._left = Counter(position for reads in self._reads for position in reads)
        self._values: dict[int, Value] = {}
        self._done: set[int] = set()
        self._held = 0

    def keep(self, positions: Iterable[int]) -> None:
        """Results that are asked for once more than the program does: `get` each once."""
        self._left.update(positions)

    def get(self, position: int) -> Value:
        """A result that was kept, computed now if it was not yet."""
        self.run_to(position)
        value = self._values[position]
        self._used(position)
        return value

    def value(self, position: int) -> Value:
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

    def run_in_order(self, until: int) -> None:
        """Run all operations in the order of the program, up to and with that at a position."""
        for position in range(until + 1):
            self._run(position)

    def _run(self, position: int) -> None:
        self._done.add(position)
        self._compute(position)
        if self.after is not None and self.after(position):
            self._compute(position)
        for other in self._reads[position]:
            self._used(other)
        if not self._left[position]:
            self._release(position)

    def _compute(self, position: int) -> None:
        operation = self.program[position]
        if operation.operator == "tensor":
            self._values[position] = [self._tensors[operation.tensors[""]].detach()] * len(self._calls)
            return
        self._release(position)
        found: Value = []
        for batch, captured in enumerate(self._captured):
            one = self._one(captured.graph.nodes[position], captured, batch)
            size = one.nbytes if isinstance(one, Tensor) else 0
            found.append(filed(one) if size and not self._in_place and self._held + size > HELD else one)
            self._held += size
        self._values[position] = found

    def _used(self, position: int) -> None:
        self._left[position] -= 1
        if not self._left[position]:
            self._release(position)

    def _release(self, position: int) -> None:
        value = self._values.pop(position, [])
        if self.program[position].operator != "tensor":
            self._held -= sum(one.nbytes for one in value if isinstance(one, Tensor))

    def _one(self, node: Node, captured: Captured, batch: int) -> Any:
        graph = captured.graph
        if node.op == "placeholder" and node.name in graph.inputs:
            return self._calls[batch][graph.inputs.index(node.name)]
        if node.op in ("placeholder", "get_attr"):
            return graph.constants[node.name]
        at = captured.positions[node]
        find: Callable[[Node], Any] = lambda other: self._values[at[other]][batch]  # noqa: E731
        if node.op == "output":
            return map_arg(node.args, find)
        args, kwargs = map_arg(node.args, find), map_arg(node.kwargs, find)
        if not self._in_place and self.program[at[node]].in_place and isinstance(args[0], Tensor):
            args = (args[0].clone(), *args[1:])  # others may still have to read it as it was
        assert callable(node.target)
        return node.target(*args, **kwargs)
