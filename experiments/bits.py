"""What bits are worth, without data: `python -m experiments.bits [NETWORK ...]`, resumable.

Every weight rounded to 8, 4, 3 or 2 bits, to nearest and with error feedback; budgets in bytes met by
removing neurons, by bits, and by both; and the integer network in onnxruntime, against the float one in the
same run.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
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
NETWORKS = ("cifar10-resnet20", "cifar10-resnet56", "keras-resnet50")
UNIFORM = (8, 4, 3, 2)
SIZES = (0.5, 0.25, 0.15, 0.1, 0.07)
WAYS = ("neurons", "bits", "both")
ALL = (8, 6, 5, 4, 3, 2)
TIMES = 40  # calls, of which the fastest counts


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    return network_parser("bits", "Measure what bits are worth.", list(NETWORKS), RESULTS, "")


def run(options: argparse.Namespace) -> None:
    """Measure what is missing."""
    if readme.shown(options, {"bits": table}):
        return
    for name, model, images, labels, _, entry, write in opened(options, NETWORKS, loaded):
        points = entry["points"]
        for key, measured in _measures(model, images, labels):
            if key not in points:
                points[key] = measured()
                print(name, key, points[key], flush=True)
                write()


def _measures(
    model: nn.Module, images: Tensor, labels: Tensor
) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """(name of a figure, what measures it); runs are made once, when the first figure of them is missing."""
    made: dict[str, Any] = {}

    def once(key: str, make: Callable[[], Any]) -> Any:
        if key not in made:
            made[key] = make()
        return made[key]

    def anatomy() -> hope.Anatomy:
        found: hope.Anatomy = once("anatomy", lambda: hope.inspect(model, images[:1]))
        return found

    def encoded(key: str, **how: Any) -> hope.Encoding:
        found: hope.Encoding = once(
            key, lambda: hope.encode(model, images[:1], anatomy=anatomy(), progress=False, **how)
        )
        return found

    def point(small: nn.Module, share: float) -> dict[str, Any]:
        return {"accuracy": accuracy(small, images, labels), "size": share}

    def nearest(bits: int) -> dict[str, Any]:
        steps = [hope.Quantise(weight, bits, 0, "nearest") for weight in readers(anatomy())]
        sizes = Trajectory.of(anatomy(), steps).counts("size")
        return point(hope.cut(model, anatomy(), steps), sizes[-1] / sizes[0])

    def feedback(bits: int) -> dict[str, Any]:
        run = encoded(f"{bits} bits", bits=bits)
        sizes = run.trajectory.counts("size")
        return point(run.model, sizes[-1] / sizes[0])

    def budget(way: str, share: float) -> dict[str, Any]:
        how: dict[str, dict[str, Any]] = {
            "neurons": {"size": min(SIZES), "bits": None},
            "bits": {"bits": list(ALL)},
            "both": {"size": min(SIZES)},
        }
        try:
            run = encoded(way, **how[way])
            steps = run.trajectory.steps_to("size", share)
        except hope.InfeasibleBudget as error:
            return {"accuracy": None, "why": str(error)}
        sizes = run.trajectory.counts("size")
        return point(run.at(steps=steps), sizes[steps] / sizes[0])

    for bits in UNIFORM:
        yield f"nearest {bits}", lambda bits=bits: nearest(bits)  # type: ignore[misc]
        yield f"feedback {bits}", lambda bits=bits: feedback(bits)  # type: ignore[misc]
    yield "onnxruntime", lambda: _integers(encoded("8 bits", bits=8), model, images, labels)
    for way in WAYS:
        for share in SIZES:
            yield f"{way} {share}", lambda way=way, share=share: budget(way, share)  # type: ignore[misc]


def _integers(encoding: hope.Encoding, model: nn.Module, images: Tensor, labels: Tensor) -> dict[str, Any]:
    """The integer network in onnxruntime: accuracy, and size and time beside the float one's."""
    import onnxruntime

    with tempfile.TemporaryDirectory() as scratch:
        files = [Path(scratch) / name for name in ("float.onnx", "integer.onnx")]
        hope.export_onnx(model, images[:1], files[0])
        encoding.export_onnx(files[1])
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        sessions = [
            onnxruntime.InferenceSession(str(file), settings, providers=["CPUExecutionProvider"])
            for file in files
        ]
        name = sessions[0].get_inputs()[0].name
        times = []
        for _ in range(TIMES):  # in turn, so that both meet the same machine
            for session in sessions:
                start = time.perf_counter()
                session.run(None, {name: images[:1].numpy()})
                times.append(time.perf_counter() - start)
        parts = [images[start : start + 50].numpy() for start in range(0, len(images), 50)]
        found = np.concatenate([sessions[1].run(None, {name: part})[0].argmax(1) for part in parts])
        hits = int((found == labels.numpy()).sum())
        return {
            "accuracy": hits / len(images),
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
            f"\n**{TITLES[name]}**: top-1 without data; base {entry['base']:.3f}, {entry['images']:,} "
            f"images, 95% intervals within ±{(high - low) / 2:.3f}\n",
            f"| every weight rounded | {' | '.join(f'{bits} bits' for bits in UNIFORM)} |",
            "|---" * (len(UNIFORM) + 1) + "|",
        ]
        for way in ("nearest", "feedback"):
            lines.append(f"| {way} | {' | '.join(_cell(points.get(f'{way} {bits}')) for bits in UNIFORM)} |")
        integer = points.get("onnxruntime")
        if integer:
            lines += [
                "",
                f"In onnxruntime with integers: {integer['accuracy']:.3f}, {integer['faster']:.1f} times as "
                f"fast (batch 1, one thread), the file {integer['size']:.2f} of the float one's.",
            ]
        lines += [
            "",
            f"| share of the bytes | {' | '.join(map(str, SIZES))} |",
            "|---" * (len(SIZES) + 1) + "|",
        ]
        for way in WAYS:
            lines.append(f"| {way} | {' | '.join(_cell(points.get(f'{way} {share}')) for share in SIZES)} |")
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
