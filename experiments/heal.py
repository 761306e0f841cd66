"""What healing is worth: `python -m experiments.heal [NETWORK ...]`, resumable.

Small networks are distilled towards their originals, without labels: from 512 images, or without data from
dreams. The same steps are taken on a network that Torch-Pruning made smaller, and, for comparison, with
labels instead of the original. The images that are measured on are used for nothing else.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hope
from experiments import data, readme
from experiments.command import RESULTS as FOLDER
from experiments.command import call, network_parser, opened
from experiments.compression import peers
from experiments.compression.page import TITLES
from experiments.training import Recipe, train
from hope._util.calls import duplicate
from hope.bench.accuracy import accuracy, interval
from zoo import networks

RESULTS = FOLDER / "heal.json"
APART, TRIED = 512, 1000  # images to heal on, and images that choices were made on
PEER, LABELS = "torch-pruning LAMP", "labels"
# network -> what is measured -> density, steps
POINTS: dict[str, dict[str, tuple[float, int]]] = {
    "cifar10-resnet20": {
        "512 images": (0.3, 200),
        "no data": (0.3, 200),
        f"{PEER}, 512 images": (0.3, 200),
        f"{LABELS}, 512 images": (0.3, 200),
    },
    "cifar10-resnet56": {"no data": (0.3, 200)},
}


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = network_parser("heal", "Measure healing.", list(POINTS), RESULTS, " --points '512 images'")
    top.add_argument("--points", nargs="+", metavar="POINT", help="default: all of a network")
    return top


def run(options: argparse.Namespace) -> None:
    """Measure what is missing."""
    if readme.shown(options, {"heal": table}):
        return
    torch.set_num_threads(1)
    for name, model, images, labels, apart, entry, write in opened(options, POINTS, loaded):
        for point, (density, steps) in POINTS[name].items():
            if point in entry["points"] or (options.points and point not in options.points):
                continue
            small, seconds = _small(model, images[:1], apart[0], point, density)
            start = time.process_time()
            healed, facts = _healed(model, small, images[:1], apart, point, steps)
            entry["points"][point] = {
                "density": density,
                "parameters": _parameters(small) / _parameters(model),
                "before": accuracy(small, images, labels),
                "after": accuracy(healed, images, labels),
                "steps": steps,
                "seconds": {"compressing": seconds, "healing": time.process_time() - start},
                **facts,
            }
            print(name, point, entry["points"][point], flush=True)
            write()


def loaded(name: str, folders: list[Path]) -> tuple[nn.Module, Tensor, Tensor, tuple[Tensor, Tensor]]:
    """A network, images and labels to measure on, and others to heal with, with their labels."""
    found = data.cifar10(folders[0], 5000, apart=False)
    measured = len(found.images) - APART - TRIED
    apart = found.images[-APART:], found.labels[-APART:]
    return networks.trained(name, *folders), found.images[:measured], found.labels[:measured], apart


def _small(
    model: nn.Module, example: Tensor, images: Tensor, point: str, density: float
) -> tuple[nn.Module, float]:
    """A network of the size, and the seconds that it took."""
    start = time.process_time()
    if point.startswith(PEER):
        share = _small(model, example, images, "512 images", density)[0]
        kept = _parameters(share) / _parameters(model)
        anatomy = hope.inspect(model, example, progress=False)
        return peers.compressed(PEER, model, example, anatomy)(f"params={kept:.3f}")[0], 0.0
    method = hope.Absorb() if point == "no data" else hope.Absorb(calibration=list(torch.split(images, 32)))
    evict = point == "no data"
    encoding = hope.encode(model, example, method=method, evict=evict, density=density, progress=False)
    return encoding.model, time.process_time() - start


def _healed(
    model: nn.Module, small: nn.Module, example: Tensor, apart: tuple[Tensor, Tensor], point: str, steps: int
) -> tuple[nn.Module, dict[str, Any]]:
    """The network after so many steps, and what else is known."""
    images, labels = apart
    if point.startswith(LABELS):
        recipe = Recipe(epochs=steps * 64 // len(images), rate=0.02)
        return train(duplicate(small), images, labels, recipe, seed=0, progress=False), {}
    batches = None if point == "no data" else list(torch.split(images, 32))
    healed = hope.heal(model, small, batches, steps=steps, example=example, progress=False)
    return healed.model, {"held-out fidelity": [healed.before, healed.after], "taken": healed.steps}


def _parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def table() -> str:
    """A row per network and point."""
    lines = [
        "| network | healed with | parameters | steps | CPU minutes | before | after |",
        "|---|---|---:|---:|---:|---:|---:|",
    ]
    words = {PEER: "Torch-Pruning's network (LAMP)", LABELS: "fine-tuned with labels"}
    for name, entry in json.loads(RESULTS.read_text()).items():
        for point, one in entry["points"].items():
            what = point.removesuffix(f", {one['steps']} steps")
            for key, reported in words.items():
                what = what.replace(key, reported)
            minutes = one["seconds"]["healing"] / 60
            lines.append(
                f"| {TITLES[name]}, {entry['base']:.3f} | {what} | {one['parameters']:.2f} | {one['steps']} "
                f"| {minutes:.1f} | {one['before']:.3f} | {one['after']:.3f} |"
            )
        low, high = interval(0.5, entry["images"])
    lines.append(f"\n{entry['images']:,} images; 95% intervals within ±{(high - low) / 2:.3f}.")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
