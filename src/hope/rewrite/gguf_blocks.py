"""Rounded weights in the blocks of GGUF files: Q8_0 and Q4_0, which llama.cpp reads.

Both are groups of 32 inputs. A block is a scale in half precision and 32 whole numbers: of 8 bits one after
another, of 4 bits with 8 added, number k and number k + 16 in one byte. A scale of `geometry.rounding` has 11
significant bits, as half precision has, so a weight that was rounded with groups of 32, or with several such
groups to a scale, is written to the bit.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hope.errors import CannotExport
from hope.rewrite.packed_onnx import Grid

BLOCK = 32  # inputs
BITS = {"Q8_0": 8, "Q4_0": 4}
OFFSET = 8  # that is added to a whole number of 4 bits
LARGEST = 65504.0  # of half precision


def block_type(bits: int, group: int, columns: int) -> str | None:
    """The smallest type of block that holds a weight on a grid; None if none does.

    Args:
        bits: of its whole numbers.
        group: inputs that share a scale; 0 for all.
        columns: inputs.

    Example:
        >>> block_type(4, 32, 576), block_type(5, 0, 576), block_type(4, 32, 48)
        ('Q4_0', 'Q8_0', None)
    """
    if columns % BLOCK or group % BLOCK:
        return None
    return "Q4_0" if bits <= BITS["Q4_0"] else "Q8_0"


def blocks_of(grid: Grid, kind: str) -> NDArray[np.uint8]:
    """A weight on its grid as blocks, (rows, bytes of a row).

    Scales below 6e-5, where half precision has fewer bits, are rounded once more.

    Args:
        grid: its inputs, and those that share a scale, a multiple of 32.
        kind: "Q8_0" or "Q4_0".

    Raises:
        CannotExport: the weight does not fit.

    Example:
        >>> grid = Grid(torch.arange(-7, 9).clamp(max=7).repeat(1, 2).to(torch.int8), torch.tensor([[0.5]]))
        >>> blocks_of(grid, "Q4_0").shape, blocks_of(grid, "Q8_0").shape
        ((1, 18), (1, 34))
    """
    whole, scale = grid.whole, grid.scale
    rows, columns = whole.shape
    groups, most = scale.shape[1], (1 << (BITS[kind] - 1)) - 1
    if columns % BLOCK or (columns // BLOCK) % groups:
        raise CannotExport(
            f"a weight must have blocks of {BLOCK} inputs for {kind}, got {columns} in {groups} groups: "
            f"round with group={BLOCK}"
        )
    wrong = whole[(whole > most) | (whole < -most - 1)]
    if len(wrong):
        raise CannotExport(f"numbers of {kind} must be {-most - 1} to {most}, got {wrong[0]}: write Q8_0")
    half = _halves(scale).repeat_interleave(columns // BLOCK // groups, dim=1)
    numbers = whole.reshape(rows, columns // BLOCK, BLOCK).numpy()  # (rows, blocks, 32)
    if kind == "Q4_0":
        wide = (numbers + OFFSET).astype(np.uint8)
        entries = wide[..., : BLOCK // 2] | wide[..., BLOCK // 2 :] << 4
    else:
        entries = numbers.view(np.uint8)
    units = half.numpy()[..., None].view(np.uint8)  # (rows, blocks, 2)
    size = columns // BLOCK * (units.shape[-1] + entries.shape[-1])
    return np.concatenate([units, entries], axis=-1).reshape(rows, size)


def _halves(scale: Tensor) -> Tensor:
    """Scales in half precision."""
    largest = float(scale.abs().max()) if scale.numel() else 0.0
    if largest > LARGEST:
        raise CannotExport(f"a scale must be below {LARGEST:.0f}, got {largest:.3g}: write F16")
    return scale.to(torch.float16)
