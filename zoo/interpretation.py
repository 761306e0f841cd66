"""The reference for evictions: the original's graph, run node by node with the branches' outputs replaced."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Interpreter, Node
from torch.utils import _pytree as pytree

from hope._util.calls import Example, as_call, mode

Instead: TypeAlias = Tensor | float | str  # what a node yields instead, or the node whose value it copies


def export(model: nn.Module, example: Example) -> ExportedProgram:
    """The model's graph in evaluation mode, as the inspection reads it."""
    args, kwargs = as_call(example)
    with mode(model.eval(), training=False), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(model, args, kwargs, strict=False)


class _Replacing(Interpreter):
    """Runs a graph; a named node's value is replaced at once, before an in-place add can use it."""

    def __init__(self, program: ExportedProgram, values: Mapping[str, Instead]) -> None:
        super().__init__(program.graph_module)
        self.values = values
        self.met: set[str] = set()
        self._held: dict[str, Tensor] = {}
        self._sources = {value for value in values.values() if isinstance(value, str)}

    def run_node(self, n: Node) -> Any:
        result = super().run_node(n)
        if n.name in self.values:
            self.met.add(n.name)
            value = self.values[n.name]
            result = self._held[value] if isinstance(value, str) else torch.zeros_like(result) + value
        if n.name in self._sources:
            self._held[n.name] = result.clone()
        return result


def replaced(
    program: ExportedProgram, model: nn.Module, example: Example, values: Mapping[str, Instead]
) -> list[Tensor]:
    """All tensors that the model returns when the named nodes yield the given values instead of their own.

    Args:
        program: the graph, from `export`.
        model: where parameters and buffers are taken from: the exported model or one of the same shapes.
        example: the inputs.
        values: node name -> what it yields, broadcast to the node's shape, or the node whose value it copies.
    """
    every = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    tensors = {**program.constants, **dict(every)}
    given = iter(pytree.tree_leaves(as_call(example)))
    inputs = [
        next(given) if spec.kind is InputKind.USER_INPUT else tensors[str(spec.target)]
        for spec in program.graph_signature.input_specs
    ]
    interpreter = _Replacing(program, values)
    with torch.no_grad():
        outputs = interpreter.run(
            *(value.clone() if isinstance(value, Tensor) else value for value in inputs),
            enable_io_processing=False,
        )
    assert interpreter.met == set(values), "a branch's output is not a node of the graph"
    return [leaf for leaf in pytree.tree_leaves(outputs) if isinstance(leaf, Tensor)]
