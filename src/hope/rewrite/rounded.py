"""What is known of the rounded weights of a model, for files and runtimes that hold integers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from hope._util.calls import Example
from hope._util.tensors import get
from hope.actions import Action
from hope.geometry.rounding import ColumnMoments, grid_of, nearest, scales
from hope.rewrite.export import Integers
from hope.rewrite.packed_onnx import Grid
from hope.statistics.input_scale import Range
from hope.statistics.input_statistics import InputStatistics, bn_and_bias
from hope.structure.anatomy import Anatomy

KERNEL = 8  # bits of the integers that onnxruntime computes with


def grids_of(steps: Sequence[Action]) -> dict[str, tuple[int, int]]:
    """Weight -> bits and group of the grid that steps leave it on."""
    return {step.name: step.weight_grid for step in steps if step.weight_grid is not None}


def read_grids(model: nn.Module, grids: Mapping[str, tuple[int, int]]) -> dict[str, Grid]:
    """Weight -> its whole numbers and scales, of those that are on their grid in a model."""
    state = model.state_dict()
    found = {
        name: grid_of(state[name].detach().cpu().flatten(1), *grid)
        for name, grid in grids.items()
        if name in state
    }
    return {name: Grid(*one) for name, one in found.items() if one is not None}


def integers_of(
    model: nn.Module,
    grids: Mapping[str, Grid],
    statistics: Mapping[str, InputStatistics],
    entry: Range | None,
    inputs: Sequence[Example] = (),
) -> Integers | None:
    """What an ONNX file needs to know of the rounded weights of a model; None if there are none.

    Args:
        statistics: weight -> its input statistics, which name the BN after it.
        entry: the range of its input without data (see `statistics.input_scale`), if that is known.
        inputs: real ones, to measure ranges on.
    """
    if not grids:
        return None
    own = {name: value.detach().cpu().double().numpy() for name, value in model.state_dict().items()}
    norms = {
        name: (own[f"{bn}.bias"], abs(own[f"{bn}.weight"]))
        for name, bn in ((name, one.bn) for name, one in statistics.items())
        if name in grids and f"{bn}.bias" in own and f"{bn}.weight" in own
    }
    return Integers(grids, norms, inputs, None if inputs else entry)


@torch.no_grad()
def as_integers(
    model: nn.Module, anatomy: Anatomy, entry: Range | None, inputs: Sequence[Example] = ()
) -> Integers | None:
    """Round every weight of a model in place to 8 bits, for measuring times: its outputs do not matter.

    Args:
        inputs: to measure ranges on; without any, they come from batch norm.
    """
    state = model.state_dict()
    for name in (name for name, reason in anatomy.roundable.items() if reason is None and name in state):
        weight = get(model, name)
        flat = weight.double().flatten(1)
        scale = scales(flat, KERNEL, ColumnMoments.identity(flat.shape[1]).diagonal)
        weight.copy_(nearest(flat, scale, KERNEL).reshape(weight.shape).to(weight))
    grids = read_grids(model, dict.fromkeys(anatomy.roundable, (KERNEL, 0)))
    none = torch.zeros(1)
    known = {
        name: InputStatistics(name, 1, none, none, none, none, bn=bn)
        for name, (bn, _) in bn_and_bias(anatomy).items()
    }
    return integers_of(model, grids, known, entry, inputs)
