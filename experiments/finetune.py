"""Compressed networks before and after a short fine-tuning: `python -m experiments.finetune`, resumable.

A small network is trained first, once; its weights are kept beside the results. Every method then compresses
it as in `experiments.compression`, and every compressed network is fine-tuned with the same images in the
same order, at the same rate and for as long, once per seed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from safetensors.torch import load_file, save
from torch import Tensor, nn

from experiments import data as images_
from experiments import readme
from experiments.command import RESULTS as FOLDER
from experiments.command import call
from experiments.compression import measure
from experiments.compression.methods import METHODS, chosen_methods
from experiments.compression.page import budgets as budgets_of
from experiments.compression.page import rank
from experiments.compression.store import UnusableResults, read_results, refusals
from experiments.training import Recipe, train
from hope._util.calls import duplicate
from hope._util.files import write_file
from hope._util.tables import grid, text
from hope.bench.accuracy import accuracy
from hope.bench.budgets import by_unit, parse
from hope.bench.results import check_out
from hope.errors import CheckpointMismatch, first_line
from zoo.networks import CifarResNet

RESULTS = FOLDER / "finetune.json"
COLUMNS = {"accuracy": "as it is", "recalibrated": "BN re-estimated", "fine-tuned": "fine-tuned"}
NAME = "cifar100-resnet8"
BUDGETS = ("params=0.5", "params=0.3")
TRAINING = Recipe(epochs=8, rate=0.1)
TUNING = Recipe(epochs=2, rate=0.02)
IMAGES, SEEDS = 4000, 2


@dataclass(frozen=True, kw_only=True)
class TuningTask(measure.Task):
    """A task whose networks are fine-tuned, too.

    Attributes:
        train_images, train_labels: to fine-tune on.
        tuning, training: how networks are fine-tuned, and how the original was trained.
        seeds: how many fine-tunings of each network.
    """

    train_images: Tensor
    train_labels: Tensor
    tuning: Recipe = TUNING
    training: Recipe = TRAINING
    seeds: int = SEEDS

    def identity(self) -> dict[str, Any]:
        """What must be the same for results to be gone on with."""
        return {
            **super().identity(),
            "fine-tuning images": len(self.train_images),
            "fine-tuning": asdict(self.tuning),
            "training": asdict(self.training),
            "seeds": self.seeds,
        }

    def further(self, network: nn.Module) -> dict[str, Any]:
        """Accuracy after fine-tuning: of every seed, and the mean."""
        scores = []
        for seed in range(self.seeds):
            tuned = duplicate(network).requires_grad_(True)
            train(tuned, self.train_images, self.train_labels, self.tuning, seed=seed, progress=False)
            scores.append(accuracy(tuned, self.images, self.labels))
        return {"fine-tuned": fmean(scores), "fine-tuned by seed": scores}


def weights_path(out: Path, training: Recipe) -> Path:
    """Where the trained network is kept, beside the results."""
    return out.with_name(f"{out.stem}-{NAME}-{training.epochs}-epochs.safetensors")


def trained(
    path: Path, images: Tensor, labels: Tensor, training: Recipe, *, progress: bool | None = None
) -> nn.Module:
    """The network, in evaluation mode: read, or trained and kept."""
    torch.manual_seed(0)
    model = CifarResNet(8, int(labels.max()) + 1)
    if path.is_file():
        try:
            model.load_state_dict(load_file(path))
        except Exception as error:  # not safetensors, or of other data
            raise CheckpointMismatch(
                f"{path} does not fit ({first_line(error)}): move it away, or give another --out"
            ) from error
        return model.eval()
    train(model, images, labels, training, seed=0, progress=progress)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, save({name: value.contiguous() for name, value in model.state_dict().items()}))
    return model


def run(  # noqa: PLR0913
    data: Path,
    out: Path,
    *,
    methods: Sequence[str] = tuple(METHODS),
    budgets: Sequence[str] = BUDGETS,
    tuning: Recipe = TUNING,
    training: Recipe = TRAINING,
    images: int = IMAGES,
    seeds: int = SEEDS,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Train the network, unless that is done, and measure what is not in the results yet.

    Args:
        data: a folder with `cifar100-30c.npz`.
        out: the results.
        images: how many training images to fine-tune on; the first 96 of them are the unlabelled ones.
        seeds: how many fine-tunings of each network.
    """
    x, y, x_test, y_test = images_.cifar100(data)
    check_out(out)
    read_results(out)  # damaged ones are refused before the training
    model = trained(weights_path(out, training), x, y, training, progress=progress)
    chosen = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[:images]
    measured = x_test.contiguous(memory_format=torch.channels_last)  # which a CPU is faster with
    task = TuningTask(
        NAME, model, x_test[:1], measured, y_test, x[chosen[:96]], tuple(budgets),
        train_images=x[chosen], train_labels=y[chosen], tuning=tuning, training=training, seeds=seeds,
    )  # fmt: skip
    return measure.run([task], out, methods=methods, progress=progress)


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="python -m experiments.finetune",
        description="Train a small residual network on thirty classes of CIFAR-100, compress it with every "
        "method, and fine-tune every compressed network in the same way. The trained network is kept beside "
        "the results. Every point is saved at once; started again, the command goes on where it stopped.",
        epilog="example: python -m experiments.finetune --data data/ --methods absorb l1-in",
    )
    top.add_argument("--data", metavar="FOLDER", help="with cifar100-30c.npz (default: $HOPE_DATA)")
    top.add_argument("--out", metavar="FILE", default=str(RESULTS), help="default: the committed results")
    top.add_argument(
        "--methods", nargs="+", metavar="METHOD", help="default: all of the compression experiment"
    )
    top.add_argument(
        "--budgets",
        nargs="+",
        metavar="UNIT=SHARE",
        default=list(BUDGETS),
        help=f"shares to keep of params, density or macs (default: {' '.join(BUDGETS)})",
    )
    for name, default, what in (
        ("--epochs", TUNING.epochs, "of fine-tuning"),
        ("--train-epochs", TRAINING.epochs, "of training, before"),
        ("--images", IMAGES, "how many images to fine-tune on"),
        ("--seeds", SEEDS, "how many fine-tunings of each network"),
    ):
        top.add_argument(name, type=int, metavar="N", default=default, help=f"{what} (default: {default})")
    readme.add_arguments(top)
    return top


def command(options: argparse.Namespace) -> None:
    """Measure what is missing, print what there is."""
    if readme.shown(options, {"finetune": table}):
        return
    for budget in options.budgets:
        parse(budget)
    for name in ("epochs", "train_epochs", "images", "seeds"):
        if getattr(options, name) < 1:
            raise UnusableResults(f"--{name.replace('_', '-')} must be at least 1")
    methods = chosen_methods(options.methods, partial(print, file=sys.stderr))
    results = run(
        images_.data_folder(options.data),
        Path(options.out),
        methods=methods,
        budgets=options.budgets,
        tuning=replace(TUNING, epochs=options.epochs),
        training=replace(TRAINING, epochs=options.train_epochs),
        images=options.images,
        seeds=options.seeds,
    )
    print(text(*tables(results["networks"][NAME])))


def tables(entry: dict[str, Any]) -> list[object]:
    """One table per budget."""
    parts: list[object] = []
    found = by_unit(sorted({b for points in entry["points"].values() for b in points}))
    for budget in (b for budgets in found.values() for b in budgets):
        table = grid(
            f"{NAME}, {budget}: {entry['images']:,} images, {entry['fine-tuning']['epochs']} epochs "
            f"on {entry['fine-tuning images']:,} images, mean of {entry['seeds']} seeds",
            " method",
            "parameters",
            "MACs",
            "as it is",
            "BN re-estimated",
            "fine-tuned",
        )
        table.add_row("the original", "", "", f"{entry['base']:.3f}", "", f"{entry['base fine-tuned']:.3f}")
        for method, points in entry["points"].items():
            if budget in points:
                keys = ("parameters", "macs", "accuracy", "recalibrated", "fine-tuned")
                table.add_row(method, *(f"{points[budget][key]:.3f}" for key in keys))
        parts += [table, ""]
    return [*parts, *refusals(entry)]


def table(results: Path = RESULTS) -> str:
    """The results as Markdown, a table per budget."""
    entry = json.loads(results.read_text())["networks"][NAME]
    lines = []
    for budget in budgets_of(entry, ""):
        rows = [(method, points[budget]) for method, points in entry["points"].items() if budget in points]
        best = {key: max(point[key] for _, point in rows) for key in COLUMNS}
        lines += [f"**{budget}**\n", f"| | parameters, MACs kept | {' | '.join(COLUMNS.values())} |"]
        lines += ["|---" + "|---:" * (1 + len(COLUMNS)) + "|"]
        for method, point in sorted(rows, key=lambda row: rank(row[0])):
            kept = f"{point['parameters']:.2f}, {point['macs']:.2f}"
            cells = [_cell(point, key, best[key]) for key in COLUMNS]
            lines.append(f"| {method} | {kept} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join([*lines, _words(entry)]) + "\n"


def _cell(point: dict[str, Any], key: str, best: float) -> str:
    text = f"{point[key]:.3f}"
    text = f"**{text}**" if point[key] == best else text
    if key != "fine-tuned":
        return text
    seeds = point["fine-tuned by seed"]
    return f"{text} ({min(seeds):.3f}–{max(seeds):.3f})" if len(seeds) > 1 else text


def _words(entry: dict[str, Any]) -> str:
    tuning, seeds = entry["fine-tuning"], entry["seeds"]
    return (
        f"ResNet-8 on thirty classes of CIFAR-100, trained for {entry['training']['epochs']} epochs: "
        f"{entry['base']:.3f}, and {entry['base fine-tuned']:.3f} when fine-tuned like the others: "
        f"{tuning['epochs']} epochs over {entry['fine-tuning images']:,} training images from a rate of "
        f"{tuning['rate']:g}"
        + (f", mean of {seeds} seeds (lowest–highest)" if seeds > 1 else "")
        + f". Measured on {entry['images']:,} test images; the 95% interval of one figure is up to "
        f"±{196 * (0.25 / entry['images']) ** 0.5:.1f} points. Bold: the best of a column."
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), command, argv)


if __name__ == "__main__":
    sys.exit(main())
