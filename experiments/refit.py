"""What closing the loop is worth: `python -m experiments.refit [NETWORK ...]`, resumable.

Absorption without evictions, with moments from closed forms, patterns, dreams, or so many unlabelled images;
then the same network with its weights fitted to the original on the same inputs. The images that are measured
on are never among those.
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
from experiments import data, readme
from experiments.command import RESULTS as FOLDER
from experiments.command import call, network_parser, opened
from experiments.compression.page import TITLES
from hope.bench.accuracy import accuracy, interval
from hope.encoding import Encoding
from hope.rewrite.refit import compressed
from zoo import networks

RESULTS = FOLDER / "refit.json"
CALIBRATION = 512  # images that are set apart
SOURCES = ("none", "patterns", "dreamed", "16", "96", "512")
BUDGETS = {
    "cifar10-resnet20": tuple(f"density={d}" for d in (0.7, 0.5, 0.3)),
    "cifar10-resnet56": tuple(f"density={d}" for d in (0.7, 0.5, 0.4)),
    "keras-resnet50": tuple(f"params={p}" for p in (0.825, 0.65, 0.56, 0.475, 0.4)),
}


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    what = "Measure absorption and the closed loop with moments from several sources."
    top = network_parser("refit", what, list(BUDGETS), RESULTS, " --sources dreamed 96")
    top.add_argument("--sources", nargs="+", choices=SOURCES, default=SOURCES, help="default: all")
    top.add_argument(
        "--budgets", nargs="+", metavar="UNIT=SHARE", help="like density=0.5 (default: the table's)"
    )
    return top


def run(options: argparse.Namespace) -> None:
    """Measure what is missing."""
    if readme.shown(options, {"refit": table}):
        return
    for name, model, images, labels, apart, entry, write in opened(options, BUDGETS, loaded):
        for source in options.sources:
            points = entry["points"].setdefault(source, {})
            missing = [b for b in options.budgets or BUDGETS[name] if b not in points]
            if missing:
                for budget, point in _measured(model, source, apart, images, labels, missing):
                    points[budget] = point
                    print(name, source, budget, point, flush=True)
                    write()


def loaded(name: str, folders: list[Path]) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """A network, images and labels to measure on, and other images to calibrate with."""
    folder, model = folders[0], networks.trained(name, *folders)
    if not name.startswith("cifar10"):
        found = data.imagenet(folder, 1000, apart=False)
        if name == "mobilenet_v2":
            found = data.as_torchvision(found)
        order = torch.randperm(len(found.images), generator=torch.Generator().manual_seed(0))
    else:
        found = data.cifar10(folder, 5000, apart=False)
        order = torch.arange(len(found.images))
    left = len(order) - CALIBRATION
    some, others = order[:left], order[left:]
    return model, found.images[some], found.labels[some], found.images[others]


def _measured(
    model: nn.Module,
    source: str,
    apart: Tensor,
    images: Tensor,
    labels: Tensor,
    budgets: Sequence[str],
) -> Any:
    """(budget, accuracies) of absorption, and after closing the loop; seconds of both."""
    start = time.perf_counter()
    words: dict[str, Any] = {"none": None, "patterns": "patterns", "dreamed": "dream"}
    known = words[source] if source in words else list(torch.split(apart[: int(source)], 32))
    wanted: dict[str, Any] = {b.partition("=")[0]: float(b.partition("=")[2]) for b in budgets[-1:]}
    method = hope.Absorb(calibration=known)
    encoding = hope.encode(model, images[:1], method=method, evict=False, progress=False, **wanted)
    shared = time.perf_counter() - start
    for budget in budgets:
        unit, _, share = budget.partition("=")
        steps = encoding.trajectory.steps_to(unit, float(share))
        point: dict[str, Any] = {"absorbed": accuracy(_after(encoding, steps, ()), images, labels)}
        if encoding.inputs:
            start = time.perf_counter()
            small = _after(encoding, steps, encoding.inputs)
            point["seconds"] = {"choosing": shared, "fitting": time.perf_counter() - start}
            point["refitted"] = accuracy(small, images, labels)
        yield budget, point


def _after(encoding: Encoding, steps: int, inputs: Sequence[Any]) -> nn.Module:
    taken, how = encoding.trajectory.steps[:steps], encoding.method.rewrite
    moments = encoding.input_statistics
    return compressed(
        encoding.original, encoding.anatomy, taken, input_statistics=moments, rewrite=how, inputs=inputs
    )


def table() -> str:
    """A table per network."""
    lines: list[str] = []
    for name, entry in json.loads(RESULTS.read_text()).items():
        columns = sorted(
            {b for p in entry["points"].values() for b in p}, key=lambda b: -float(b.partition("=")[2])
        )
        low, high = interval(0.5, entry["images"])
        lines += [
            f"\n**{TITLES[name]}**: top-1 by share of {columns[0].partition('=')[0]} kept, absorbed → "
            f"refitted; base {entry['base']:.3f}, {entry['images']:,} images, 95% intervals within "
            f"±{(high - low) / 2:.3f}\n",
            "| moments from | " + " | ".join(b.partition("=")[2] for b in columns) + " |",
            "|---" * (len(columns) + 1) + "|",
        ]
        for source in SOURCES:
            points = entry["points"].get(source)
            if points:
                words = {"none": "nothing (closed forms)", "patterns": "patterns", "dreamed": "dreams"}
                cells = [_cell(points.get(b)) for b in columns]
                lines.append(f"| {words.get(source, f'{source} images')} | {' | '.join(cells)} |")
    return "\n".join(lines).strip() + "\n"


def _cell(point: dict[str, Any] | None) -> str:
    if point is None:
        return ""
    reported = f"{point['absorbed']:.3f}"
    return f"{reported} → {point['refitted']:.3f}" if "refitted" in point else reported


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
