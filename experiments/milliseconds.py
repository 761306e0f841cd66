"""Accuracy against MACs and against measured time: `python -m experiments.milliseconds [NETWORK ...]`.

Absorption with and without residual streams, moments measured and weights fitted on patterns (as by default,
without data) or on 512 unlabelled images; the paper's method; and Torch-Pruning's coupled groups, BNs
re-estimated on the same images (with whichever of its criteria does best at that budget on the images that
are measured on). Each small network is timed beside the original, in turns, on one thread. Needs the extras
`onnx` and `peers`.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hope
from experiments import readme, refit, train
from experiments.command import RESULTS as FOLDER
from experiments.command import call, network_parser, opened
from experiments.compression import peers
from experiments.compression.page import TITLES
from experiments.rules import ASIDE
from hope._util.calls import duplicate
from hope.bench.accuracy import accuracy, interval
from hope.bench.budgets import Candidate, kept, parse
from hope.bench.latency import measure
from hope.errors import InfeasibleBudget, first_line

RESULTS = FOLDER / "milliseconds.json"
UNITS = ("macs", "latency")
MACS = ("macs=0.8", "macs=0.6", "macs=0.4")
BUDGETS = {
    "cifar10-resnet20": (*MACS, "latency=0.7", "latency=0.5"),
    "cifar10-resnet56": (*MACS, "latency=0.7", "latency=0.5"),
    "svhn-depthwise": (*MACS, "latency=0.7", "latency=0.5"),
    "keras-resnet50": ("macs=0.5", "latency=0.5"),
}
WAYS: dict[str, dict[str, Any]] = {
    "no data": {"calibration": "patterns"},
    "no data, streams": {"calibration": "patterns", "streams": True},
    "512 images": {},
    "512 images, streams": {"streams": True},
    "paper": {},
    "torch-pruning": {},
}
COLUMNS = [f"{engine} {batch}" for engine in ("onnxruntime", "torch") for batch in (1, 32)]


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    what = "Measure accuracy and time of small networks."
    top = network_parser("milliseconds", what, list(BUDGETS), RESULTS, " --ways paper")
    top.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS), help="default: all")
    reported = "like macs=0.4 latency=0.5 (default: the table's)"
    top.add_argument("--budgets", nargs="+", metavar="UNIT=SHARE", help=reported)
    top.add_argument(
        "--repeats", type=int, default=15, metavar="N", help="how often each is timed (default: 15)"
    )
    return top


def run(options: argparse.Namespace) -> None:
    """Measure what is missing."""
    if readme.shown(options, {"milliseconds": table}):
        return
    torch.set_num_threads(1)
    for name, model, images, labels, apart, entry, write in opened(options, BUDGETS, loaded):
        for way in options.ways:
            points = entry["points"].setdefault(way, {})
            wanted = [b for b in options.budgets or BUDGETS[name] if b not in points]
            for unit in UNITS:
                missing = [budget for budget in wanted if parse(budget, UNITS)[0] == unit]
                for budget, small, facts in _made(model, way, apart, images, labels, missing):
                    points[budget] = facts
                    if small is not None:
                        facts["accuracy"] = accuracy(small, images, labels)
                        facts["speed-up"] = _timed(model, small, images[:1], options.repeats)
                    print(name, way, budget, facts, flush=True)
                    write()


def loaded(name: str, folders: list[Path]) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A network, images and labels to measure on, and 512 other images."""
    if name not in train.NETWORKS:
        return refit.loaded(name, folders)
    images, labels = (some[:5000] for some in train.images(name, folders[0]))
    apart, _ = train.images(name, folders[0], "train")
    return train.trained(name, folders[-1]), images, labels, apart[: refit.CALIBRATION]


def _made(
    model: nn.Module, way: str, apart: Tensor, images: Tensor, labels: Tensor, budgets: Sequence[str]
) -> Any:
    """(budget, network or None, facts), of budgets in one unit."""
    batches = list(torch.split(apart, 32))
    if way == "torch-pruning":
        for budget in budgets:
            if budget.startswith("macs"):
                yield budget, *_best(model, batches, images, labels, budget)
        return
    if not budgets:
        return
    settings = dict(WAYS[way])
    streams = bool(settings.pop("streams", False))
    method = hope.Paper() if way == "paper" else hope.Absorb(**({"calibration": batches} | settings))
    unit = budgets[0].partition("=")[0]
    where: dict[str, Any] = {}
    if unit == "latency":
        where["runtime"] = hope.Runtime("onnxruntime", batch=1, threads=1)
    run = None
    for budget in sorted(budgets, key=lambda one: float(one.partition("=")[2])):
        share = float(budget.partition("=")[2])
        if run is None or streams:  # whether streams go is decided at each budget
            start = time.perf_counter()
            how: dict[str, Any] = {"method": method, "evict": way == "paper", "streams": streams, unit: share}
            try:
                run = hope.encode(model, images[:1], progress=False, **how, **where)
            except InfeasibleBudget as error:
                yield budget, None, {"refused": first_line(error)}
                continue
            chosen = time.perf_counter() - start
        steps = run.trajectory.steps_to(unit, share)
        start = time.perf_counter()
        small = run.model if steps == run.steps else run.at(steps=steps)  # a fit takes minutes
        seconds = {"choosing": chosen, "making": time.perf_counter() - start}
        facts: dict[str, Any] = {**kept(run.trajectory, steps), "seconds": seconds}
        if run.trajectory.times is not None:
            facts["predicted speed-up"] = float(run.trajectory.times[0] / run.trajectory.times[steps])
        yield budget, small, facts


def _best(
    model: nn.Module, batches: Sequence[Tensor], images: Tensor, labels: Tensor, budget: str
) -> tuple[nn.Module | None, dict[str, Any]]:
    """Torch-Pruning's network with the best of its criteria."""
    best: tuple[float, nn.Module | None, dict[str, Any]] = (-1.0, None, {})
    tried: dict[str, float] = {}
    for name in peers.NAMES:
        anatomy = hope.inspect(model, images[:1], progress=False)
        try:
            small, facts = peers.compressed(name, model, images[:1], anatomy)(budget)
        except InfeasibleBudget as error:
            best = max(best, (-1.0, None, {"refused": first_line(error)}), key=lambda one: one[0])
            continue
        small = hope.recalibrate_bn(small, batches)
        tried[name] = accuracy(small, images, labels)
        best = max(best, (tried[name], small, {**facts, "criterion": name}), key=lambda one: one[0])
    return best[1], {**best[2], "tried": tried}


def _timed(model: nn.Module, small: nn.Module, example: Tensor, repeats: int) -> dict[str, float]:
    """How much faster a network is than the original, by engine and batch."""
    pair = [Candidate(duplicate(model).eval(), {}), Candidate(small.eval(), {})]
    found: dict[str, float] = {}
    for batch in (1, 32):
        often = repeats if batch == 1 or example.shape[-1] < 64 else 3
        rows = measure(pair, example, batches=(batch,), repeats=often)["rows"]
        found |= {f"{row['engine']} {batch}": row["speed-up"] for row in rows[1::2]}
    return found


def table() -> str:
    """A table per network."""
    lines: list[str] = []
    for name, entry in json.loads(RESULTS.read_text()).items():
        low, high = interval(0.5, entry["images"])
        lines += [
            f"\n**{(TITLES | ASIDE)[name]}**: base {entry['base']:.3f}, {entry['images']:,} images, "
            f"95% intervals within ±{(high - low) / 2:.3f}; how much faster, by engine and batch\n",
            f"| | budget | top-1 | MACs | {' | '.join(c.replace(' ', ', ') for c in COLUMNS)} |",
            "|---|---" + "|---:" * (2 + len(COLUMNS)) + "|",
        ]
        for way in WAYS:
            points = entry["points"].get(way, {})
            for budget in sorted(points, key=lambda b: (b.partition("=")[0] != "macs", -parse(b, UNITS)[1])):
                point = points[budget]
                if "accuracy" in point:
                    cells = [f"{point['speed-up'][c]:.2f}" if c in point["speed-up"] else "" for c in COLUMNS]
                    reported = f"{point['accuracy']:.3f} | {point['macs']:.2f} | {' | '.join(cells)}"
                else:
                    reported = f"cannot be met {'| ' * (1 + len(COLUMNS))}"
                with_it = f" ({point['criterion'].split(' ', 1)[1]})" if "criterion" in point else ""
                lines.append(f"| {way}{with_it} | {budget} | {reported} |")
    return "\n".join(lines).strip() + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
