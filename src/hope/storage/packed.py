"""Rounded weights in files: packed whole numbers and scales instead of the weight."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hope.errors import DamagedFolder
from hope.geometry.rounding import grid_of, pack, per_column, unpack

WHOLE, SCALE = "#whole", "#scale"  # what follows the name of a weight


def packed_weights(weights: Mapping[str, Tensor], grids: Mapping[str, tuple[int, int]]) -> dict[str, Tensor]:
    """A state dict with rounded weights packed; those that are on no grid, such as trained ones, are not."""
    found = dict(weights)
    for name, (bits, group) in grids.items():
        grid = grid_of(weights[name].flatten(1), bits, group) if name in weights else None
        if grid is not None:
            del found[name]
            found[f"{name}{WHOLE}"] = pack(grid[0], bits)
            found[f"{name}{SCALE}"] = grid[1].to(weights[name].dtype)
    return found


def without_copies(weights: Mapping[str, Tensor], aliases: Mapping[str, Sequence[str]]) -> dict[str, Tensor]:
    """A state dict in which a tensor that has several names, such as a tied head's, is there once.

    Args:
        aliases: name -> all names of the same tensor.
    """
    found = dict(weights)
    for names in aliases.values():
        first, *others = [name for name in names if name in found] or [""]
        for name in others:
            if torch.equal(found[name], found[first]):
                del found[name]
    return found


def with_copies(weights: Mapping[str, Tensor], aliases: Mapping[str, Sequence[str]]) -> dict[str, Tensor]:
    """The reverse of `without_copies`."""
    found = dict(weights)
    for names in aliases.values():
        there = [name for name in names if name in found]
        found |= {name: found[there[0]] for name in names if there and name not in found}
    return found


def unpacked_weights(
    stored: Mapping[str, Tensor], grids: Mapping[str, tuple[int, int]], model: nn.Module
) -> dict[str, Tensor]:
    """The reverse of `packed_weights`.

    Args:
        model: of the shapes that the weights have.

    Raises:
        DamagedFolder: the packed numbers do not fit the model.
    """
    state, found = model.state_dict(), {}
    for key, tensor in stored.items():
        name = key.removesuffix(WHOLE)
        if key.endswith(SCALE):
            continue
        if name == key:
            found[key] = tensor
            continue
        scale, shape = stored.get(f"{name}{SCALE}"), state[name].shape if name in state else ()
        if scale is None or name not in grids or not shape:
            raise DamagedFolder(f"the rounded weight {name} is incomplete: copy the folder again")
        bits, group = grids[name]
        rows, columns = shape[0], shape[1:].numel()
        width = min(group or columns, columns)
        if len(tensor) != -(-rows * columns * bits // 8) or scale.shape != (rows, -(-columns // width)):
            raise DamagedFolder(f"the rounded weight {name} must fit {tuple(shape)}: copy the folder again")
        whole = unpack(tensor, bits, (rows, columns)).float()
        product = whole * per_column(scale.float(), columns, group)
        found[name] = product.reshape(shape).to(scale.dtype)
    return found
