"""Blocks of GGUF: rounded weights come back to the bit, also by the reader of the gguf package."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hope
from hope.errors import CannotExport
from hope.geometry.rounding import nearest, per_column, scales
from hope.rewrite.gguf_blocks import BITS, BLOCK, OFFSET, block_type, blocks_of
from hope.rewrite.packed_onnx import Grid


def dequantised(blocks: Any, kind: str) -> torch.Tensor:
    """What the gguf package reads."""
    gguf = pytest.importorskip("gguf")
    return torch.from_numpy(gguf.dequantize(blocks, gguf.GGMLQuantizationType[kind]))


def floats_of(blocks: Any, kind: str) -> torch.Tensor:
    """The reverse of `blocks_of`: (rows, columns) float32, as llama.cpp reads them."""
    size = 2 + BLOCK * BITS[kind] // 8
    parts = blocks.reshape(len(blocks), -1, size)
    units = np.ascontiguousarray(parts[..., :2]).view(np.float16).astype(np.float32)
    entries = np.ascontiguousarray(parts[..., 2:])
    if kind == "Q4_0":
        numbers = np.concatenate([entries & 15, entries >> 4], axis=-1).astype(np.float32) - OFFSET
    else:
        numbers = entries.view(np.int8).astype(np.float32)
    return torch.from_numpy((numbers * units).reshape(len(blocks), -1))


def drawn(columns: int = 128, seed: int = 0) -> torch.Tensor:
    return torch.randn(5, columns, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(("bits", "kind"), [(8, "Q8_0"), (6, "Q8_0"), (4, "Q4_0"), (2, "Q4_0")])
@pytest.mark.parametrize("group", [0, 32, 64])
def test_a_rounded_weight_comes_back_to_the_bit(bits: int, kind: str, group: int) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    method = hope.Absorb(calibration=None)
    encoding = hope.encode(net, torch.zeros(2, 128), bits=bits, group=group, method=method, progress=False)
    assert len(encoding.grids) == 2
    for name, grid in encoding.grids.items():
        weight = encoding.model.get_parameter(name).detach()
        assert block_type(bits, group, weight.shape[1]) == kind
        blocks = blocks_of(grid, kind)
        assert blocks.shape == (len(weight), weight.shape[1] // 32 * (2 + 4 * BITS[kind]))
        assert torch.equal(floats_of(blocks, kind), weight)
        assert torch.equal(dequantised(blocks, kind), weight)


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0"])
def test_blocks_are_those_of_the_gguf_package(kind: str) -> None:
    gguf = pytest.importorskip("gguf")
    end = 1 << (BITS[kind] - 1)
    draw = torch.Generator().manual_seed(0)
    whole = torch.randint(-end, end, (5, 128), generator=draw, dtype=torch.int8)
    scale = torch.randn(5, 4, generator=draw).half().float()  # a scale may have a sign
    blocks, want = blocks_of(Grid(whole, scale), kind), whole * per_column(scale, 128, 32)
    assert int(whole.min()) == -end
    assert torch.equal(floats_of(blocks, kind), want)
    assert torch.equal(dequantised(blocks, kind), want)
    assert gguf.quantize(want.numpy(), gguf.GGMLQuantizationType[kind]).shape == blocks.shape


def test_tiny_weights_are_as_near_as_half_precision_allows() -> None:
    weight = 1e-4 * drawn(64)
    limit = 127 * 2**-25 + 1e-4 * 5 / 127  # half a step of such a scale, and a step of the grid
    scale = scales(weight, 8, torch.ones(64), 32)
    whole = (nearest(weight, scale, 8, 32) / per_column(scale, 64, 32)).round().to(torch.int8)
    found = floats_of(blocks_of(Grid(whole, scale.float()), "Q8_0"), "Q8_0")
    assert (found - weight).abs().max() < limit
    none = Grid(0 * whole, 0 * scale.float())
    assert not floats_of(blocks_of(none, "Q8_0"), "Q8_0").any()


def test_weights_that_fit_no_block_are_refused() -> None:
    assert block_type(4, 32, 48) is None
    assert block_type(4, 7, 64) is None
    whole, one = torch.ones(2, 48, dtype=torch.int8), torch.ones(2, 1)
    with pytest.raises(CannotExport, match="blocks of 32 inputs for Q8_0, got 48 in 1 groups"):
        blocks_of(Grid(whole, one), "Q8_0")
    with pytest.raises(CannotExport, match="got 64 in 4 groups: round with group=32"):
        blocks_of(Grid(torch.ones(2, 64, dtype=torch.int8), torch.ones(2, 4)), "Q4_0")
    with pytest.raises(CannotExport, match="numbers of Q4_0 must be -8 to 7, got 9: write Q8_0"):
        blocks_of(Grid(torch.full((2, 32), 9, dtype=torch.int8), one), "Q4_0")
    with pytest.raises(CannotExport, match="a scale must be below 65504, got 1e\\+05"):
        blocks_of(Grid(torch.ones(2, 32, dtype=torch.int8), 1e5 * one), "Q8_0")
    assert blocks_of(Grid(whole[:0, :32], one[:0]), "Q8_0").dtype == np.uint8
