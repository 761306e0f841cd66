"""A network's captured graphs: it is exported once per batch signature, and whatever runs it asks here."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hope._util.calls import Example, as_call
from hope.errors import InvalidExample
from hope.trace.adapt import adapted
from hope.trace.capture import capture
from hope.trace.interpreter import Interpreter
from hope.trace.program import Captured, Program, read_program, readers_of

Observer: TypeAlias = Callable[[str, Tensor], None]
ADAPTED = 2  # graphs that are tried for other sizes


class Trace:
    """The captured graphs of one network.

    A graph is made for the shapes and types of a batch and of the parameters. It runs with the parameters of
    any model that has the same modules and shapes, such as a copy with other BN statistics. For other widths
    or another batch size its literal sizes are rewritten (see `adapt.py`); only where that fails is the model
    exported again. A copy or a pickle of a trace is empty: graphs are captured where they are needed.
    """

    def __init__(self) -> None:
        self._captured: dict[Key, Captured] = {}
        self._matches: dict[tuple[int, int], tuple[Program, dict[str, int]]] = {}

    def __reduce__(self) -> tuple[Any, ...]:
        return Trace, ()

    def captured(self, model: nn.Module, batch: Example | None, *, progress: bool | None = False) -> Captured:
        """The model's graph for batches like this one, exported if it was not yet."""
        key = Key.of(model, batch)
        if key in self._captured:
            return self._captured[key]
        known = sorted(self._captured, key=lambda other: other.distance(key))
        every = (self._captured[other] for other in known if other.adapts_to(key))
        found = adapted(list(islice(every, ADAPTED)), model, batch)
        if found is None:
            graph = capture(model, batch, progress=progress)
            found = Captured(graph, read_program(graph))
        if not self._captured or key.shapes == self._first.shapes:  # those of smaller networks are not kept
            self._captured[key] = found
        return found

    @property
    def _first(self) -> Key:
        return next(iter(self._captured))

    def interpreter(
        self,
        model: nn.Module,
        batches: Sequence[Example],
        *,
        after: Callable[[int], bool | None] | None = None,
        in_place: bool = False,
    ) -> Interpreter:
        """A run of the model on these batches (see `Interpreter`)."""
        keys = [Key.of(model, batch) for batch in batches]
        found = {key: self.captured(model, batches[keys.index(key)]) for key in dict.fromkeys(keys)}
        captured = [found[key] for key in keys]
        if any(_targets(one) != _targets(captured[0]) for one in found.values()):
            raise InvalidExample(
                "batches must trace one graph, got different ones for different shapes: give equal shapes"
            )
        calls = [pytree.tree_leaves(as_call(batch)) for batch in batches]
        return Interpreter(model, captured, calls, after=after, in_place=in_place)

    def observe(
        self, model: nn.Module, program: Program, batch: Example, wanted: Collection[str], observer: Observer
    ) -> None:
        """Run the model on one batch, as far as anything is wanted; the observer is called with the names and
        results of the wanted operations, before later ones may write into them.

        Args:
            program: the network's, whose operations are wanted by their names.
        """
        there = self._matched(program, self.captured(model, batch))
        if any(name not in there for name in wanted):
            raise InvalidExample(
                "it must trace the graph of the example, got a different one: give inputs like the example"
            )
        names = {there[name]: name for name in wanted}

        def after(position: int) -> None:
            if position in names and isinstance(run.value(position)[0], Tensor):
                observer(names[position], run.value(position)[0])

        run = self.interpreter(model, [batch], after=after, in_place=True)
        run.run_in_order(max(names, default=-1))

    def _matched(self, program: Program, captured: Captured) -> dict[str, int]:
        """Names of operations -> their positions in another program of the network."""
        key = id(program), id(captured)
        if key not in self._matches:
            self._matches[key] = program, _same(program, captured.program)  # held: its id stays its own
        return self._matches[key][1]


@dataclass(frozen=True)
class Key:
    """What a graph is captured for."""

    modules: tuple[Any, ...]  # names and classes of the model's
    tensors: tuple[Any, ...]  # names, types and devices of its parameters and buffers
    shapes: tuple[Any, ...]  # of these
    # of the call: how its inputs are nested, their types, and everything that is no tensor
    structure: tuple[Any, ...]
    sizes: tuple[Any, ...]  # shapes of the inputs
    gradients: bool  # whether they are recorded

    @classmethod
    def of(cls, model: nn.Module, batch: Example | None) -> Key:
        """The key of a model and a batch."""
        tensors = [*model.named_parameters(), *model.named_buffers()]
        leaves, structure = pytree.tree_flatten(as_call(batch))
        kinds = ((v.dtype, v.device, v.ndim) if isinstance(v, Tensor) else (type(v), v) for v in leaves)
        return cls(
            tuple((name, type(module)) for name, module in model.named_modules()),
            tuple((name, one.dtype, one.device) for name, one in tensors),
            tuple(tuple(one.shape) for _, one in tensors),
            (str(structure), *kinds),
            tuple(tuple(v.shape) for v in leaves if isinstance(v, Tensor)),
            torch.is_grad_enabled(),
        )

    def adapts_to(self, other: Key) -> bool:
        """Whether a graph for this may do for the other with other sizes."""
        mine, theirs = ((key.modules, key.tensors, key.structure) for key in (self, other))
        return mine == theirs

    def distance(self, other: Key) -> int:
        """How many kinds of sizes differ."""
        return (self.shapes != other.shapes) + (self.sizes != other.sizes)


def _targets(captured: Captured) -> list[tuple[str, str]]:
    return [(node.op, str(node.target)) for node in captured.graph.nodes]


def _same(known: Program, there: Program) -> dict[str, int]:
    """Names of operations -> the positions of the same ones in another program of the network: with a mask,
    or without, it may have more of them, and then names are not the same.
    """
    first, second = _what(known), _what(there)
    blocks: Iterable[tuple[int, int, int]] = [(0, 0, len(first))]
    if first != second:
        blocks = SequenceMatcher(None, first, second, autojunk=False).get_matching_blocks()
    return {known[i + k].name: j + k for i, j, count in blocks for k in range(count)}


def _what(program: Program) -> list[tuple[Any, ...]]:
    """Of each operation its operator, where it is, the weights that it uses, and the same of its readers."""
    own = [(one.operator, one.module, *sorted(one.tensors.items())) for one in program]
    readers = readers_of(program)
    known = ({str(own[one.position]) for one in readers.get(k, ())} for k in range(len(program)))
    return [(what, *sorted(some)) for what, some in zip(own, known, strict=True)]
