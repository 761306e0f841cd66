"""ONNX with integers: weights on a grid as int8, activations as uint8 with static ranges, in the form (QDQ)
that onnxruntime runs with its integer kernels.

Ranges need no data where batch norm gives the moments of its outputs: mean ± `SPREAD` deviations in every
channel, followed through activations, sums and pools. With inputs they are measured. What has no range stays
in float.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hope.errors import MissingExtra

Array: TypeAlias = NDArray[np.float64]
Function: TypeAlias = Callable[[Array], Array]

SPREAD = 10.0  # deviations from the mean that a range holds: sums of many blocks have long tails
POINTS = np.linspace(-SPREAD, SPREAD, 161)
DENSITY = np.exp(-(POINTS**2) / 2) / np.exp(-(POINTS**2) / 2).sum()
KEEPS = {"Identity", "Dropout", "MaxPool", "Slice", "Cast"}
AVERAGES = {"GlobalAveragePool", "ReduceMean", "AveragePool"}
RESHAPES = {"Flatten", "Reshape", "Squeeze", "Unsqueeze"}
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


@dataclass(frozen=True)
class Grid:
    """A weight on its grid.

    Attributes:
        whole: (rows, columns) int8.
        scale: (rows,).
    """

    whole: Tensor
    scale: Tensor


@dataclass(frozen=True)
class Gauss:
    """What a tensor holds: a function of a Gaussian in every channel.

    Attributes:
        mean, deviation: (channels,) of the Gaussian.
        root: the tensor that is Gaussian.
        function: of the Gaussian, elementwise.
    """

    mean: Array
    deviation: Array
    root: str
    function: Function = np.positive

    @property
    def values(self) -> Array:
        """(channels, points)."""
        return self.function(self.mean[:, None] + self.deviation[:, None] * POINTS)

    @property
    def moments(self) -> tuple[Array, Array]:
        """Mean and variance of what the tensor holds, per channel."""
        values = self.values
        mean = values @ DENSITY
        return mean, np.maximum((values - mean[:, None]) ** 2 @ DENSITY, 0)

    @property
    def range(self) -> tuple[float, float]:
        """The least and the largest value; 0 is among them, so that padding is exact."""
        values = self.values
        return min(0.0, float(values.min())), max(0.0, float(values.max()))


def gauss(mean: Array, variance: Array, root: str) -> Gauss:
    """A tensor that is Gaussian itself."""
    return Gauss(mean, np.sqrt(np.maximum(variance, 0)), root)


def unary(kind: str, attributes: Mapping[str, Any], constants: Sequence[Array | None]) -> Function | None:
    """An elementwise function of ONNX; None if it is none that is known here."""
    if kind == "Clip":
        low, high = (*constants, None, None)[1:3]
        least = -math.inf if low is None else float(low.reshape(-1)[0])
        most = math.inf if high is None else float(high.reshape(-1)[0])
        return lambda x: np.clip(x, least, most)
    slope = float(attributes.get("alpha", 0.01))
    known: dict[str, Function] = {
        "Relu": lambda x: np.maximum(x, 0),
        "LeakyRelu": lambda x: np.where(x > 0, x, slope * x),
        "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "HardSigmoid": lambda x: np.clip(float(attributes.get("alpha", 0.2)) * x + 0.5, 0, 1),
        "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
        "Tanh": np.tanh,
    }
    return known.get(kind)


def ranges(graph: Any, norms: Mapping[str, tuple[Array, Array]]) -> dict[str, tuple[float, float]]:
    """Tensor -> its range, where batch norm gives it.

    Args:
        graph: of an ONNX model.
        norms: weight -> mean and deviation of what the BN after it returns.
    """
    from onnx import helper, numpy_helper

    constant = {one.name: numpy_helper.to_array(one).astype(np.float64) for one in graph.initializer}
    for node in graph.node:
        if node.op_type == "Constant" and node.attribute[0].HasField("t"):
            constant[node.output[0]] = numpy_helper.to_array(node.attribute[0].t).astype(np.float64)
    found: dict[str, Gauss] = {}
    for node in graph.node:
        attributes = {one.name: helper.get_attribute_value(one) for one in node.attribute}
        values = [constant.get(name) for name in node.input]
        made = _follow(node, attributes, values, found, norms)
        if made is not None:
            found[node.output[0]] = made
    return {name: one.range for name, one in found.items()}


def _follow(
    node: Any,
    attributes: Mapping[str, Any],
    constants: Sequence[Array | None],
    found: Mapping[str, Gauss],
    norms: Mapping[str, tuple[Array, Array]],
) -> Gauss | None:
    """What a node returns; None if that is not known."""
    kind, out = node.op_type, node.output[0]
    if kind in ("Conv", "Gemm") and len(node.input) > 1 and node.input[1] in norms:
        mean, deviation = norms[node.input[1]]
        return Gauss(mean, deviation, out)
    inputs = [found.get(name) for name in node.input]
    there = [one for one in inputs if one is not None]
    if not there:
        return None
    first = there[0]
    if kind in ("Conv", "Gemm"):
        return _after_weight(first, attributes, constants, out)
    if kind == "Add" and len(there) == 2:
        (mean, variance), (other, more) = first.moments, there[1].moments
        same = mean.shape == other.shape
        return gauss(mean + other, variance + more, out) if same else None
    if kind == "Mul" and len(there) == 2 and there[1].root == first.root:
        one, two = first.function, there[1].function
        return Gauss(first.mean, first.deviation, first.root, lambda x: one(x) * two(x))
    if kind == "Concat" and attributes.get("axis") == 1 and len(there) == len(inputs):
        parts = [one.moments for one in there]
        return gauss(np.concatenate([a for a, _ in parts]), np.concatenate([b for _, b in parts]), out)
    if kind == "Pad" and constants[1] is not None:
        return _padded(first, constants[1], out)
    if kind in KEEPS | AVERAGES | RESHAPES:
        return first
    function = unary(kind, attributes, constants)
    if function is None:
        return None
    before = first.function
    return Gauss(first.mean, first.deviation, first.root, lambda x: function(before(x)))


def _after_weight(
    x: Gauss, attributes: Mapping[str, Any], constants: Sequence[Array | None], out: str
) -> Gauss | None:
    """After a weight without batch norm, its inputs taken as independent."""
    weight = constants[1]
    if weight is None:
        return None
    if not attributes.get("transB", 1) and weight.ndim == 2:
        weight = weight.T
    taps = weight.reshape(*weight.shape[:2], -1)
    mean, variance = x.moments
    if taps.shape[1] != len(mean):
        return None
    shift = constants[2] if len(constants) > 2 and constants[2] is not None else 0.0
    return gauss(taps.sum(2) @ mean + shift, np.maximum((taps**2).sum(2), taps.sum(2) ** 2) @ variance, out)


def _padded(x: Gauss, pads: Array, out: str) -> Gauss:
    """With channels of zeros."""
    (mean, variance), half = x.moments, len(pads) // 2
    before, after = (int(pads[k]) if half > 1 else 0 for k in (1, half + 1))
    if not before and not after:
        return x
    return gauss(np.pad(mean, (before, after)), np.pad(variance, (before, after)), out)


def write_integers(
    path: Path,
    grids: Mapping[str, Grid],
    norms: Mapping[str, tuple[Array, Array]],
    batches: Sequence[Mapping[str, NDArray[Any]]] = (),
) -> str:
    """Replace an ONNX file by one with integers; returns what to know of it, in a line.

    Args:
        grids: weight -> its grid.
        norms: weight -> mean and deviation of what the BN after it returns.
        batches: inputs by name, to measure ranges on instead.
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
    known = _measured(path, batches) if batches else ranges(model.graph, norms)
    constant = {one.name for one in model.graph.initializer}
    wanted: list[Any] = []
    left: list[Any] = []
    for node in model.graph.node:
        reads = [name for name in node.input if name and name not in constant]
        weighted = node.op_type not in ("Conv", "Gemm") or node.input[1] in grids
        ready = weighted and all(name in known for name in (*reads, *node.output))
        if node.op_type in KINDS:
            (wanted if ready else left).append(node)
    if not any(node.op_type in ("Conv", "Gemm") for node in wanted):
        _weights_only(model, grids)
        onnx.save(model, path)
        return "weights are integers, which saves only bytes: no range of activations is known"
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
    _own_grids(done, model, grids)
    onnx.save(done, path)
    floats = sum(node.op_type in ("Conv", "Gemm", "MatMul") for node in left)
    return f"integers in {len(wanted)} operations" + (
        f", {floats} of the rest with weights" if floats else ""
    )


def _weights_only(model: Any, grids: Mapping[str, Grid]) -> None:
    """Write rounded weights as integers that are made floats before they are used."""
    from onnx import helper, numpy_helper

    for one in list(model.graph.initializer):
        grid, weight = grids.get(one.name), numpy_helper.to_array(one)
        if grid is None or weight.dtype != np.float32 or len(weight) != len(grid.whole):
            continue
        whole, unit = (
            grid.whole.numpy().reshape(weight.shape),
            grid.scale.numpy().astype(np.float32).reshape(-1),
        )
        if not np.array_equal(whole * unit.reshape(-1, *[1] * (weight.ndim - 1)), weight):
            continue  # a BN is folded into it
        name = one.name
        model.graph.initializer.remove(one)
        model.graph.initializer.append(numpy_helper.from_array(whole, f"{name}_quantized"))
        model.graph.initializer.append(numpy_helper.from_array(unit, f"{name}_scale"))
        names = [f"{name}_quantized", f"{name}_scale"]
        model.graph.node.insert(0, helper.make_node("DequantizeLinear", names, [name], axis=0))


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


def _measured(path: Path, batches: Sequence[Mapping[str, NDArray[Any]]]) -> dict[str, tuple[float, float]]:
    """Ranges on inputs, of the float network."""
    import onnx
    import onnxruntime

    model = onnx.load(path)
    names = [name for node in model.graph.node for name in node.output if name]
    given = {one.name for one in model.graph.output}
    model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in given)
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level, settings.intra_op_num_threads = 4, torch.get_num_threads()
    settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), settings, ["CPUExecutionProvider"])
    outputs = [one.name for one in session.get_outputs()]
    found: dict[str, tuple[float, float]] = {}
    for batch in batches:
        values = {**batch, **dict(zip(outputs, session.run(outputs, dict(batch)), strict=True))}
        for name, value in values.items():
            if value.dtype == np.float32 and value.size:
                low, high = found.get(name, (0.0, 0.0))
                found[name] = (min(low, float(value.min())), max(high, float(value.max())))
    return found
