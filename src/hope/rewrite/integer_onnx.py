"""ONNX with integers: weights on a grid as int8, activations as uint8 with static ranges, in the form (QDQ)
that onnxruntime runs with its integer kernels.

What has no range (see `rewrite.activation_ranges`) stays in float.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hope.errors import MissingExtra
from hope.rewrite.activation_ranges import Array, measured_ranges, ranges
from hope.rewrite.packed_onnx import Grid, PackedWeight, pack_weights, packed

WEIGHTED = ("Conv", "Gemm", "MatMul")
KINDS = [
    "Conv",
    "Gemm",
    "MatMul",
    "Add",
    "Relu",
    "Clip",
    "MaxPool",
    "GlobalAveragePool",
    "AveragePool",
    "Concat",
]


def write_integers(
    path: Path,
    grids: Mapping[str, Grid],
    norms: Mapping[str, tuple[Array, Array]],
    batches: Sequence[Mapping[str, NDArray[Any]]] = (),
    entry: tuple[float, float] | None = None,
) -> str:
    """Replace an ONNX file by one with integers; returns what to know of it, in a line.

    Args:
        grids: weight -> its grid.
        norms: weight -> mean and deviation of what the BN after it returns.
        batches: inputs by name, to measure ranges on instead.
        entry: the input's range, if it is known.
    """
    try:
        import onnx
        from onnxruntime.quantization import CalibrationMethod, QuantType
        from onnxruntime.quantization.calibrate import TensorsData
        from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
    except ImportError as error:
        raise MissingExtra("integers in ONNX need onnxruntime: pip install 'hope-encoding[onnx]'") from error
    model = onnx.load(path)
    for number, node in enumerate(model.graph.node):
        node.name = node.name or f"{node.op_type}_{number}"
    able = any(node.op_type in ("Conv", "Gemm") for node in model.graph.node)
    known = {}
    if able:  # otherwise nothing computes with integers
        known = measured_ranges(path, batches) if batches else ranges(model.graph, norms, entry)
    constant = {one.name for one in model.graph.initializer}
    single = {name: grid for name, grid in grids.items() if grid.scale.shape[1] == 1}
    turned = {name: one for name, one in packed(model.graph, single) if one.turned}
    wanted: list[Any] = []
    left: list[Any] = []
    for node in model.graph.node:
        reads = [name for name in node.input if name and name not in constant]
        weighted = node.op_type in WEIGHTED and node.input[1] in constant
        ours = turned if node.op_type == "MatMul" else single
        ready = not weighted or node.input[1] in ours
        ready = ready and all(name in known for name in (*reads, *node.output))
        if node.op_type in KINDS:
            (wanted if ready else left).append(node)
    if not any(node.op_type in ("Conv", "Gemm") for node in wanted):
        products, floats = pack_weights(model, grids)
        onnx.save(model, path)
        return _note(0, products, floats, 0, bool(known) or not able)
    quantizer = QDQQuantizer(
        model,
        per_channel=True,
        reduce_range=False,
        weight_qType=QuantType.QInt8,
        activation_qType=QuantType.QUInt8,
        tensors_range=TensorsData(
            CalibrationMethod.MinMax,
            {name: (np.float32(low), np.float32(high)) for name, (low, high) in known.items()},
        ),
        nodes_to_quantize=[node.name for node in wanted],
        nodes_to_exclude=[],
        op_types_to_quantize=sorted({node.op_type for node in wanted}),
        # scores have longer tails than a Gaussian: they stay in float
        extra_options={"WeightSymmetric": True, "OpTypesToExcludeOutputQuantization": ["Gemm", "MatMul"]},
    )
    quantizer.quantize_model()
    done = quantizer.model.model
    _own_grids(done, model, single)
    _own_products(done, turned)
    products, floats = pack_weights(done, grids)
    onnx.save(done, path)
    return _note(len(wanted), products, floats, sum(node.op_type in WEIGHTED for node in left) - products)


def _note(integers: int, products: int, floats: int, rest: int, ranges_known: bool = True) -> str:
    """What an export says of itself."""
    words = [f"integers in {integers} operations" + (f", {rest} of the rest with weights" if rest else "")]
    words = words if integers else []
    words += [f"{products} linear layers read packed weights"] if products else []
    if floats:
        reason = (
            "no convolution or Gemm can use integer kernels"
            if ranges_known
            else "no range of activations is known"
        )
        where = "" if integers else f": {reason}"
        words.append(f"{floats} weights are integers in the file only, which saves only bytes{where}")
    return "; ".join(words)


def _own_products(done: Any, weights: Mapping[str, PackedWeight]) -> None:
    """The same for weights of `MatMul`, which are (inputs, outputs)."""
    from onnx import numpy_helper

    now = {one.name: one for one in done.graph.initializer}
    for name, weight in weights.items():
        if f"{name}_quantized" in now:
            own: dict[str, NDArray[Any]] = {
                f"{name}_quantized": np.ascontiguousarray(weight.whole.T),
                f"{name}_scale": weight.scale[:, 0],
            }
            for put, value in own.items():
                now[put].CopyFrom(numpy_helper.from_array(value, put))


def _own_grids(done: Any, original: Any, grids: Mapping[str, Grid]) -> None:
    """Put a weight's own whole numbers in the place of onnxruntime's; biases follow."""
    from onnx import numpy_helper

    before = {one.name: numpy_helper.to_array(one) for one in original.graph.initializer}
    now = {one.name: one for one in done.graph.initializer}

    def put(name: str, value: NDArray[Any]) -> None:
        now[name].CopyFrom(numpy_helper.from_array(value, name))

    scales = {}
    for node in original.graph.node:
        name = node.input[1] if len(node.input) > 1 else ""
        if node.op_type not in ("Conv", "Gemm") or f"{name}_quantized" not in now or name not in grids:
            continue
        weight = before[name].reshape(len(before[name]), -1).astype(np.float64)
        grid = grids[name].whole.numpy().astype(np.float64)
        if weight.shape != grid.shape:
            continue
        unit = (weight * grid).sum(1) / np.maximum((grid**2).sum(1), 1)  # its scale times that of the BN
        sign = np.where(unit < 0, -1, 1)
        unit = np.where(unit == 0, 1e-8, np.abs(unit)).astype(np.float32)
        put(f"{name}_quantized", (grid * sign[:, None]).astype(np.int8).reshape(before[name].shape))
        old = numpy_helper.to_array(now[f"{name}_scale"])
        put(f"{name}_scale", unit.reshape(old.shape))
        scales[name] = (node, old.reshape(-1), unit)
    for node, old, unit in scales.values():
        bias = node.input[2] if len(node.input) > 2 else ""
        if f"{bias}_quantized" not in now:
            continue
        step = numpy_helper.to_array(now[f"{bias}_quantized_scale"]).astype(np.float64).reshape(-1)
        again = step / old * unit
        whole = np.clip(np.round(before[bias] / again), -(2**31) + 1, 2**31 - 1).astype(np.int32)
        put(f"{bias}_quantized", whole)
        put(f"{bias}_quantized_scale", again.astype(np.float32))
