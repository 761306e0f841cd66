"""The reference for evictions: the exported graph of the full model, with other values where branches end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Interpreter, Node

import hope


class Without(Interpreter):
    """Runs an exported graph with other values for some of its nodes."""

    def __init__(self, program: torch.export.ExportedProgram, instead: Mapping[str, Tensor]) -> None:
        super().__init__(program.graph_module)
        self.instead = instead

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        return self.instead[n.name].expand_as(value).clone() if n.name in self.instead else value


def silenced(
    model: nn.Module, x: Tensor, anatomy: hope.Anatomy, evictions: Sequence[hope.Evict]
) -> list[Tensor]:
    """What the full model gives when the branches of these blocks give nothing but their biases."""
    instead = {}
    for action in evictions:
        block = anatomy.block(action.block)
        shape = [1] * block.ndim
        shape[block.channel_dim] = block.channels
        numbers = action.bias or (0.0,) * block.channels
        instead[block.branch_output] = torch.tensor(numbers, dtype=x.dtype).reshape(shape)
    with torch.no_grad():
        program = torch.export.export(model, (x,), strict=False)
        state = {**program.state_dict, **program.constants}
        specs = program.graph_signature.input_specs
        inputs = [x.clone() if spec.target is None else state[spec.target] for spec in specs]
        return [leaf for leaf in Without(program, instead).run(*inputs) if isinstance(leaf, Tensor)]
