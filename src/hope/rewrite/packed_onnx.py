"""Rounded weights in an ONNX graph that computes with floats: 4 or 8 bits in the file.

A linear layer of 4 bits, or with groups, becomes onnxruntime's `MatMulNBits`, which reads the packed weight.
Any other weight is made floats by a `DequantizeLinear` when the file is loaded, which saves bytes only.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

HALF = 7  # the largest whole number of 4 bits
BLOCKS = (256, 128, 64, 32, 16)  # inputs that may share a scale in `MatMulNBits`
CLOSE = 1e-6  # of the largest entry: how far a weight that batch norm is folded into may be from its grid
OPSET, IR = 21, 10  # of which on there are 4 bits, and blocks


@dataclass(frozen=True)
class Grid:
    """A weight on its grid.

    Attributes:
        whole: (rows, columns) int8.
        scale: (rows, groups).
    """

    whole: Tensor
    scale: Tensor


@dataclass(frozen=True)
class PackedWeight:
    """A weight of a graph on its grid, (outputs, inputs) for matrices.

    Attributes:
        whole: int8, of the weight's shape, outputs first.
        scale: (outputs, groups).
        turned: whether the graph has it as (inputs, outputs).
    """

    whole: NDArray[np.int8]
    scale: NDArray[np.float32]
    turned: bool

    @property
    def half(self) -> bool:
        """Whether 4 bits hold it."""
        return bool(abs(self.whole).max(initial=0) <= HALF)

    @property
    def packs(self) -> bool:
        """Whether `MatMulNBits` is to read it; groups of 8 bits, too, which onnxruntime would otherwise
        multiply with activations of 8 bits.
        """
        return self.half or self.scale.shape[1] > 1

    @property
    def block(self) -> int:
        """Inputs that share a scale in `MatMulNBits`; 0 if it does not take them so."""
        columns, groups = self.whole[0].size, self.scale.shape[1]
        most = columns if groups == 1 else columns // groups
        fits = (one for one in BLOCKS if most % one == 0 and (groups == 1 or one * groups == columns))
        return next(fits, 0)


def pack_weights(model: Any, grids: Mapping[str, Grid]) -> tuple[int, int]:
    """Write rounded weights with few bits, in place; returns how many are read packed, and how many are made
    floats again.

    Args:
        model: of ONNX.
        grids: weight -> its grid. A weight is found by its numbers: exporters turn and rename some.
    """
    graph = model.graph
    found = dict(packed(graph, grids))
    uses = Counter(name for node in graph.node for name in node.input)
    products = 0
    for place, node in reversed(list(enumerate(graph.node))):
        one = found.get(node.input[1]) if node.op_type in ("Gemm", "MatMul") else None
        if one is not None and one.packs and one.block and uses[node.input[1]] == 1 and _plain(node, one):
            _as_product(model, place, node, found.pop(node.input[1]))
            products += 1
    for name, one in found.items():
        _as_floats(model, name, one)
    return products, len(found)


def packed(graph: Any, grids: Mapping[str, Grid]) -> Iterator[tuple[str, PackedWeight]]:
    """The weights of a graph that are on a grid, by their names in the graph."""
    from onnx import numpy_helper

    tables = [(grid.whole.numpy(), grid.scale.numpy().astype(np.float32)) for grid in grids.values()]
    known = [(whole, scale, _product(whole, scale)) for whole, scale in tables]
    for one in graph.initializer:
        if len(one.dims) < 2:
            continue
        weight = numpy_helper.to_array(one)
        rows = weight.reshape(len(weight), -1)
        named = grids.get(one.name)
        if named is not None and (scale := _row_scale(rows, named.whole.numpy())) is not None:
            yield one.name, PackedWeight(named.whole.numpy().reshape(weight.shape), scale, False)
            continue
        for whole, scale, product in known:
            if rows.shape == product.shape and np.array_equal(rows, product):
                yield one.name, PackedWeight(whole.reshape(weight.shape), scale, False)
                break
            if weight.ndim == 2 and weight.T.shape == product.shape and np.array_equal(weight.T, product):
                yield one.name, PackedWeight(whole, scale, True)
                break


def _row_scale(rows: NDArray[np.float32], whole: NDArray[np.int8]) -> NDArray[np.float32] | None:
    """One scale per output whose products with whole numbers are a weight; None if there are none such."""
    if rows.shape != whole.shape:
        return None
    wide = whole.astype(np.float64)
    scale = (rows * wide).sum(1, keepdims=True) / np.maximum((wide**2).sum(1, keepdims=True), 1)
    near = abs(scale * wide - rows).max(initial=0) <= CLOSE * abs(rows).max(initial=0)
    return scale.astype(np.float32) if near else None


def _product(whole: NDArray[np.int8], scale: NDArray[np.float32]) -> NDArray[np.float32]:
    width = -(-whole.shape[1] // scale.shape[1])
    spread: NDArray[np.float32] = whole * scale.repeat(width, axis=1)[:, : whole.shape[1]]
    return spread


def _plain(node: Any, weight: PackedWeight) -> bool:
    """Whether a node is x Wᵀ + b and nothing more."""
    if node.op_type == "MatMul":
        return weight.turned
    given = {one.name: one.f if one.name in ("alpha", "beta") else one.i for one in node.attribute}
    usual = given.get("alpha", 1) == given.get("beta", 1) == 1 and not given.get("transA", 0)
    return bool(usual and given.get("transB", 0) != weight.turned)


def _as_product(model: Any, place: int, node: Any, weight: PackedWeight) -> None:
    """Put `MatMulNBits` in the place of a node."""
    from onnx import helper

    graph, name = model.graph, node.input[1]
    outputs, inputs, block = *weight.whole.shape, weight.block
    bits = 4 if weight.half else 8
    packed: NDArray[Any] = (weight.whole.astype(np.int16) + (1 << bits - 1)).astype(np.uint8)
    packed = packed.reshape(outputs, inputs // block, block)
    if weight.half:
        packed = packed[..., ::2] | packed[..., 1::2] << 4
    scale = np.broadcast_to(weight.scale, (outputs, inputs // block)).astype(np.float32)
    bias = node.input[2] if len(node.input) > 2 else ""
    result = f"{node.output[0]}_product" if bias else node.output[0]
    how = {"K": inputs, "N": outputs, "bits": bits, "block_size": block, "domain": "com.microsoft"}
    reads = [node.input[0], f"{name}_packed", f"{name}_scale"]
    made = [helper.make_node("MatMulNBits", reads, [result], name=f"{name}_product", **how)]
    made += [helper.make_node("Add", [result, bias], [node.output[0]])] if bias else []
    graph.node.remove(node)
    for one in reversed(made):
        graph.node.insert(place, one)
    _put(graph, name, {f"{name}_packed": packed, f"{name}_scale": scale.reshape(-1)})
    _require(model, "com.microsoft", 1)


def _as_floats(model: Any, name: str, weight: PackedWeight) -> None:
    """Put `DequantizeLinear` before what uses a weight."""
    from onnx import TensorProto, helper

    graph, shape = model.graph, weight.whole.shape
    rows, groups = weight.scale.shape
    columns = weight.whole[0].size
    blocks = groups > 1
    flat = weight.whole.reshape(rows, columns) if blocks else weight.whole
    scale, axis = (weight.scale, 1) if blocks else (weight.scale.reshape(-1), 0)
    if weight.turned:
        flat, scale, axis = np.ascontiguousarray(flat.T), np.ascontiguousarray(scale.T), 1 - axis
        scale = scale if blocks else scale.reshape(-1)
    laid = f"{name}_rows" if blocks and len(shape) > 2 else name
    how = {"axis": axis, **({"block_size": -(-columns // groups)} if blocks else {})}
    names = [f"{name}_quantized", f"{name}_scale"]
    nodes = [helper.make_node("DequantizeLinear", names, [laid], name=f"{name}_floats", **how)]
    if laid != name:
        graph.initializer.append(helper.make_tensor(f"{name}_shape", TensorProto.INT64, [len(shape)], shape))
        nodes.append(helper.make_node("Reshape", [laid, f"{name}_shape"], [name]))
    for one in reversed(nodes):
        graph.node.insert(0, one)
    _put(graph, name, {f"{name}_quantized": flat, f"{name}_scale": scale}, half=weight.half)
    if weight.half or blocks:
        _require(model, "", OPSET)
        model.ir_version = max(model.ir_version, IR)


def _put(graph: Any, name: str, tensors: Mapping[str, NDArray[Any]], half: bool = False) -> None:
    """Replace an initializer by others; int8 ones have 4 bits if they fit."""
    from onnx import TensorProto, helper, numpy_helper

    graph.initializer.remove(next(one for one in graph.initializer if one.name == name))
    for new, values in tensors.items():
        if half and values.dtype == np.int8:
            low = values.reshape(-1).astype(np.uint8) & 15
            low = np.append(low, 0) if low.size % 2 else low
            packed = (low[::2] | low[1::2] << 4).tobytes()
            made = helper.make_tensor(new, TensorProto.INT4, values.shape, packed, raw=True)
        else:
            made = numpy_helper.from_array(np.ascontiguousarray(values), new)
        graph.initializer.append(made)


def _require(model: Any, domain: str, version: int) -> None:
    """At least that version of a set of operators."""
    from onnx import helper

    there = next((one for one in model.opset_import if one.domain == domain), None)
    if there is None:
        model.opset_import.append(helper.make_opsetid(domain, version))
    else:
        there.version = max(there.version, version)
