"""By what a layer's cost should count: `python -m experiments.rules [NETWORK ...]`, resumable.

Absorption in closed forms, without evictions, its layers' costs weighed by what the branch writes into the
stream (as it is), by nothing, or by what the layer's loss does to the answers (`sensitivity=True`); and
the first of these with signals measured on patterns, without and with fitting (the default). Two of the
networks were held out: no rule was chosen on them (`python -m experiments.train`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

import hope
from experiments import data, readme, train
from experiments.ablations import Ablation
from experiments.command import RESULTS as FOLDER
from experiments.command import call, network_parser, opened
from experiments.compression.page import TITLES
from hope.bench.accuracy import accuracy, interval
from zoo import networks

RESULTS = FOLDER / "rules.json"
RULES = {
    "the branch's share": hope.Absorb(calibration=None, refit=False),
    "no weight": Ablation(calibration=None, refit=False, shares=False),
    "sensitivity": hope.Absorb(calibration=None, refit=False, sensitivity=True),
    "share, on patterns": hope.Absorb(refit=False),
    "the same, refitted (the default)": hope.Absorb(),
}
ASIDE = {"svhn-depthwise": "depthwise, SVHN (held out)", "cifar100-plain": "plain, CIFAR-100 (held out)"}
SHARES = {"density": (0.7, 0.5, 0.3), "params": (0.7, 0.5, 0.35)}
LARGE = {"params": (0.825, 0.65, 0.56, 0.475, 0.4)}
IMAGES = {"keras-resnet50": 250}


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    what = "Measure rules for what layers' costs count."
    return network_parser("rules", what, [*networks.CHECKPOINTS, *ASIDE], RESULTS)


def run(options: argparse.Namespace) -> None:
    """Measure what is missing."""
    if readme.shown(options, {"rules": table}):
        return
    every = [*networks.CHECKPOINTS, *ASIDE]
    for name, model, images, labels, _, entry, write in opened(options, every, _loaded):
        for rule, method in RULES.items():
            for unit, shares in (LARGE if name == "keras-resnet50" else SHARES).items():
                points = entry["points"].setdefault(rule, {}).setdefault(unit, {})
                if all(str(share) in points for share in shares):
                    continue
                start = time.perf_counter()
                budget: dict[str, Any] = {unit: min(shares), "progress": False}
                encoding = hope.encode(model, images[:1], method=method, evict=False, **budget)
                entry["points"][rule]["seconds"] = time.perf_counter() - start
                for share in shares:
                    at: dict[str, Any] = {unit: share}
                    points[str(share)] = accuracy(encoding.at(**at), images, labels)
                write()


def _loaded(name: str, folders: list[Path]) -> tuple[nn.Module, Tensor, Tensor, None]:
    """A network, and images and labels to measure on."""
    if name in ASIDE:
        images, labels = (some[:2000] for some in train.images(name, folders[0]))
        return train.trained(name, folders[-1]), images, labels, None
    load = data.imagenet if name == "keras-resnet50" else data.cifar10
    images, labels, _ = load(folders[0], IMAGES.get(name, 2000))
    return networks.trained(name, *folders), images, labels, None


def table() -> str:
    """A table per unit."""
    results = json.loads(RESULTS.read_text())
    lines: list[str] = []
    for unit, what in (("density", "neurons"), ("params", "parameters")):
        lines += [
            f"\nBy {what} kept:\n",
            "| top-1 | " + " | ".join(RULES) + " |",
            "|---" * (len(RULES) + 1) + "|",
        ]
        for name, entry in results.items():
            for share in entry["points"]["no weight"].get(unit, {}):
                cells = [f"{entry['points'][rule][unit][share]:.3f}" for rule in RULES]
                lines.append(f"| {(TITLES | ASIDE)[name]}, {share} | " + " | ".join(cells) + " |")
    spans = [(TITLES | ASIDE)[n] + f" ±{_half(e['images']):.3f}" for n, e in results.items()]
    return "\n".join(lines).strip() + "\n\n95% intervals: " + ", ".join(spans) + ".\n"


def _half(count: int) -> float:
    low, high = interval(0.5, count)
    return (high - low) / 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
