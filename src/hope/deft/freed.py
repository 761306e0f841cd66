"""Apply merges without removing anything: the merged child becomes a freed neuron."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from hope._util.tensors import get, owner
from hope.actions.merge import Merge, write_parent
from hope.structure.anatomy import Anatomy
from hope.structure.units import Unit


def consolidate(
    model: nn.Module,
    anatomy: Anatomy,
    merges: Sequence[Merge],
    freed: Mapping[str, Sequence[int]],
    seed: int | None = 0,
    *,
    clamp: bool = False,
) -> None:
    """Merge in place and reset the freed neurons: apart from the merges, the network's outputs do not change.

    A freed neuron gets fresh incoming weights, with the spread of its layer's, and outgoing weights of zero:
    no reader receives it until training changes that. Without a seed its incoming weights are zero, too; then
    it does not count as a reader.

    Args:
        clamp: give parents the BN numbers that the paper prints (see `Rewrite.clamp`).
    """
    for action in merges:
        write_parent(model, anatomy.unit(action.name), action, clamp=clamp)
    generator = None if seed is None else torch.Generator().manual_seed(seed)
    for name, neurons in freed.items():
        if len(neurons):
            _empty(model, anatomy.unit(name), neurons, generator)


@torch.no_grad()
def _empty(model: nn.Module, layer: Unit, neurons: Sequence[int], generator: torch.Generator | None) -> None:
    for part in layer.places:
        tensor = get(model, part.tensor)
        index = torch.from_numpy(part.index[list(neurons)].ravel()).to(tensor.device)
        if part.role == "in" or (part.role == "out" and generator is None):
            tensor.index_fill_(part.dim, index, 0)
        elif part.role == "out":
            rows = tensor.index_select(part.dim, index)
            fresh = torch.randn(rows.shape, generator=generator, dtype=torch.float64)
            tensor.index_copy_(part.dim, index, (fresh * float(tensor.double().std())).to(tensor))
        else:
            module, attribute = owner(model, part.tensor)
            norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
            if norm and attribute in ("weight", "running_var"):
                tensor.index_fill_(part.dim, index, 1)
            elif attribute in ("bias", "running_mean"):
                tensor.index_fill_(part.dim, index, 0)
