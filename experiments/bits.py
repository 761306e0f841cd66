"""What bits are worth, without data: `python -m experiments.bits [NETWORK ...]`, resumable.

Every weight rounded to 8, 4, 3 or 2 bits, to nearest and with error feedback; budgets in bytes met by
removing neurons, by bits, by both, and by one after the other; the integer network in onnxruntime, against
the float one in the same run; and onnxruntime's own quantisation, which needs inputs.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import hope
from experiments import readme
from experiments.command import RESULTS as FOLDER
from experiments.command import call, network_parser, opened
from experiments.compression.page import TITLES
from experiments.refit import loaded
from hope.bench.accuracy import accuracy, interval
from hope.schedule.bits import readers
from hope.schedule.trajectory import Trajectory

RESULTS = FOLDER / "bits.json"
NETWORKS = ("cifar10-resnet20", "cifar10-resnet56", "mobilenet_v2", "keras-resnet50")
UNIFORM = (8, 4, 3, 2)
SIZES = (0.5, 0.25, 0.15, 0.1, 0.07)
WAYS = ("neurons", "bits", "both")
SEQUENCE = (0.15, 0.1, 0.07)
PEERS = ("onnxruntime's static quantisation", "onnxruntime's dynamic quantisation")
ALL = (8, 6, 5, 4, 3, 2)
INT8 = 0.26  # of the bytes, with 8 bits a weight
MEASURED = (4, 3)  # bits that are rounded under the statistics of real inputs, too
PART = 32  # inputs of a batch
ORDERS = {way: way for way in WAYS} | {"sequence": "neurons, then 8 bits"}
TIMES = 40  # calls, of which the fastest counts


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = network_parser("bits", "Measure what bits are worth.", list(NETWORKS), RESULTS, "")
    top.add_argument("--points", nargs="+", metavar="POINT", help="default: all of a network")
    return top


def run(options: argparse.Namespace) -> None:
    """Measure what is missing."""
    if readme.shown(options, {"bits": table}):
        return
    for name, model, images, labels, apart, entry, write in opened(options, NETWORKS, loaded):
        points = entry["points"]
        for key, measured in _Measured(model, images, labels, apart).figures():
            if key not in points and (not options.points or key in options.points):
                points[key] = measured()
                print(name, key, points[key], flush=True)
                write()


class _Measured:
    """Figures of one network; a run is made once, when the first figure of it is missing."""

    def __init__(self, model: nn.Module, images: Tensor, labels: Tensor, apart: Tensor) -> None:
        self.model, self.images, self.labels, self.apart = model, images, labels, apart
        self.anatomy = hope.inspect(model, images[:1])
        self._runs: dict[str, hope.Encoding] = {}

    def figures(self) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
        """(name of a figure, what measures it)."""
        for bits in UNIFORM:
            yield f"nearest {bits}", partial(self._nearest, bits)
            yield f"feedback {bits}", partial(self._rounded, f"{bits} bits", bits=bits)
        real = list(torch.split(self.apart, PART))
        for bits in MEASURED:
            name = f"feedback {bits}, {len(self.apart)} inputs"
            yield name, partial(self._rounded, name, bits=bits, calibration=real)
        yield "onnxruntime", self._integers
        for how in PEERS:
            yield how, partial(self._peer, how)
        for way, share in product(WAYS, SIZES):
            yield f"{way} {share}", partial(self._budget, way, share)
        for share in SEQUENCE:
            yield f"sequence {share}", partial(self._sequence, share)

    def _encoded(self, key: str, **how: Any) -> hope.Encoding:
        if key not in self._runs:
            self._runs[key] = hope.encode(
                self.model, self.images[:1], anatomy=self.anatomy, progress=False, **how
            )
        return self._runs[key]

    def _point(self, small: nn.Module, share: float) -> dict[str, Any]:
        return {"accuracy": accuracy(small, self.images, self.labels), "size": float(share)}

    def _nearest(self, bits: int) -> dict[str, Any]:
        steps = [hope.Quantise(weight, bits, 0, "nearest") for weight in readers(self.anatomy)]
        sizes = Trajectory.of(self.anatomy, steps).counts("size")
        return self._point(hope.cut(self.model, self.anatomy, steps), sizes[-1] / sizes[0])

    def _rounded(self, key: str, **how: Any) -> dict[str, Any]:
        run = self._encoded(key, **how)
        sizes = run.trajectory.counts("size")
        return self._point(run.model, sizes[-1] / sizes[0])

    def _budget(self, way: str, share: float) -> dict[str, Any]:
        how: dict[str, dict[str, Any]] = {
            "neurons": {"size": min(SIZES), "bits": None},
            "bits": {"bits": list(ALL)},
            "both": {"size": min(SIZES)},
        }
        try:
            run = self._encoded(way, **how[way])
            steps = run.trajectory.steps_to("size", share)
        except hope.InfeasibleBudget as error:
            return {"accuracy": None, "why": str(error)}
        sizes = run.trajectory.counts("size")
        return self._point(run.at(steps=steps), sizes[steps] / sizes[0])

    def _sequence(self, share: float) -> dict[str, Any]:
        """Neurons are removed first, and what is left is rounded to 8 bits."""
        run = self._encoded("parameters", params=min(SEQUENCE) / INT8)
        small = run.at(params=share / INT8)
        rounded = hope.encode(small, self.images[:1], bits=8, progress=False)
        sizes, whole = rounded.trajectory.counts("size"), run.trajectory.counts("size")[0]
        return self._point(rounded.model, sizes[-1] / whole)

    def _integers(self) -> dict[str, Any]:
        """The integer network in onnxruntime: accuracy, and size and time next to the float one's."""
        with tempfile.TemporaryDirectory() as scratch:
            files = [Path(scratch) / name for name in ("float.onnx", "integer.onnx")]
            hope.export_onnx(self.model, self.images[:1], files[0])
            self._encoded("8 bits", bits=8).export_onnx(files[1])
            return _compared(files, self.images, self.labels)

    def _peer(self, how: str) -> dict[str, Any]:
        """The same of onnxruntime's own quantisation; static ranges come from the images set apart."""
        from onnxruntime import quantization

        class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
            def __init__(self, name: str, images: Tensor) -> None:
                self.parts = iter([{name: part.numpy()} for part in torch.split(images, PART)])

            def get_next(self) -> dict[str, Any] | None:
                return next(self.parts, None)

        with tempfile.TemporaryDirectory() as scratch:
            files = [Path(scratch) / name for name in ("float.onnx", "ready.onnx", "integer.onnx")]
            hope.export_onnx(self.model, self.images[:1], files[0])
            quantization.quant_pre_process(str(files[0]), str(files[1]))
            if how == PEERS[0]:
                reader = Reader(_session(files[0]).get_inputs()[0].name, self.apart)
                unsigned = quantization.QuantType.QUInt8  # the fast kernels' type, which HOPE writes, too
                quantization.quantize_static(
                    files[1], files[2], reader, per_channel=True, activation_type=unsigned
                )
            else:
                quantization.quantize_dynamic(files[1], files[2])
            return _compared([files[0], files[2]], self.images, self.labels)


def _session(file: Path) -> Any:
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])


def _compared(files: Sequence[Path], images: Tensor, labels: Tensor) -> dict[str, Any]:
    """The accuracy of the second of two files, and its size and speed against the first."""
    sessions = [_session(file) for file in files]
    name = sessions[0].get_inputs()[0].name
    times = []
    for _ in range(TIMES):  # in turn, so that both meet the same machine
        for session in sessions:
            start = time.perf_counter()
            session.run(None, {name: images[:1].numpy()})
            times.append(time.perf_counter() - start)
    parts = [images[start : start + 50].numpy() for start in range(0, len(images), 50)]
    found = np.concatenate([sessions[1].run(None, {name: part})[0].argmax(1) for part in parts])
    return {
        "accuracy": int((found == labels.numpy()).sum()) / len(images),
        "size": files[1].stat().st_size / files[0].stat().st_size,
        "faster": min(times[::2]) / min(times[1::2]),
    }


def table() -> str:
    """Two tables per network."""
    lines: list[str] = []
    for name, entry in json.loads(RESULTS.read_text()).items():
        low, high = interval(0.5, entry["images"])
        points = entry["points"]
        lines += [
            f"\n**{TITLES[name]}**: top-1, without data if nothing else is said; base "
            f"{entry['base']:.3f}, {entry['images']:,} images, 95% intervals within "
            f"±{(high - low) / 2:.3f}\n",
            f"| every weight rounded | {' | '.join(f'{bits} bits' for bits in UNIFORM)} |",
            "|---" * (len(UNIFORM) + 1) + "|",
        ]
        for way in ("nearest", "feedback"):
            lines.append(f"| {way} | {' | '.join(_cell(points.get(f'{way} {bits}')) for bits in UNIFORM)} |")
        inputs = [_cell(points.get(f"feedback {bits}, 512 inputs")) for bits in UNIFORM]
        lines += [f"| feedback, 512 inputs | {' | '.join(inputs)} |", ""]
        if "onnxruntime" in points:
            lines += [
                "| in onnxruntime, 8 bits | top-1 | times as fast | file |",
                "|---|---|---|---|",
                *(
                    f"| {title} | {one['accuracy']:.3f} | {one['faster']:.1f} | {one['size']:.2f} |"
                    for title, one in (
                        ("HOPE, no data", points["onnxruntime"]),
                        *((f"{peer}", points[peer]) for peer in PEERS if peer in points),
                    )
                ),
                "",
            ]
        lines += [f"| share of the bytes | {' | '.join(map(str, SIZES))} |", "|---" * (len(SIZES) + 1) + "|"]
        for way, title in ORDERS.items():
            lines.append(
                f"| {title} | {' | '.join(_cell(points.get(f'{way} {share}')) for share in SIZES)} |"
            )
    return "\n".join(lines).strip() + "\n"


def _cell(point: dict[str, Any] | None) -> str:
    if point is None or point["accuracy"] is None:
        return "–"
    return f"{point['accuracy']:.3f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
