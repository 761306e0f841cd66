"""A small network in the shape of its original: what is gone is zero, so that both have one program."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hope.errors import InvalidAction
from hope.rewrite.apply import Outcome, kept_places
from hope.structure.anatomy import Anatomy

IndexMap = Mapping[str, Mapping[int, Tensor]]  # tensor -> dimension -> what is left of it


def places_of(anatomy: Anatomy, done: Outcome) -> dict[str, dict[int, Tensor]]:
    """What is left of every tensor that was cut."""
    found: dict[str, dict[int, Tensor]] = {}
    for (tensor, dim), left in kept_places(anatomy, done).items():
        found.setdefault(tensor, {})[dim] = left
    return found


def embedded(anatomy: Anatomy, small: nn.Module, places: IndexMap) -> dict[str, Tensor]:
    """The numbers of a small network by the original's names, in the original's shapes; of what it no longer
    has, zeros.
    """
    own = {
        name: tensor.detach().cpu() for name, tensor in [*small.named_parameters(), *small.named_buffers()]
    }
    found: dict[str, Tensor] = {}
    for name, shape in anatomy.shapes.items():
        tensor = own.get(name)
        found[name] = torch.zeros(shape) if tensor is None else _placed(name, tensor, shape, places)
    return found


def _placed(name: str, tensor: Tensor, shape: tuple[int, ...], places: IndexMap) -> Tensor:
    left = places.get(name, {})
    expected = tuple(len(left[dim]) if dim in left else size for dim, size in enumerate(shape))
    if tuple(tensor.shape) != expected:
        shown = tuple(tensor.shape)
        raise InvalidAction(
            f"{name} of the small network is {shown}, not {expected}: was it made of this one?"
        )
    return spread(tensor, shape, left)


def spread(tensor: Tensor, shape: tuple[int, ...], left: Mapping[int, Tensor]) -> Tensor:
    """A tensor at its places in a larger one.

    >>> spread(torch.ones(2), (3,), {0: torch.tensor([0, 2])}).tolist()
    [1.0, 0.0, 1.0]
    """
    for dim, places in left.items():
        size = list(tensor.shape)
        size[dim] = shape[dim]
        tensor = tensor.new_zeros(size).index_copy_(dim, places, tensor)
    return tensor


def silences(anatomy: Anatomy, done: Outcome) -> dict[int, Tensor]:
    """Operation -> what evicted branches leave behind in place of its result."""
    at = {operation.name: operation.position for operation in anatomy.program}
    found = {}
    for name, bias in done.evicted.items():
        block = anatomy.block(name)
        left = torch.zeros(block.channels) if bias is None else torch.tensor(bias)
        found[at[block.branch_output]] = left.double()
    return found
