"""The paper's method as printed and as mended: `python -m experiments.readings [NETWORK ...]`.

By neurons, on all images at hand, with and without evictions, each mending undone alone; beside absorption
and the paper's three baselines. Resumable: every point is saved at once.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments import readme
from experiments.command import RESULTS as FOLDER
from experiments.command import call, network_parser
from experiments.compression import measure
from experiments.compression.methods import READINGS
from experiments.compression.page import TITLES, budgets
from experiments.data import data_folder
from hope.bench.accuracy import interval
from hope.bench.results import check_out
from zoo import networks

RESULTS = FOLDER / "readings.json"
BESIDE = ("absorb, closed forms", "l1-in", "l1-joint", "bn-scale")
METHODS = ("paper", "paper, no eviction", "paper, literal", "paper, literal, no eviction", *BESIDE)
IMAGES = {"keras-resnet50": 1000}


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    what = (
        "Measure the paper's method as it is printed and as it is mended, at seven densities, on all images "
        "at hand."
    )
    top = network_parser("readings", what, list(networks.CHECKPOINTS), RESULTS)
    top.add_argument("--budgets", nargs="+", metavar="density=SHARE", help="default: seven, from 0.9 to 0.3")
    top.add_argument("--methods", nargs="+", metavar="METHOD", help="default: all")
    top.add_argument(
        "--images", type=int, help="how many images (default: 1,000 of ImageNet, 5,000 of CIFAR)"
    )
    return top


def run(options: argparse.Namespace) -> None:
    """Measure what is missing."""
    if readme.shown(options, {"readings": table}):
        return
    folders = [data_folder(options.data), *([Path(options.weights)] if options.weights else [])]
    check_out(Path(options.out))
    for name in options.networks or list(networks.CHECKPOINTS):
        task = measure.known_task(name, folders, options.images or IMAGES.get(name, 5000), apart=False)
        task = replace(task, budgets=tuple(options.budgets or measure.DENSITIES))
        methods = options.methods or [*METHODS, *(m for m in READINGS if m not in METHODS)]
        measure.run([task], Path(options.out), methods=methods, recalibrate=False, judged=False)


def table() -> str:
    """What each reading does, a table per network: accuracy, and what was done to get there."""
    lines: list[str] = []
    for name, entry in json.loads(RESULTS.read_text())["networks"].items():
        columns = budgets(entry, "density")
        low, high = interval(0.5, entry["images"])
        lines += [
            f"\n**{TITLES[name]}**: top-1 by neurons kept; base {entry['base']:.3f}, {entry['images']:,} "
            f"images, 95% intervals within ±{(high - low) / 2:.3f}; in brackets merges and evictions\n",
            "| | " + " | ".join(b.partition("=")[2] for b in columns) + " |",
            "|---" * (len(columns) + 1) + "|",
        ]
        for method in (*METHODS, *(m for m in READINGS if m not in METHODS)):
            points = entry["points"].get(method, {})
            if points:
                cells = [_cell(points.get(b), method) for b in columns]
                lines.append(
                    f"| {method.replace('paper', 'paper, corrected') if method in METHODS[:2] else method} | "
                )
                lines[-1] += " | ".join(cells) + " |"
    return "\n".join(lines).strip() + "\n"


def _cell(point: dict[str, Any] | None, method: str) -> str:
    if point is None:
        return "–"
    mix = point["mix"]
    done = f" ({mix['merge']}m {mix['evict']}e)" if method.startswith("paper") else ""
    return f"{point['accuracy']:.3f}{done}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
