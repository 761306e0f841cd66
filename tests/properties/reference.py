"""Random evictions, and what they are held against: the full graph with other values where branches end."""

from __future__ import annotations

import random
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
        block = anatomy.block(action.name)
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


def random_evictions(anatomy: hope.Anatomy, rng: random.Random) -> list[hope.Evict]:
    """Some of the blocks, at least one if there is any, half of them with a bias where one is possible."""
    blocks = rng.sample(anatomy.blocks, rng.randint(min(1, len(anatomy.blocks)), len(anatomy.blocks)))
    return [
        hope.Evict(
            b.name, [rng.uniform(-1, 1) for _ in range(b.channels)] if b.bias and rng.random() < 0.5 else None
        )
        for b in blocks
    ]
