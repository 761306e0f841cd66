"""How much faster networks get: `python -m experiments.latency NETWORK`.

The committed results:

    python -m experiments.latency keras-resnet50 --weights keras-resnet50.safetensors --methods absorb paper \
        --budgets params=0.65 params=0.4 --multiple-of 8 --out experiments/results/latency.json
    python -m experiments.latency cifar10-resnet20 --data FOLDER --budgets params=0.65 params=0.4 macs=0.5 \
        latency=0.8 latency=0.65 --multiple-of 8 --repeats 100 --out experiments/results/latency-budgets.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import readme
from experiments.command import RESULTS as FOLDER
from experiments.command import call
from experiments.compression.page import TITLES
from experiments.data import data_folder
from hope.cli import bench, models
from hope.cli.weights import load_weights
from zoo import networks

RESULTS = FOLDER / "latency.json"
IN_TIME = FOLDER / "latency-budgets.json"


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="python -m experiments.latency",
        description="`hope bench latency` of a network with a public checkpoint.",
        epilog="example: python -m experiments.latency cifar10-resnet20 --data data/ --multiple-of 8",
    )
    top.add_argument(
        "network",
        nargs="?",
        choices=networks.CHECKPOINTS,
        default="keras-resnet50",
        help=f"of {', '.join(networks.CHECKPOINTS)} (default: %(default)s)",
    )
    top.add_argument("--data", metavar="FOLDER", help="with the checkpoints (default: $HOPE_DATA)")
    top.add_argument("--weights", metavar="FILE", help="the checkpoint itself")
    bench.add_latency(top)
    readme.add_arguments(top)
    return top


def run(options: argparse.Namespace) -> None:
    """Measure, or show what was measured."""
    if readme.shown(options, {"latency": table, "latency-budgets": in_time}):
        return
    bench.check_latency(options)
    name = options.network
    if options.weights:
        model = networks.untrained(name)
        load_weights(model, Path(options.weights))
    else:
        model = networks.trained(name, data_folder(options.data))
    bench.measure_latency(name, model.eval(), models.example(networks.SHAPES[name]), options)


def table(path: Path = RESULTS) -> str:
    """Speed-ups by engine and batch size, with what each network keeps."""
    results = json.loads(path.read_text())
    columns = list(dict.fromkeys((row["engine"], row["batch"]) for row in results["rows"]))
    networks: dict[tuple[Any, ...], dict[tuple[str, int], Any]] = {}
    for row in results["rows"]:
        key = (row["method"], row["budget"], row["multiple of"])
        networks.setdefault(key, {})[row["engine"], row["batch"]] = row
    heads = [f"{engine}, batch {batch}" for engine, batch in columns]
    lines = [
        "| | neurons | parameters | MACs | " + " | ".join(heads) + " |",
        "|---" + "|---:" * (3 + len(heads)) + "|",
    ]
    for (method, budget, multiple), rows in networks.items():
        if method == "original":
            continue
        first = next(iter(rows.values()))
        kept = [f"{first[name]:.2f}" for name in ("neurons", "parameters", "macs")]
        name = f"{method}, {budget}" + (f", multiples of {multiple}" if multiple > 1 else "")
        cells = [f"{rows[column]['speed-up']:.2f}" if column in rows else "" for column in columns]
        lines.append(f"| {name} | {' | '.join(kept)} | {' | '.join(cells)} |")
    lines.append(
        f"\nSpeed-up over the original, {TITLES[results['model']]}, {results['threads']} threads: ratios of "
        f"medians over {results['repeats']} interleaved repeats in one run. {_spread(results)}"
    )
    return "\n".join(lines) + "\n"


def in_time(path: Path = IN_TIME) -> str:
    """Fidelity and speed-up of networks at equal predicted time, by engine and batch size."""
    results = json.loads(path.read_text())
    columns = list(dict.fromkeys((row["engine"], row["batch"]) for row in results["rows"]))
    networks: dict[tuple[str, int], dict[tuple[str, int], Any]] = {}
    for row in results["rows"]:
        if row["method"] != "original":
            key = (row["budget"], row["multiple of"])
            networks.setdefault(key, {})[row["engine"], row["batch"]] = row
    heads = [f"{engine}, batch {batch}" for engine, batch in columns]
    lines = ["| | " + " | ".join(heads) + " |", "|---" + "|---:" * len(heads) + "|"]
    for (budget, multiple), rows in networks.items():
        name = budget + (f", multiples of {multiple}" if multiple > 1 else "")
        cells = [
            f"{rows[column]['fidelity']:.2f} at {rows[column]['speed-up']:.2f}" if column in rows else ""
            for column in columns
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines.append(
        f"\nFidelity at a speed-up, {TITLES[results['model']]}, absorb, {results['threads']} "
        f"thread: ratios of medians over {results['repeats']} interleaved repeats. {_off(results, columns)}"
    )
    return "\n".join(lines) + "\n"


def _off(results: dict[str, Any], columns: Sequence[tuple[str, int]]) -> str:
    """How far predictions were off."""
    reported = []
    for engine, batch in columns:
        rows = [row for row in results["rows"] if (row["engine"], row["batch"]) == (engine, batch)]
        errors = [abs(row["predicted ms"] / row["fastest ms"] - 1) for row in rows]
        reported.append(f"{statistics.median(errors):.1%} ({max(errors):.1%}) in {engine} at batch {batch}")
    return f"Predicted times are off by {', '.join(reported)}: the median (the largest) over all networks."


def _spread(results: dict[str, Any]) -> str:
    """How quiet the machine was."""
    widths = [
        (row["upper quartile ms"] - row["lower quartile ms"]) / row["median ms"] for row in results["rows"]
    ]
    middle = sorted(widths)[len(widths) // 2]
    return f"Quartiles lie {100 * middle:.0f}% apart (median), at most {100 * max(widths):.0f}%."


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
