"""`hope bench compression`: accuracy against size."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import Any

from hope.anatomy.table import grid, text
from hope.bench import compression, networks
from hope.bench.datasets import data_folder


def register(kinds: Any) -> None:
    """Add the kind."""
    parser: argparse.ArgumentParser = kinds.add_parser(
        "compression",
        help="accuracy against size: networks × methods × budgets",
        description="Compress real networks with every method and measure their accuracy, without data, and "
        "again after BN re-estimation on 96 unlabelled images. Every point is saved at once; started again, "
        "the command goes on where it stopped.",
        epilog="example: hope bench compression cifar10-resnet20 --data data/ --out results.json",
    )
    parser.add_argument(
        "networks",
        nargs="*",
        metavar="NETWORK",
        help=f"of {', '.join(networks.CHECKPOINTS)} (default: all)",
    )
    parser.add_argument("--data", metavar="FOLDER", help="checkpoints and images (default: $HOPE_DATA)")
    parser.add_argument("--weights", metavar="FOLDER", help="another folder with checkpoints")
    parser.add_argument("--methods", nargs="*", metavar="METHOD", help="default: all")
    parser.add_argument(
        "--no-recalibration", action="store_true", help="do not measure again after BN re-estimation"
    )
    parser.add_argument("--images", type=int, help="how many images to measure on")
    parser.add_argument("--out", metavar="FILE", default="compression.json", help="default: %(default)s")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure what is missing, print what there is."""
    folders = [data_folder(options.data), *([Path(options.weights)] if options.weights else [])]
    for names, known, what in (
        (options.networks, networks.CHECKPOINTS, "network"),
        (options.methods or [], compression.METHODS, "method"),
    ):
        for name in names:
            if name not in known:
                raise compression.UnusableResults(
                    f"there is no {what} {name!r}: choose from {', '.join(known)}"
                )
    tasks = [
        partial(compression.known_task, name, folders, options.images)
        for name in (options.networks or networks.CHECKPOINTS)
    ]
    methods = options.methods or list(compression.METHODS)
    results = compression.run(
        tasks, Path(options.out), methods=methods, recalibrate=not options.no_recalibration
    )
    print(text(*tables(results)))


def tables(results: dict[str, Any]) -> list[object]:
    """Results as tables, one per network and unit."""
    parts: list[object] = []
    for name, entry in results["networks"].items():
        for unit, words in (("density", "neurons kept"), ("params", "parameters kept")):
            budgets = sorted(
                {b for points in entry["points"].values() for b in points if b.startswith(unit)},
                reverse=True,
            )
            if budgets:
                columns = [budget.partition("=")[2] for budget in budgets]
                base = f"base {entry['base']:.3f}, {entry['images']:,} images"
                table = grid(f"{name}: {base}; {words}", " method", *columns)
                for method, points in entry["points"].items():
                    scores = [f"{points[b]['accuracy']:.3f}" if b in points else "" for b in budgets]
                    if any(scores):
                        table.add_row(method, *scores)
                parts += [table, ""]
    return parts
