"""`hope bench`: measurements."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from hope.anatomy.table import grid, text
from hope.bench import speed

WIDTHS = (256, 512, 1024, 2048, 4096, 8192)


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "bench", help="measure speed", description="Measurements."
    )
    kinds = parser.add_subparsers(dest="kind", required=True, metavar="KIND")
    one = kinds.add_parser(
        "speed", help="time and memory of encoding, against its Gram products and a naive rescan"
    )
    one.add_argument("--widths", type=int, nargs="*", default=list(WIDTHS), help="layer widths to measure")
    one.add_argument("--out", metavar="FILE", help="write the figures as JSON")
    one.add_argument("--layer", type=int, help=argparse.SUPPRESS)
    one.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
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
