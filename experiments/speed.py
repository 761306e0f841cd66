"""How long encoding a ResNet-50 takes, and layers of many widths: `python -m experiments.speed`."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from experiments import readme
from experiments.command import RESULTS as FOLDER
from experiments.command import call
from hope._util.tables import grid, text
from hope.actions import Evict
from hope.api import encode, inspect
from hope.bench.results import check_out, write_results
from hope.bench.speed import peak_megabytes, resident_megabytes, seconds, whole_network
from hope.cli.bench import speed_table
from hope.encoding import Encoding
from hope.geometry import costs, gaussian
from hope.methods.pairs import PairPath, PaperState
from hope.methods.paper import Paper
from hope.schedule.search_space import SearchSpace
from zoo.networks import ResNet50V1

RESULTS = FOLDER / "speed.json"
WIDTHS = (256, 512, 1024, 2048, 4096, 8192)


def random_layer(neurons: int, fan_in: int, fan_out: int, seed: int = 0) -> PaperState:
    """A layer with random weights and BN numbers."""
    generator = torch.Generator().manual_seed(seed)
    filters = torch.randn(neurons, fan_in, generator=generator, dtype=torch.float64)
    outgoing = torch.randn(neurons, fan_out, generator=generator, dtype=torch.float64)
    mean = 0.5 * torch.randn(neurons, generator=generator, dtype=torch.float64)
    spread = 0.5 + torch.rand(neurons, generator=generator, dtype=torch.float64)
    filters *= (spread / filters.norm(dim=1))[:, None]
    slope = torch.zeros(neurons, dtype=torch.float64)
    energy = gaussian.energy(mean, spread, slope)
    inner, outer = filters @ filters.T + torch.outer(mean, mean), outgoing @ outgoing.T
    del filters, outgoing
    capacities = torch.sqrt(energy * outer.diagonal())
    return PaperState(
        "random", capacities, fan_in + fan_out + 4, mean, spread, slope, energy, mean.clone(), inner, outer
    )


def one_layer(neurons: int, fan: int = 2048) -> dict[str, float]:
    """One layer's whole path: its time and its memory."""
    before = resident_megabytes()
    start = time.perf_counter()
    path = PairPath(random_layer(neurons, fan, fan), merge="pair", kernel="zero-bias")
    geometry = time.perf_counter() - start
    for _ in path.steps():
        pass
    whole = time.perf_counter() - start
    return {
        "neurons": neurons,
        "geometry seconds": geometry,
        "seconds": whole,
        "megabytes": peak_megabytes() - before,
    }


def layers(widths: Sequence[int]) -> list[dict[str, float]]:
    """Layers of these widths, each in a process of its own, so that its peak memory is its own."""
    found = []
    for width in widths:
        command = [sys.executable, "-m", "experiments.speed", "--layer", str(width)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout))
    return found


def scan(path: PairPath) -> float:
    """The least cost over all pairs of a layer, on geometry that is already there: a naive step."""
    squares = path.capacities**2
    rest = costs.remaining(path.left, path.capacities[:, None], path.capacities[None, :])
    sums = squares[:, None] + squares[None, :]
    cost = costs.merge_pair(path.neurons, path.distance, path.alignment, rest, sums)
    np.fill_diagonal(cost, np.inf)
    return float(cost.min())


def scans(paths: Sequence[PairPath], encoding: Encoding) -> float:
    """How many scans of all pairs of the whole network a naive loop takes, each step charged by the pairs
    that were still there.
    """
    left = {path.state.name: path.neurons for path in paths}
    inside = {block.name: block.layers for block in encoding.anatomy.blocks}
    at_first, scanned = sum(n * n for n in left.values()), 0
    for step in encoding.trajectory.steps[: encoding.steps]:
        scanned += sum(n * n for n in left.values())
        if isinstance(step, Evict):
            left.update((name, 0) for name in inside[step.name] if name in left)
        else:
            left[step.name] -= 1
    return scanned / max(1, at_first)


def naive(model: nn.Module, example: Tensor, measured: dict[str, float], density: float) -> dict[str, float]:
    """A naive rescan of all pairs before every step, against the runs of the paper's method."""
    anatomy = inspect(model, example, progress=False)
    run = partial(encode, model, example, density=density, anatomy=anatomy, method="paper", progress=False)
    whole, grown = run(), run(evict=False)
    longer = seconds(partial(run, evict=False))
    space = SearchSpace.of(model, example, anatomy, Paper(), evict=False)
    states = [state for state in space.states if isinstance(state, PaperState)]
    paths: list[PairPath] = []
    anew = seconds(lambda: paths.extend(map(Paper().path, states)))
    kept = seconds(lambda: [scan(path) for path in paths], 3)
    taken, absorb = measured["encode seconds"], measured["absorb / paper"] * measured["encode seconds"]
    return {
        "naive rescan / encode": anew * scans(paths, whole) / taken,
        "the same, pairs kept": kept * scans(paths, whole) / taken,
        "steps without evictions": grown.steps,
        "naive rescan / encode, no evictions": anew * scans(paths, grown) / longer,
        "the same, pairs kept, no evictions": kept * scans(paths, grown) / longer,
        "absorb / paper, both without evictions": absorb / longer,
    }


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="python -m experiments.speed",
        description="`hope bench speed` of a ResNet-50 with random weights, against a naive rescan, and of "
        "single layers.",
    )
    top.add_argument("--widths", type=int, nargs="*", default=list(WIDTHS), help="of single layers")
    top.add_argument("--layer", type=int, metavar="NEURONS", help="measure one layer alone")
    top.add_argument("--out", metavar="FILE", default=str(RESULTS), help="default: the committed results")
    readme.add_arguments(top)
    return top


def run(options: argparse.Namespace) -> None:
    """Measure, print and write, or show what was measured."""
    if options.layer is not None:
        print(json.dumps(one_layer(options.layer)))
        return
    if readme.shown(options, {"speed": table}):
        return
    check_out(Path(options.out))
    torch.manual_seed(0)
    model, example = ResNet50V1().eval(), torch.zeros(1, 3, 64, 64)
    whole = whole_network(model, example)
    whole |= naive(model, example, whole, density=0.3)
    results: dict[str, Any] = {"network": whole, "layers": layers(options.widths)}
    heads = ("neurons", "seconds", "of it geometry", "MB")
    widths = grid("One layer down to one neuron, fan-in and fan-out 2,048", *heads)
    for row in results["layers"]:
        widths.add_row(*(f"{row[k]:.2f}" for k in ("neurons", "seconds", "geometry seconds", "megabytes")))
    print(text(speed_table(whole, "ResNet-50 to density 0.3, random weights"), "", widths))
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
        f"- Absorption without the eviction search: {net['absorb / paper']:.1f} times the time of the "
        f"paper's method ({net['absorb / paper, both without evictions']:.1f} times if neither evicts). "
        f"The eviction search makes it {net['absorb, with / without evictions']:.1f} times as long.\n\n"
        "Ratios from one run of `python -m experiments.speed` on two cores.\n"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
