"""By what a layer's cost should count: `python -m experiments.rules [NETWORK ...]`, resumable.

Absorption without evictions and without fitting, its layers' costs weighed by what the branch writes into the
stream (as it is), by nothing, or by what the layer's loss does to the answers (`hope.Absorb(look=True)`). Two
of the networks were set aside: no rule was chosen on them (`python -m experiments.train`).
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import hope
from experiments import data, readme, train
from experiments.command import RESULTS as FOLDER
from experiments.command import call, network_parser
from experiments.compression.page import TITLES
from experiments.data import data_folder
from hope.bench.accuracy import accuracy, interval
from hope.bench.results import check_out, versions, write_results
from hope.storage.run import fingerprint
from zoo import networks

RESULTS = FOLDER / "rules.json"
RULES = {
    "the branch's share": hope.Absorb(calibration=None, refit=False),
    "nothing": hope.Absorb(calibration=None, refit=False, share=False),
    "the answers": hope.Absorb(calibration=None, refit=False, look=True),
    "share, on patterns": hope.Absorb(refit=False),
    "and fitted (the default)": hope.Absorb(),
}
ASIDE = {"svhn-depthwise": "depthwise, SVHN (set aside)", "cifar100-plain": "plain, CIFAR-100 (set aside)"}
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
    out = Path(options.out)
    check_out(out)
    results = json.loads(out.read_text()) if out.is_file() else {}
    folders = [data_folder(options.data), *([Path(options.weights)] if options.weights else [])]
    for name in options.networks or [*networks.CHECKPOINTS, *ASIDE]:
        if name in ASIDE:
            model = train.trained(name, folders[-1])
            images, labels = (some[:2000] for some in train.images(name, folders[0]))
        else:
            model = networks.trained(name, *folders)
            load = data.imagenet if name == "keras-resnet50" else data.cifar10
            images, labels, _ = load(folders[0], IMAGES.get(name, 2000))
        entry = results.setdefault(name, {"points": {}})
        entry |= {"images": len(images), "weights": fingerprint(model)[:16], "versions": versions()}
        entry.setdefault("base", accuracy(model, images, labels))
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
                write_results(out, results)


def table() -> str:
    """A table per unit."""
    results = json.loads(RESULTS.read_text())
    lines: list[str] = []
    for unit, what in (("density", "neurons"), ("params", "parameters")):
        lines += [f"\nBy {what} kept:\n", "| top-1 | " + " | ".join(RULES) + " |", "|---" * 4 + "|"]
        for name, entry in results.items():
            for share in entry["points"]["nothing"].get(unit, {}):
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
