"""From the elasticity of neurons to masks of weights: which entries are frozen, and which are severed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from hope.reasons import Cause
from hope.structure.anatomy import Anatomy
from hope.structure.units import IndexMap, Unit
from hope.trace.labels import Ids


def in_head(tensor: str, head: str) -> bool:
    """Whether a tensor belongs to the head."""
    return tensor.startswith(f"{head}.")


def _along(values: Ids, dim: int, ndim: int) -> Tensor:
    """A mask that varies along one dimension only."""
    shape = [1] * ndim
    shape[dim] = len(values)
    return torch.from_numpy(np.ascontiguousarray(values)).bool().reshape(shape)


def frozen_masks(
    anatomy: Anatomy, units: Sequence[Unit], core: Mapping[str, Tensor], head: str
) -> dict[str, Tensor]:
    """Tensor -> a mask that broadcasts to its shape, True if frozen.

    An entry is trainable only if every neuron that it writes or belongs to is slack: rows of filters, biases,
    BN parameters. Positions without an owner, and tensors that belong to no unit (a scalar that core and
    slack share), are core. The head is trainable.
    """
    rows: dict[tuple[str, int], Ids] = {}
    for unit in units:
        locked = core[unit.name].numpy()
        for place in unit.places:
            if place.role != "in":
                vector = rows.setdefault((place.tensor, place.dim), np.ones(len(place.owner), dtype=np.int64))
                own = place.owner >= 0
                vector[own] = locked[place.owner[own]]
    masks: dict[str, Tensor] = {}
    for tensor, shape in anatomy.shapes.items():
        if in_head(tensor, head):
            masks[tensor] = torch.zeros([1] * len(shape), dtype=torch.bool)
            continue
        parts = [_along(v, dim, len(shape)) for (name, dim), v in rows.items() if name == tensor]
        mask = torch.ones([1] * len(shape), dtype=torch.bool)
        for position, part in enumerate(parts):
            mask = part if position == 0 else mask | part
        masks[tensor] = mask
    return masks


def slack_inputs(units: Sequence[Unit], core: Mapping[str, Tensor]) -> dict[tuple[str, int], Tensor]:
    """(weight, dim) -> (positions,) True if the weight reads slack there."""
    found: dict[tuple[str, int], Tensor] = {}
    for unit in units:
        for place in unit.places:
            if place.role == "in":
                reads = found.setdefault(
                    (place.tensor, place.dim), torch.zeros(len(place.owner), dtype=torch.bool)
                )
                reads |= owned(place, ~core[unit.name])
    return found


def owned(place: IndexMap, which: Tensor) -> Tensor:
    """(positions,) True if the neuron there is marked."""
    owner = torch.from_numpy(place.owner)
    return torch.where(owner >= 0, which[owner.clamp(min=0)], torch.zeros((), dtype=torch.bool))


def severed_masks(
    anatomy: Anatomy,
    units: Sequence[Unit],
    core: Mapping[str, Tensor],
    frozen: Mapping[str, Tensor],
    head: str,
) -> dict[str, Tensor]:
    """Weight -> a mask that broadcasts to its shape, True for weights from slack to core.

    M of the paper (Section "Consistency at Initialization") is its complement; for kernels, all taps.
    """
    masks: dict[str, Tensor] = {}
    for (tensor, dim), reads in slack_inputs(units, core).items():
        if not in_head(tensor, head):
            part = _along(reads.numpy(), dim, len(anatomy.shapes[tensor])) & frozen[tensor]
            masks[tensor] = masks[tensor] | part if tensor in masks else part
    return masks


def last_weights(anatomy: Anatomy) -> list[str]:
    """The weights that write the model's outputs, and nothing else."""
    last = {one.name for one in anatomy.skipped if one.reason.cause is Cause.OUTPUT}
    shared = {one.tensors.get("weight") for one in anatomy.program if one.operator == "embedding"}
    return [name for name in anatomy.shapes if name.rpartition(".")[0] in last and name not in shared]


def relearnable(
    anatomy: Anatomy, units: Sequence[Unit], severed: Mapping[str, Tensor], last: Sequence[str] = ()
) -> dict[str, Tensor]:
    """Weight -> a mask that broadcasts to its shape, True where it writes from slack into one of these units.

    `last` are weights of a frozen head, which count like such a unit. All neurons of these units are core, so
    slack that writes only there could not reach the head. These weights are severed like all others from
    slack to core, but they are trainable: core reads slack through them, except in `source()`, where all
    trainable entries are zero.
    """
    masks: dict[str, Tensor] = {weight: severed[weight] for weight in last if weight in severed}
    for unit in units:
        for place in unit.places:
            if place.role == "out" and place.tensor in severed:
                rows = _along(
                    (place.owner >= 0).astype(np.int64), place.dim, len(anatomy.shapes[place.tensor])
                )
                masks[place.tensor] = rows & severed[place.tensor]
    return {weight: mask for weight, mask in masks.items() if bool(mask.any())}


def head_columns(
    anatomy: Anatomy, units: Sequence[Unit], core: Mapping[str, Tensor], head: str
) -> dict[str, Tensor]:
    """The head's weights -> a mask that broadcasts to their shape, True if they read slack."""
    masks: dict[str, Tensor] = {}
    for (tensor, dim), reads in slack_inputs(units, core).items():
        if in_head(tensor, head):
            part = _along(reads.numpy(), dim, len(anatomy.shapes[tensor]))
            masks[tensor] = masks[tensor] | part if tensor in masks else part
    return masks
