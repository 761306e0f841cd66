"""Networks that nobody here wrote: what is cut away physically must be what is silent in the original."""

from __future__ import annotations

import random

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

import hope
from hope._util.calls import Example
from hope.anatomy.anatomy import Anatomy
from hope.graph.blocks import Block
from hope.surgery.apply import outcome
from tests.support import assert_same, check_cut, masked, random_cut, randomise, run
from zoo.foreign import Entry, zoo
from zoo.interpretation import export, replaced

pytestmark = pytest.mark.zoo
TOLERANCE = 1e-4


def parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def check_outermost_evictions(
    program: ExportedProgram, model: nn.Module, example: Example, anatomy: Anatomy
) -> None:
    """Without any block, the network computes what the original does when every branch yields zero."""
    outermost = [block for block in anatomy.blocks if block.inside is None]
    if not outermost:
        return
    actions = [hope.Evict(block.name) for block in outermost]
    small = hope.cut(model, anatomy, actions)
    silent = replaced(program, model, example, {block.branch_output: 0.0 for block in outermost})
    assert_same(run(small, example), silent, TOLERANCE)
    assert parameters(small) == outcome(anatomy, actions).size(anatomy).parameters < parameters(model)


def random_bias(block: Block, rng: random.Random) -> tuple[list[float] | None, Tensor | float]:
    """A bias to leave behind, as an action takes it and as the branch yields it; none if none can stay."""
    if not block.bias:
        return None, 0.0
    numbers = [rng.uniform(-0.1, 0.1) for _ in range(block.channels)]
    shape = [1] * block.ndim
    shape[block.channel_dim] = block.channels
    return numbers, torch.tensor(numbers).reshape(shape)


def check_mixture(program: ExportedProgram, model: nn.Module, example: Example, anatomy: Anatomy) -> None:
    """Some blocks evicted (nested ones too, leaving a bias if they can) and neurons pruned, all at once."""
    rng = random.Random(1)
    evictions, values = [], {}
    for block in rng.sample(anatomy.blocks, len(anatomy.blocks) // 2):
        bias, value = random_bias(block, rng)
        evictions.append(hope.Evict(block.name, bias))
        values[block.branch_output] = value
    prunings = random_cut(anatomy, seed=1)
    actions = [*evictions, *prunings]
    if not evictions:
        return
    small = hope.cut(model, anatomy, actions)
    silent = replaced(program, masked(model, anatomy, prunings), example, values)
    assert_same(run(small, example), silent, TOLERANCE)
    assert parameters(small) == outcome(anatomy, actions).size(anatomy).parameters


@pytest.mark.parametrize("entry", zoo(), ids=lambda entry: entry.key)
def test_removing_neurons_and_blocks_equals_silencing_them(entry: Entry) -> None:
    model, example = randomise(entry.build()), entry.example()
    anatomy, _ = check_cut(model, example, tolerance=TOLERANCE)
    assert anatomy.size().parameters == parameters(model)
    if anatomy.blocks:
        program = export(model, example)
        check_outermost_evictions(program, model, example, anatomy)
        check_mixture(program, model, example, anatomy)
