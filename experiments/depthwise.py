"""What an expand–depthwise–project unit loses, and who takes it over: `python -m experiments.depthwise`.

A network of such units with ReLU6, made by `experiments.train`, loses neurons by absorption on 512 unlabelled
images. Then weights of some kinds are fitted, and those of the others left as absorption wrote them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

import torch

import hope
from experiments import readme
from experiments.command import RESULTS as FOLDER
from experiments.command import call, network_parser, opened
from experiments.milliseconds import loaded
from hope.bench.accuracy import accuracy, interval

RESULTS = FOLDER / "depthwise.json"
NETWORK = "svhn-depthwise"
BUDGETS = (0.9, 0.65, 0.5, 0.35)
KINDS = {"expand": "*.body.0", "depthwise": "*.body.3", "project": "*.body.6"}  # names of their modules
FITTED: dict[str, tuple[str, ...]] = {
    "no weight (absorption alone)": (),
    "depthwise filters alone": ("depthwise",),
    "expansions alone": ("expand",),
    "projections alone": ("project",),
    "all but depthwise filters": ("expand", "project"),
    "all": ("expand", "depthwise", "project"),
}


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    return network_parser("depthwise", "Measure who takes over what goes.", [NETWORK], RESULTS)


def run(options: argparse.Namespace) -> None:
    """Measure what is missing."""
    if readme.shown(options, {"depthwise": table}):
        return
    for _, model, images, labels, apart, entry, write in opened(options, [NETWORK], loaded):
        batches = list(torch.split(apart, 32))
        method = hope.Absorb(calibration=batches, refit=False)
        encoding = hope.encode(model, images[:1], params=min(BUDGETS), method=method, evict=False)
        for budget in BUDGETS:
            small = encoding.at(params=budget)
            points = entry["points"].setdefault(f"{budget:g}", {})
            for name, kinds in FITTED.items():
                if name in points:
                    continue
                stay = [pattern for kind, pattern in KINDS.items() if kind not in kinds]
                stay += [] if len(kinds) > 1 else ["0", "14"]  # the stem and the head
                fitted = hope.refit(model, small, batches, exclude=stay) if kinds else small
                points[name] = accuracy(fitted, images, labels)
                print(budget, name, points[name], flush=True)
                write()


def table() -> str:
    """A row per choice of weights."""
    (entry,) = json.loads(RESULTS.read_text()).values()
    low, high = interval(0.5, entry["images"])
    budgets = sorted(entry["points"], key=float, reverse=True)
    lines = [
        f"Top-1 by parameters kept; base {entry['base']:.3f}, {entry['images']:,} images, 95% intervals "
        f"within ±{(high - low) / 2:.3f}",
        "",
        f"| what is fitted | {' | '.join(budgets)} |",
        "|---|" + "---:|" * len(budgets),
    ]
    for name in FITTED:
        cells = [f"{entry['points'][budget][name]:.3f}" for budget in budgets]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
