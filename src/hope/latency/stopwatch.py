"""Measured seconds of single operators and of alternating networks.

Each candidate runs once per round, so that other load on the machine affects all equally. The result is the
mean of the fastest fifth of the rounds; slower ones were disturbed. With one thread, processor time is
measured: other programs do not prolong it.
"""

from __future__ import annotations

import json
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from math import prod
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree

from hope._util.calls import Example, as_call, tensors_in
from hope.errors import CannotExport, InvalidExample, first_line
from hope.latency.runtime import Runtime, threads
from hope.latency.surface import Width
from hope.latency.timed_operators import TimedOperator
from hope.rewrite.export import Integers, export_onnx, onnx_session

Runner: TypeAlias = Callable[[], Any]
Point: TypeAlias = tuple[TimedOperator, Width]
ROUNDS = (8, 150)  # at least, at most
SECONDS = 1.5  # that some rounds may take together


def ticks(count: int) -> Callable[[], float]:
    """Seconds so far, for so many threads."""
    fine = time.get_clock_info("thread_time").resolution < 1e-6
    return time.thread_time if count == 1 and fine else time.perf_counter


def typical(times: Sequence[float]) -> float:
    """The mean of the fastest fifth.

    >>> typical([3.0, 1.0, 9.0, 2.0, 4.0, 5.0])
    1.5
    """
    best = sorted(times)[: -(-len(times) // 5)]
    return sum(best) / len(best)


class Stopwatch:
    """Measures in a runtime with all values resolved."""

    def __init__(self, runtime: Runtime) -> None:
        assert runtime.batch is not None
        assert runtime.threads is not None
        self.runtime, self.batch, self.threads = runtime, runtime.batch, runtime.threads

    def operators(self, points: Sequence[Point]) -> list[float]:
        """Nanoseconds of operators at widths."""
        measure = _in_onnxruntime if self.runtime.engine == "onnxruntime" else _in_torch
        with threads(self.threads):
            return measure(points, self.threads)

    def networks(
        self,
        models: Sequence[nn.Module],
        example: Example | None,
        integers: Sequence[Integers | None] = (),
    ) -> list[float]:
        """Nanoseconds of whole networks on the example, with as many inputs as the runtime has.

        Args:
            integers: of each, if onnxruntime is to compute with integers.

        Raises:
            InvalidExample: the model does not run on so many.
            CannotExport: onnxruntime cannot run it.
        """
        call = batched(example, self.batch)
        with threads(self.threads), tempfile.TemporaryDirectory() as folder:
            every = zip(models, integers or [None] * len(models), strict=True)
            runners = [self.runner(model.eval(), call, Path(folder), some) for model, some in every]
            return [1e9 * typical(some) for some in in_turns(runners, SECONDS * len(runners))]

    def runner(self, model: nn.Module, call: Any, folder: Path, integers: Integers | None = None) -> Runner:
        """A network in the engine, on one batch; the folder is for files that the engine reads."""
        args, kwargs = as_call(call)

        def run() -> Any:
            with torch.inference_mode():
                return model(*args, **kwargs)

        try:
            run()
        except Exception as error:  # anything that the model raises
            raise InvalidExample(
                f"batch must be a size that the model runs on, got {self.batch} ({first_line(error)}): "
                "give another, or an example of that batch"
            ) from error
        if self.runtime.engine == "torch":
            return run
        path = folder / f"{len(list(folder.iterdir()))}.onnx"
        try:
            export_onnx(model, call, path, dynamic=False, check=False, integers=integers)
            session = onnx_session(str(path), self.threads)
        except Exception as error:  # the exporter's and onnxruntime's own, of many kinds
            words = first_line(error).replace(f"{path.name} cannot be made: ", "")
            raise CannotExport(
                f"onnxruntime cannot run this model ({words}): use runtime='torch' (--runtime torch)"
            ) from error
        arrays = [tensor.numpy() for tensor in tensors_in((args, kwargs))]
        feed = dict(zip((one.name for one in session.get_inputs()), arrays, strict=False))
        return lambda: session.run(None, feed)


def batched(example: Example | None, batch: int) -> Any:
    """The example with another number of inputs, filled with noise."""
    generator = torch.Generator().manual_seed(0)

    def one(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.ndim:
            return leaf
        some = leaf.detach().cpu()[torch.arange(batch) % len(leaf)] if len(leaf) else leaf
        return (
            torch.randn(some.shape, generator=generator, dtype=some.dtype)
            if some.is_floating_point()
            else some
        )

    as_call(example)
    return pytree.tree_map(one, example)


def in_turns(
    runners: Sequence[Runner], seconds: float, *, warm: bool = True, rounds: tuple[int, int] = ROUNDS
) -> list[list[float]]:
    """Seconds of each runner in every round, as many rounds as fit.

    Args:
        warm: run each twice and time the second run: caches then contain what they would in a network.
    """
    times: list[list[float]] = [[] for _ in runners]
    begin, now = time.perf_counter(), ticks(torch.get_num_threads())
    for done in range(rounds[1]):
        if done >= rounds[0] and time.perf_counter() - begin > seconds:
            break
        for turn in range(len(runners)):
            which = (turn + done) % len(runners)
            if warm or (not done and rounds is ROUNDS):
                runners[which]()
            start = now()
            runners[which]()
            times[which].append(now() - start)
    return times


class _Store:
    """Noise as input, shared by all: times do not depend on the values."""

    def __init__(self, points: Sequence[Point]) -> None:
        most = max(max(prod(_input(*one)), prod(_weight(*one))) for one in points)
        self._noise = torch.randn(most, generator=torch.Generator().manual_seed(0)) * 0.1

    def __call__(self, shape: Sequence[int]) -> Tensor:
        return self._noise[: prod(shape)].view(*shape)


def _input(operator: TimedOperator, width: Width) -> tuple[int, ...]:
    reads, _, _ = operator.channels(width)
    return (
        (*operator.over, reads)
        if operator.kind == "linear"
        else (operator.over[0], reads, *operator.over[1:])
    )


def _weight(operator: TimedOperator, width: Width) -> tuple[int, ...]:
    reads, writes, groups = operator.channels(width)
    if operator.kind == "transposed":
        return (reads, writes // groups, *operator.kernel)
    return (writes, reads // groups, *operator.kernel)


def _in_torch(points: Sequence[Point], _: int) -> list[float]:
    store = _Store(points)

    def runner(operator: TimedOperator, width: Width) -> Runner:
        x, weight = store(_input(operator, width)), store(_weight(operator, width)).clone()
        _, writes, groups = operator.channels(width)
        bias = torch.zeros(writes) if operator.bias else None
        if operator.kind == "linear":
            return lambda: F.linear(x, weight, bias)
        space = len(operator.kernel)
        how: dict[str, Any] = {
            "stride": operator.stride, "padding": operator.padding, "dilation": operator.dilation,
            "groups": groups,
        }  # fmt: skip
        if operator.kind == "transposed":
            call = getattr(F, f"conv_transpose{space}d")
            return lambda: call(x, weight, bias, output_padding=operator.extra, **how)
        call = getattr(F, f"conv{space}d")
        return lambda: call(x, weight, bias, **how)

    with torch.inference_mode():
        runners = [runner(*point) for point in points]
        return [1e9 * typical(some) for some in in_turns(runners, SECONDS, warm=False)]


def _in_onnxruntime(points: Sequence[Point], count: int) -> list[float]:
    """One model of unconnected operators, and the time that onnxruntime reports for each: without the
    reordering around a convolution, which a whole network does not do for each.
    """
    store = _Store(points)
    feed = {f"x{n}": store(_input(*point)).numpy() for n, point in enumerate(points)}
    with tempfile.TemporaryDirectory() as folder:
        session = onnx_session(_model(points, store), count, f"{folder}/profile")
        begin = time.perf_counter()
        for done in range(ROUNDS[1]):
            if done > ROUNDS[0] and time.perf_counter() - begin > SECONDS:
                break
            session.run(None, feed)
        events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    times: dict[int, list[float]] = {}
    for event in events:
        found = re.fullmatch(r"(?:p|y)(\d+)(?:_nchwc)?_kernel_time", event.get("name", ""))
        if found and event.get("cat") == "Node":
            times.setdefault(int(found[1]), []).append(1e3 * event["dur"] + 500)  # it counts whole µs
    missing = next((n for n in range(len(points)) if n not in times), None)
    if missing is not None:
        raise CannotExport(
            f"onnxruntime must report a time for each operator, got none for {points[missing][0].name}: "
            "use runtime='torch'"
        )
    return [typical(times[n][1:]) for n in range(len(points))]


def _model(points: Sequence[Point], store: _Store) -> bytes:
    """The operators as ONNX."""
    from onnx import TensorProto, helper, numpy_helper

    nodes, inputs, outputs, weights = [], [], [], []
    for n, (operator, width) in enumerate(points):
        _, writes, groups = operator.channels(width)
        weights += [
            numpy_helper.from_array(store(_weight(operator, width)).numpy(), f"w{n}"),
            numpy_helper.from_array(np.zeros(writes, "float32"), f"b{n}"),
        ]
        inputs.append(helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, _input(operator, width)))
        outputs.append(helper.make_tensor_value_info(f"y{n}", TensorProto.FLOAT, None))
        names = [f"x{n}", f"w{n}", f"b{n}"]
        if operator.kind == "linear":
            nodes.append(helper.make_node("Gemm", names, [f"y{n}"], name=f"p{n}", transB=1))
            continue
        how: dict[str, Any] = {
            "kernel_shape": operator.kernel, "strides": operator.stride, "dilations": operator.dilation,
            "group": groups,
        }  # fmt: skip
        if isinstance(operator.padding, str):
            how["auto_pad"] = "SAME_UPPER" if operator.padding == "same" else "VALID"
        else:
            how["pads"] = operator.padding * 2
        if operator.kind == "transposed":
            how["output_padding"] = operator.extra
        kind = "ConvTranspose" if operator.kind == "transposed" else "Conv"
        nodes.append(helper.make_node(kind, names, [f"y{n}"], name=f"p{n}", **how))
    graph = helper.make_graph(nodes, "operators", inputs, outputs, weights)
    made: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    ).SerializeToString()
    return made
