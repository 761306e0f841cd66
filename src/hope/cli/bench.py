"""`hope bench`: measurements."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from hope.anatomy.table import grid, text
from hope.bench import compression, networks, speed
from hope.bench.datasets import MissingData

WIDTHS = (256, 512, 1024, 2048, 4096, 8192)


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench", help="measure compression, speed, or transfer", description="Measurements."
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    one = kinds.add_parser(
        "speed", help="time and memory of encoding, against its Gram products and a naive rescan"
    )
    one.add_argument("--widths", type=int, nargs="*", default=list(WIDTHS), help="layer widths to measure")
    one.add_argument("--out", metavar="FILE", help="write the figures as JSON")
    one.add_argument("--layer", type=int, help=argparse.SUPPRESS)
    one.set_defaults(run=run_speed)
    _register_compression(kinds)
    two = kinds.add_parser("transfer", help="fine-tuning without forgetting: DEFT against its baselines")
    two.add_argument(
        "--scale", choices=["small", "full"], default="small", help="full is the paper's protocol"
    )
    two.add_argument(
        "--out", metavar="FOLDER", default="transfer", help="where the pieces go; resumes from them"
    )
    two.add_argument("--data", metavar="FOLDER", help="where the images are (default: $HOPE_DATA)")
    two.add_argument("--workers", type=int, default=1, help="processes")
    two.set_defaults(run=run_transfer)


def _register_compression(kinds: Any) -> None:
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
    parser.set_defaults(run=run_compression)


def run_compression(options: argparse.Namespace) -> None:
    """Measure what is missing, print what there is."""
    place = options.data or os.environ.get("HOPE_DATA")
    if not place or not Path(place).is_dir():
        raise MissingData(
            "there is no data: give --data FOLDER or set HOPE_DATA (which files it needs: docs/benchmarks.md)"
        )
    folders = [Path(place), *([Path(options.weights)] if options.weights else [])]
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


def run_speed(options: argparse.Namespace) -> None:
    """Measure, print, and write. Every width runs in a process of its own, so that its peak memory is its
    own.
    """
    if options.layer:
        print(json.dumps(speed.one_layer(options.layer)))
        return
    whole = speed.whole_network()
    rows = []
    for width in options.widths:
        done = subprocess.run(
            [sys.executable, "-m", "hope.cli.main", "bench", "speed", "--layer", str(width)],
            check=True,
            capture_output=True,
            text=True,
        )
        rows.append(json.loads(done.stdout))
    summary = grid("ResNet-50 to density 0.3, random weights", " ", "value")
    for name, value in whole.items():
        summary.add_row(name, f"{value:.2f}")
    table = grid(
        "One layer down to one neuron, fan-in and fan-out 2,048", "neurons", "seconds", "of it geometry", "MB"
    )
    for row in rows:
        table.add_row(*(f"{row[k]:.2f}" for k in ("neurons", "seconds", "geometry seconds", "megabytes")))
    print(text(summary, "", table))
    if options.out:
        Path(options.out).write_text(json.dumps({"network": whole, "layers": rows}, indent=1) + "\n")


def run_transfer(options: argparse.Namespace) -> None:
    """Run the benchmark, or what is left of it, and print its table. Each worker has one thread."""
    import torch

    from hope.bench import transfer
    from hope.bench.transfer_scale import SCALES

    data = options.data or os.environ.get("HOPE_DATA")
    if not data:
        raise MissingData("the benchmark needs images: set HOPE_DATA or give --data")
    executor = None
    if options.workers > 1:
        executor = ProcessPoolExecutor(options.workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        found = transfer.run(
            Path(options.out),
            Path(data),
            SCALES[options.scale],
            executor=executor,
            note=lambda line: print(line, file=sys.stderr),
        )
    finally:
        if executor is not None:
            executor.shutdown(cancel_futures=True)
    for best in ("best by target", "best by h"):
        table = grid(
            f"Test accuracy, epoch {best}",
            " method",
            "target",
            "source",
            "source masked",
            "H-score",
            "prepared",
        )
        for name, row in found.items():
            cells = [row[best][k] for k in ("test target", "test source", "test source masked", "test h")]
            cells.append(row["prepared"])
            table.add_row(name, *(f"{100 * mean:.2f} ± {100 * spread:.2f}" for mean, spread in cells))
        print(text(table, ""))
