"""A vision transformer compressed: `python -m experiments.vit --weights FOLDER`, resumable.

The network that `python -m experiments.train FOLDER` makes on 30 classes of CIFAR-100, without evictions: its
MLP neurons alone, and with its attention heads. Absorption measures signals on unlabelled training images, or
on noise where there are none (no BN tells of the data); then the weights are fitted on the same inputs.
Baselines choose by weights alone and repair nothing; then they are fitted on the 512 images, too. Accuracy is
measured on the test images.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hope
from experiments import readme, train
from experiments.command import RESULTS as FOLDER
from experiments.command import call, network_parser, opened
from hope.bench.accuracy import accuracy, interval
from hope.methods.method import Method
from hope.rewrite.refit import compressed

RESULTS = FOLDER / "vit.json"
TITLES = {"cifar100-vit": "Small ViT, 30 classes of CIFAR-100"}
CALIBRATION = 512
SHARES = {"neurons": (0.75, 0.5, 0.25, 0.1), "params": (0.75, 0.5, 0.3)}  # of MLP neurons, heads kept; of all
IMAGES = {"512 images": 512, "96 images": 96}
SCORES = {"l1-in": "incoming weights", "l1-joint": "incoming and outgoing weights", "random": "random"}
WAYS = (*IMAGES, "noise", *SCORES)


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    what = "Measure a vision transformer with fewer MLP neurons and heads."
    top = network_parser("vit", what, list(TITLES), RESULTS, " --weights checkpoints/")
    top.add_argument("--ways", nargs="+", choices=WAYS, default=WAYS, help="default: all")
    return top


def run(options: argparse.Namespace) -> None:
    """Measure what is missing."""
    if readme.shown(options, {"vit": table}):
        return
    for name, model, images, labels, apart, entry, write in opened(options, TITLES, loaded):
        for way in options.ways:
            for kind, shares in SHARES.items():
                points = entry["points"].setdefault(way, {}).setdefault(kind, {})
                missing = [share for share in shares if str(share) not in points]
                for share, point in _measured(model, way, kind, missing, apart, images, labels):
                    points[str(share)] = point
                    print(name, way, kind, share, point, flush=True)
                    write()


def loaded(name: str, folders: list[Path]) -> tuple[nn.Module, Tensor, Tensor, Tensor]:
    """The network, test images and labels, and training images to calibrate with."""
    images, labels = train.images(name, folders[0])
    others, _ = train.images(name, folders[0], "train")
    some = torch.randperm(len(others), generator=torch.Generator().manual_seed(0))[:CALIBRATION]
    return train.trained(name, folders[-1]), images, labels, others[some]


def _method(way: str, apart: Tensor) -> Method:
    if way in SCORES:
        return hope.Score(way)
    return hope.Absorb(calibration=torch.split(apart[: IMAGES[way]], 64) if way in IMAGES else "dream")


def _measured(
    model: nn.Module,
    way: str,
    kind: str,
    shares: Sequence[float],
    apart: Tensor,
    images: Tensor,
    labels: Tensor,
) -> Iterator[tuple[float, dict[str, Any]]]:
    """(share, accuracies there)."""
    if not shares:
        return
    start = time.perf_counter()
    anatomy = hope.inspect(model, images[:1])
    heads = sum(unit.neurons for unit in anatomy.layers if "attention" in unit.name)
    neurons = anatomy.size().neurons - heads
    exclude = ["*attention*"] if kind == "neurons" else []
    wanted = [heads + round(share * neurons) if exclude else share for share in shares]
    unit = "density" if exclude else "params"
    budget: dict[str, Any] = {unit: min(wanted)}
    method = _method(way, apart)
    how: dict[str, Any] = {"exclude": exclude, "evict": False, "progress": False, "anatomy": anatomy}
    encoding = hope.encode(model, images[:1], method=method, **budget, **how)
    seconds = time.perf_counter() - start
    for share, value in zip(shares, wanted, strict=True):
        steps = encoding.trajectory.steps_to(unit, value)
        taken, size = encoding.trajectory.steps[:steps], encoding.trajectory.size(steps)
        cut = compressed(
            model, anatomy, taken, input_statistics=encoding.input_statistics, rewrite=method.rewrite
        )
        point: dict[str, Any] = {
            "accuracy": accuracy(cut, images, labels),
            "neurons": size.neurons,
            "params": size.parameters / anatomy.size().parameters,
            "heads": heads - sum(len(step.removed) for step in taken if "attention" in step.name),
            "seconds": {"choosing": seconds},
        }
        start = time.perf_counter()
        if way in SCORES:
            fitted = hope.refit(model, cut, torch.split(apart, 64), exclude=exclude, progress=False)
        else:
            fitted = encoding.at(steps=steps)
        point["seconds"]["fitting"] = time.perf_counter() - start
        point["refitted"] = accuracy(fitted, images, labels)
        yield share, point


def table() -> str:
    """Accuracies by what is kept."""
    lines: list[str] = []
    for name, entry in json.loads(RESULTS.read_text()).items():
        low, high = interval(0.5, entry["images"])
        titles = [f"{share:g} of the MLP neurons" for share in SHARES["neurons"]]
        titles += [f"{share:g} of all parameters, heads too" for share in SHARES["params"]]
        lines += [
            f"\n**{TITLES[name]}**: top-1 by share kept, cut → refitted (heads kept); "
            f"base {entry['base']:.3f}, {entry['images']:,} images, 95% intervals within "
            f"±{(high - low) / 2:.3f}\n",
            f"| chosen on | {' | '.join(titles)} |",
            "|---" * (len(titles) + 1) + "|",
        ]
        for way in (way for way in WAYS if way in entry["points"]):
            found = entry["points"][way]
            cells = [_cell(found[kind].get(str(s)), kind) for kind, shares in SHARES.items() for s in shares]
            lines.append(f"| {SCORES.get(way, way)} | {' | '.join(cells)} |")
    return "\n".join(lines).strip() + "\n"


def _cell(point: dict[str, Any] | None, kind: str) -> str:
    if point is None:
        return ""
    reported = " → ".join(f"{point[key]:.3f}" for key in ("accuracy", "refitted") if key in point)
    return f"{reported} ({point['heads']})" if kind == "params" else reported


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
