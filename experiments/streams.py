"""What cutting residual streams is worth: `python -m experiments.streams [NETWORK ...]`, resumable.

Absorption without evictions, with and without stream channels among the neurons that may go: in closed forms,
and with moments measured and weights fitted on patterns, or on 512 unlabelled images, which are never among
those that are measured on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

import hope
from experiments import readme
from experiments.command import RESULTS as FOLDER
from experiments.command import call, network_parser, opened
from experiments.compression.page import TITLES
from experiments.refit import loaded
from hope.bench.accuracy import accuracy, interval

RESULTS = FOLDER / "streams.json"
NETWORKS = ("cifar10-resnet20", "cifar10-resnet56")
UNITS = ("macs", "params")  # each has a run that is ranked by it
BUDGETS = tuple(f"{unit}={share}" for unit in UNITS for share in (0.8, 0.6, 0.4))
WAYS = ("closed forms", "patterns", "512 images, refitted")


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    what = "Measure absorption with and without residual streams."
    top = network_parser("streams", what, list(NETWORKS), RESULTS, " --ways patterns")
    top.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="default: all")
    return top


def run(options: argparse.Namespace) -> None:
    """Measure what is missing."""
    if readme.shown(options, {"streams": table}):
        return
    for name, model, images, labels, apart, entry, write in opened(options, NETWORKS, loaded):
        for way in options.ways:
            for streams in (False, True):
                points = entry["points"].setdefault(way, {}).setdefault("on" if streams else "off", {})
                for unit in UNITS:
                    missing = [b for b in BUDGETS if b.startswith(unit) and b not in points]
                    for budget, point in _measured(model, way, streams, apart, images, labels, missing):
                        points[budget] = point
                        print(name, way, "streams" if streams else "", budget, point, flush=True)
                        write()


def _measured(
    model: nn.Module,
    way: str,
    streams: bool,
    apart: Tensor,
    images: Tensor,
    labels: Tensor,
    budgets: Sequence[str],
) -> Iterator[tuple[str, dict[str, Any]]]:
    """(budget, what was measured there), of budgets in one unit."""
    if not budgets:
        return
    words: dict[str, Any] = {"closed forms": None, "patterns": "patterns"}
    method = hope.Absorb(calibration=words[way] if way in words else list(torch.split(apart, 32)))
    unit = budgets[0].partition("=")[0]
    shares = {budget: float(budget.partition("=")[2]) for budget in budgets}
    for budget in budgets:
        if streams or budget == budgets[0]:  # whether streams go is decided at each budget
            start = time.perf_counter()
            lowest: dict[str, Any] = {unit: shares[budget] if streams else min(shares.values())}
            how: dict[str, Any] = {"evict": False, "streams": streams, "progress": False, **lowest}
            encoding = hope.encode(model, images[:1], method=method, **how)
            seconds = time.perf_counter() - start
            channels = {unit.name for unit in encoding.anatomy.streams}
            whole = encoding.trajectory.size(0)
        steps = encoding.trajectory.steps_to(unit, shares[budget])
        size, taken = encoding.trajectory.size(steps), encoding.trajectory.steps[:steps]
        yield (
            budget,
            {
                "accuracy": accuracy(encoding.at(steps=steps), images, labels),
                "macs": size.macs / whole.macs,
                "params": size.parameters / whole.parameters,
                "channels": sum(len(step.removed) for step in taken if step.name in channels),
                "seconds": seconds,
            },
        )


def table() -> str:
    """A table per network."""
    lines: list[str] = []
    for name, entry in json.loads(RESULTS.read_text()).items():
        low, high = interval(0.5, entry["images"])
        heads = [budget.replace("=", " ") for budget in BUDGETS]
        lines += [
            f"\n**{TITLES[name]}**: top-1 without → with streams (stream channels removed), by budget "
            f"kept; base {entry['base']:.3f}, {entry['images']:,} images, 95% intervals within "
            f"±{(high - low) / 2:.3f}\n",
            f"| how | {' | '.join(heads)} |",
            "|---" * (len(heads) + 1) + "|",
        ]
        for way in WAYS:
            points = entry["points"].get(way)
            if points:
                cells = [_cell(points["off"].get(b), points.get("on", {}).get(b)) for b in BUDGETS]
                lines.append(f"| {way} | {' | '.join(cells)} |")
    return "\n".join(lines).strip() + "\n"


def _cell(off: dict[str, Any] | None, on: dict[str, Any] | None) -> str:
    reported = [f"{one['accuracy']:.3f}" for one in (off, on) if one is not None]
    return " → ".join(reported) + (f" ({on['channels']})" if on is not None else "")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
