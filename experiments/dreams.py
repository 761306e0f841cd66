"""How near moments of dreamed inputs come to real ones, and what they cost: `python -m experiments.dreams`.

What each reader reads is measured on inputs of several kinds and compared with what it reads on 200 images:
the distance of the covariances, relative to their size, on average over all readers.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import hope
from experiments import readme
from experiments.command import RESULTS as FOLDER
from experiments.command import call, network_parser, opened
from experiments.compression.page import TITLES
from experiments.refit import loaded
from hope.statistics import dreams
from hope.statistics.checkpoint import Checkpoint
from hope.statistics.input_statistics import InputStatistics, propagated_statistics
from hope.statistics.measured import measured_statistics

RESULTS = FOLDER / "dreams.json"
NETWORKS = ("cifar10-resnet20", "keras-resnet50")
REAL = 200


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    what = "Measure the moments of dreamed inputs."
    return network_parser("dreams", what, list(NETWORKS), RESULTS)


def run(options: argparse.Namespace) -> None:
    """Measure what is missing."""
    if readme.shown(options, {"dreams": table}):
        return
    torch.set_num_threads(1)
    for name, model, images, _, apart, entry, write in opened(options, NETWORKS, loaded):
        anatomy = hope.inspect(model, images[:1], progress=False)
        known, _ = propagated_statistics(anatomy, Checkpoint.of(model, anatomy))

        def moments(batches: Sequence[Any]) -> Mapping[str, InputStatistics]:
            return measured_statistics(model, anatomy, batches, known, progress=False)  # noqa: B023

        real = None
        for way, make in WAYS.items():
            if way in entry["points"]:
                continue
            real = real or moments(torch.split(images[:REAL], 20))
            start = time.process_time()
            batches = make(model, images[:1], apart)
            seconds = time.process_time() - start
            found = known if batches is None else moments(batches)
            entry["points"][way] = {"seconds": seconds, "distance": distance(found, real)}
            print(name, way, entry["points"][way], flush=True)
            write()


def distance(found: Mapping[str, InputStatistics], wanted: Mapping[str, InputStatistics]) -> float:
    """Of covariances, relative to those that are wanted, on average."""
    gaps = [
        float((found[name].covariance - one.covariance).norm() / one.covariance.norm())
        for name, one in wanted.items()
    ]
    return sum(gaps) / len(gaps)


def _first(model: nn.Module, example: Tensor, _: Tensor) -> Any:
    """As it was at first: 32 inputs in full size from noise, 40 passes, all BNs from the start."""
    side, dreams.SIDE = dreams.SIDE, max(example.shape)
    try:
        program = hope.inspect(model, example, progress=False).program
        args = tuple(dreams.synthetic_inputs(model, example, program, count=32, steps=40)[0])
    finally:
        dreams.SIDE = side
    return [args]


WAYS: dict[str, Callable[[nn.Module, Tensor, Tensor], Any]] = {
    "nothing (closed forms)": lambda model, example, apart: None,
    "patterns": lambda model, example, apart: hope.dream(model, example, steps=0, progress=False),
    "dreams": lambda model, example, apart: hope.dream(model, example, progress=False),
    "dreams as they were: 32 from noise, in full size, 40 passes": _first,
    "32 images": lambda model, example, apart: list(torch.split(apart[:32], 16)),
    "96 images": lambda model, example, apart: list(torch.split(apart[:96], 16)),
}


def table() -> str:
    """A row per kind of input."""
    results = json.loads(RESULTS.read_text())
    heads = [f"{TITLES[name]}: distance | seconds" for name in results]
    lines = [f"| moments from | {' | '.join(heads)} |", "|---|" + "---:|---:|" * len(results)]
    for way in WAYS:
        cells = []
        for entry in results.values():
            one = entry["points"].get(way)
            cells += [f"{one['distance']:.3f}", f"{one['seconds']:.0f}"] if one else ["", ""]
        lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
