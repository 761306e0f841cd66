"""`hope bench`: measurements."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from hope._util.tables import grid, text
from hope.bench import speed
from hope.bench.compression import check_out, write_results
from hope.bench.datasets import MissingData
from hope.cli import bench_compression, bench_finetune, bench_latency

WIDTHS = (256, 512, 1024, 2048, 4096, 8192)


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench",
        help="measure compression, fine-tuning, latency, speed, or transfer",
        description="Measurements.",
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    one = kinds.add_parser(
        "speed", help="time and memory of encoding, against its Gram products and a naive rescan"
    )
    one.add_argument("--widths", type=int, nargs="*", default=list(WIDTHS), help="layer widths to measure")
    one.add_argument("--out", metavar="FILE", help="write the figures as JSON")
    one.add_argument("--layer", type=int, help=argparse.SUPPRESS)
    one.set_defaults(run=run_speed)
    bench_compression.register(kinds)
    bench_finetune.register(kinds)
    bench_latency.register(kinds)
    two = kinds.add_parser(
        "transfer",
        help="fine-tuning without forgetting: DEFT against its baselines",
        description="Train networks on CIFAR-100 superclasses, teach them SVHN with every method, and "
        "measure what they know of both. Every piece of work leaves a file; started again, the command goes "
        "on where it stopped.",
        epilog="example: hope bench transfer --data data/ --workers 2 --out runs/transfer",
    )
    two.add_argument(
        "--scale", choices=["small", "full"], default="small", help="full is the paper's protocol"
    )
    two.add_argument(
        "--out", metavar="FOLDER", default="transfer", help="where the pieces go; resumes from them"
    )
    two.add_argument("--data", metavar="FOLDER", help="where the images are (default: $HOPE_DATA)")
    two.add_argument("--methods", nargs="+", metavar="METHOD", help="default: all")
    two.add_argument("--penalty", type=float, help="L2 penalty instead of the scale's")
    two.add_argument("--workers", type=int, default=1, help="processes")
    two.set_defaults(run=run_transfer)


def run_speed(options: argparse.Namespace) -> None:
    """Measure, print, and write. Every width runs in a process of its own, so that its peak memory is its
    own.
    """
    if options.layer:
        print(json.dumps(speed.one_layer(options.layer)))
        return
    if options.out:
        check_out(Path(options.out))
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
        write_results(Path(options.out), {"network": whole, "layers": rows})


def run_transfer(options: argparse.Namespace) -> None:
    """Run the benchmark, or what is left of it, and print its table. Each worker has one thread."""
    import torch

    from hope.bench import transfer
    from hope.bench.transfer_scale import SCALES

    data = options.data or os.environ.get("HOPE_DATA")
    if not data:
        raise MissingData("the benchmark needs images: set HOPE_DATA or give --data")
    if options.workers < 1:
        raise MissingData(f"--workers {options.workers} is none: give 1 or more")
    scale = SCALES[options.scale]
    if options.penalty is not None:
        scale = replace(scale, penalty=options.penalty)
    executor = None
    if options.workers > 1:
        executor = ProcessPoolExecutor(options.workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        found = transfer.run(
            Path(options.out),
            Path(data),
            scale,
            methods=options.methods,
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
