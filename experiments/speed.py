"""How long encoding a ResNet-50 takes, and layers of many widths: `python -m experiments.speed`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from experiments import readme
from experiments.command import RESULTS as FOLDER
from experiments.command import call
from hope._util.tables import text
from hope.bench import speed
from hope.bench.results import check_out, write_results
from hope.cli import bench
from zoo.networks import ResNet50V1

RESULTS = FOLDER / "speed.json"


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="python -m experiments.speed",
        description="`hope bench speed` of a ResNet-50 with random weights, and of single layers.",
    )
    top.add_argument("--widths", type=int, nargs="*", default=list(bench.WIDTHS), help="of single layers")
    top.add_argument("--out", metavar="FILE", default=str(RESULTS), help="default: the committed results")
    readme.add_arguments(top)
    return top


def run(options: argparse.Namespace) -> None:
    """Measure, print and write, or show what was measured."""
    if readme.shown(options, {"speed": table}):
        return
    check_out(Path(options.out))
    torch.manual_seed(0)
    whole = speed.whole_network(ResNet50V1().eval(), torch.zeros(1, 3, 64, 64))
    results = {"network": whole, "layers": speed.layers(options.widths)}
    print(text(*bench.speed_tables(results, "ResNet-50 to density 0.3, random weights")))
    write_results(Path(options.out), results)


def table() -> str:
    """The committed results in a paragraph."""
    results = json.loads(RESULTS.read_text())
    net, rows = results["network"], results["layers"]
    last = rows[-1]
    return (
        f"ResNet-50 (random weights) from 1.0 to density 0.3, {net['steps']:,} steps, without the capture of "
        "the graph:\n\n"
        f"- **{net['encode / grams']:.1f} times** the time of its float64 Gram products alone; "
        f"{net['megabytes beyond the model']:.0f} MB beyond the model.\n"
        f"- **{net['naive rescan / encode']:.0f} times** faster than computing all pairs before each step.\n"
        f"- {net['the same, pairs kept']:.1f} times faster than a naive loop that stores all pairs and "
        f"searches them; {net['the same, pairs kept, no evictions']:.0f} times over the "
        f"{net['steps without evictions']:,} steps of a run without evictions.\n"
        f"- One layer of {last['neurons']:,} neurons with fan-in and fan-out 2,048, down to one neuron: "
        f"{last['seconds']:.0f} s, {last['megabytes']:,.0f} MB.\n"
        f"- Absorption without the eviction search: {net['absorb / hope']:.1f} times the time of the paper's "
        f"method ({net['absorb / hope, both without evictions']:.1f} times if neither evicts). The eviction "
        f"search makes it {net['absorb, with / without evictions']:.1f} times as long.\n\n"
        "Ratios from one run of `python -m experiments.speed` on two cores.\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
