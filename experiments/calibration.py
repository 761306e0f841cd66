"""How nearly the paper's method is the same with measured signals as without data, on networks with BN:
`python -m experiments.calibration [NETWORK ...]`, resumable.

The same run three times: signals as BNs tell them, and measured on 96 and on 512 images, none of which are
among those that accuracy is measured on. Needs the checkpoints and images of `experiments.compression`
(HOPE_DATA). `--write-pages` puts the table into the docs.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import hope
from experiments.command import RESULTS as FOLDER
from experiments.command import call
from experiments.compression.page import TITLES
from experiments.data import colours, data_folder, normalised
from experiments.readme import add_arguments, shown
from hope.bench.accuracy import accuracy
from hope.bench.results import write_results
from hope.structure.anatomy import Anatomy
from zoo import networks

RESULTS = FOLDER / "calibration.json"
NETWORKS = ("cifar10-resnet20", "cifar10-resnet56")
IMAGES = 1000  # the first ones, to measure on
CALIBRATION = (96, 512)  # the last ones
SHARES = (0.1, 0.3, 0.5)  # of all neurons: the first removals that are compared
DENSITIES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3)
MODES = {"no evictions": False, "with evictions": True}


def spearman(a: Any, b: Any) -> float:
    """The rank correlation of two lists of numbers without ties.

    >>> spearman([1, 2, 3, 4], [1, 2, 4, 3])
    0.8
    """
    first, second = (np.argsort(np.argsort(np.asarray(values))) for values in (a, b))
    return round(float(np.corrcoef(first, second)[0, 1]), 12)


def _order(encoding: hope.Encoding) -> list[tuple[str, int]]:
    """Neurons in the order in which they leave; an evicted block takes all that are left of its layers."""
    gone: dict[tuple[str, int], None] = {}
    for step in encoding.trajectory.steps:
        if step.removed:
            gone.update(dict.fromkeys((step.name, neuron) for neuron in step.removed))
            continue
        for name in encoding.anatomy.block(step.name).layers:
            neurons = range(encoding.anatomy.unit(name).neurons)
            gone.update(dict.fromkeys((name, neuron) for neuron in neurons))
    return list(gone)


def _encoded(model: nn.Module, anatomy: Anatomy, images: torch.Tensor | None, evict: bool) -> hope.Encoding:
    method = hope.Paper(calibration=None if images is None else torch.split(images, 64))
    example = torch.zeros(1, 3, 32, 32)
    low = min(DENSITIES)
    return hope.encode(
        model, example, density=low, method=method, evict=evict, anatomy=anatomy, progress=False
    )


def _like(one: hope.Encoding, other: hope.Encoding) -> dict[str, Any]:
    """How nearly two runs of one network agree."""
    sizes = [one.measures[name] for name in one.measures], [other.measures[name] for name in one.measures]
    flat = [np.concatenate(some) for some in sizes]
    orders = _order(one), _order(other)
    both = set(orders[0]) & set(orders[1])
    places = [{neuron: k for k, neuron in enumerate(order)} for order in orders]
    neurons = one.anatomy.size().neurons
    return {
        "capacities": spearman(*flat),
        "capacities by layer": float(np.median([spearman(a, b) for a, b in zip(*sizes, strict=True)])),
        "difference": float(np.median(np.abs(flat[1] / np.maximum(flat[0], 1e-12) - 1))),
        "order": spearman(*([place[neuron] for neuron in sorted(both)] for place in places)),
        "same": {
            str(share): len(set(orders[0][:n]) & set(orders[1][:n])) / n
            for share in SHARES
            if (n := round(share * neurons))
        },
    }


def _row(mode: str, count: int) -> str:
    return f"{mode}, {f'{count} images' if count else 'without data'}"


def run(names: list[str], folders: list[Path]) -> None:
    """Measure the runs that are missing."""
    results: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.is_file() else {}
    x, y = colours(folders[0] / "cifar10-test-5k.npz", "x", "y")
    images, labels = normalised(torch.from_numpy(x[:IMAGES])), torch.from_numpy(y[:IMAGES].astype(np.int64))
    apart = normalised(torch.from_numpy(x[IMAGES:][-max(CALIBRATION) :]))
    for name in names:
        model = networks.trained(name, *folders)
        anatomy = hope.inspect(model, images[:1])
        entry = results.setdefault(name, {"images": len(images), "runs": {}})
        for mode, evict in MODES.items():
            plain: hope.Encoding | None = None
            for count in (0, *CALIBRATION):
                row = _row(mode, count)
                if row in entry["runs"]:
                    continue
                print(f"{name}: {row}", file=sys.stderr, flush=True)
                plain = plain or _encoded(model, anatomy, None, evict)
                made = _encoded(model, anatomy, apart[-count:], evict) if count else plain
                found: dict[str, Any] = {} if not count else _like(plain, made)
                found["accuracy"] = {
                    f"{density:g}": accuracy(made.at(density=density), images, labels)
                    for density in DENSITIES
                }
                entry["runs"][row] = found
                write_results(RESULTS, results)


def table() -> str:
    """The committed results as Markdown."""
    results = json.loads(RESULTS.read_text())
    heads = ["‖f‖: median difference", "‖f‖: rank correlation", "order of removals: rank correlation"]
    heads += [f"same among the first {share:.0%}" for share in SHARES]
    heads += [f"top-1 at {density:g}" for density in DENSITIES]
    lines = ["| network | signals | " + " | ".join(heads) + " |", "|---|---|" + "---:|" * len(heads)]
    for name in (name for name in NETWORKS if name in results):
        runs = results[name]["runs"]
        for row in (
            row for mode in MODES for count in (0, *CALIBRATION) if (row := _row(mode, count)) in runs
        ):
            (mode, _, signals), found = row.partition(", "), runs[row]
            cells = [f"{found['difference']:.1%}" if found.keys() > {"accuracy"} else ""]
            alike = [found.get(key) for key in ("capacities", "order")]
            cells += ["" if value is None else f"{value:.3f}" for value in alike]
            same = found.get("same", {})
            cells += [f"{same[str(share)]:.0%}" if same else "" for share in SHARES]
            cells += [f"{found['accuracy'][f'{density:g}']:.3f}" for density in DENSITIES]
            lines.append(f"| {TITLES[name]}, {mode} | {signals} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="python -m experiments.calibration",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("networks", nargs="*", metavar="NETWORK", help="default: all")
    top.add_argument("--data", metavar="FOLDER", help="checkpoints and images (default: HOPE_DATA)")
    add_arguments(top)
    return top


def _main(options: argparse.Namespace) -> None:
    if shown(options, {"calibration": table}):
        return
    run(options.networks or list(NETWORKS), [data_folder(options.data)])
    print(table())


def main(argv: list[str] | None = None) -> int:
    """Measure what is missing, or show what there is."""
    return call(parser(), _main, argv)


if __name__ == "__main__":
    sys.exit(main())
