"""Ranges of activations in an ONNX graph, for integer kernels.

They need no data where batch norm gives the moments of its outputs, followed through activations, sums and
pools: of mean ± 3 to 10 deviations in every channel that of least expected error. With inputs they are
measured.
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

Array: TypeAlias = NDArray[np.float64]
Function: TypeAlias = Callable[[Array], Array]

SPREADS = (3.0, 4.0, 5.0, 6.0, 8.0, 10.0)  # deviations from the mean that a range may hold
POINTS = np.linspace(-SPREADS[-1], SPREADS[-1], 161)
DENSITY = np.exp(-(POINTS**2) / 2) / np.exp(-(POINTS**2) / 2).sum()
TAILS = np.exp(-math.sqrt(2) * abs(POINTS)) / np.exp(-math.sqrt(2) * abs(POINTS)).sum()  # longer ones
STEPS = 255  # of the grid of activations
KEEPS = {"Identity", "Dropout", "MaxPool", "Slice", "Cast"}
AVERAGES = {"GlobalAveragePool", "ReduceMean", "AveragePool"}
RESHAPES = {"Flatten", "Reshape", "Squeeze", "Unsqueeze"}


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
        """The range of least expected error of rounding to 8 bits; 0 is in it, so that padding is exact.

        Values have the tails of a Laplace distribution: sums of many blocks are further out than a Gaussian.
        """
        values, found = self.values, []
        for spread in SPREADS:
            inside = values[:, abs(POINTS) <= spread + 1e-9]
            low, high = min(0.0, float(inside.min())), max(0.0, float(inside.max()))
            clipped = ((values - np.clip(values, low, high)) ** 2 @ TAILS).mean()
            found.append((float(clipped) + ((high - low) / STEPS) ** 2 / 12, low, high))
        return min(found)[1:]


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


def ranges(
    graph: Any, norms: Mapping[str, tuple[Array, Array]], entry: tuple[float, float] | None = None
) -> dict[str, tuple[float, float]]:
    """Tensor -> its range, where batch norm gives it.

    Args:
        graph: of an ONNX model.
        norms: weight -> mean and deviation of what the BN after it returns.
        entry: the input's range; None if it is not known.
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
    given = {graph.input[0].name: entry} if entry is not None and len(graph.input) == 1 else {}
    for node in graph.node:  # what is only moved keeps its range
        if node.op_type in KEEPS | {"Pad"} and node.input[0] in given:
            given[node.output[0]] = given[node.input[0]]
    return given | {name: one.range for name, one in found.items()}


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


def measured_ranges(
    path: Path, batches: Sequence[Mapping[str, NDArray[Any]]]
) -> dict[str, tuple[float, float]]:
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
