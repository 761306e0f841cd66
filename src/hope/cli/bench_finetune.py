"""`hope bench finetune`: what is left of a method's advantage after a short fine-tuning."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hope._util.tables import grid, text
from hope.bench import compression, finetune
from hope.bench.budgets import by_unit, parse
from hope.bench.datasets import data_folder


def register(kinds: Any) -> None:
    """Add the kind."""
    parser: argparse.ArgumentParser = kinds.add_parser(
        "finetune",
        help="accuracy before and after a short fine-tuning: methods × budgets",
        description="Train a small residual network on thirty classes of CIFAR-100, compress it with every "
        "method, and fine-tune every compressed network in the same way. The trained network is kept beside "
        "the results. Every point is saved at once; started again, the command goes on where it stopped.",
        epilog="example: hope bench finetune --data data/ --methods absorb hope l1-in --budgets params=0.5",
    )
    parser.add_argument("--data", metavar="FOLDER", help="with cifar100-30c.npz (default: $HOPE_DATA)")
    parser.add_argument("--out", metavar="FILE", default="finetune.json", help="default: %(default)s")
    parser.add_argument(
        "--methods", nargs="+", metavar="METHOD", help="default: all of `hope bench compression`"
    )
    parser.add_argument(
        "--budgets",
        nargs="+",
        metavar="UNIT=SHARE",
        default=list(finetune.BUDGETS),
        help=f"shares to keep of params, density or macs (default: {' '.join(finetune.BUDGETS)})",
    )
    for name, default, what in (
        ("--epochs", finetune.TUNING.epochs, "of fine-tuning"),
        ("--train-epochs", finetune.TRAINING.epochs, "of training, before"),
        ("--images", finetune.IMAGES, "how many images to fine-tune on"),
        ("--seeds", finetune.SEEDS, "how many fine-tunings of each network"),
    ):
        parser.add_argument(name, type=int, metavar="N", default=default, help=f"{what} (default: {default})")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure what is missing, print what there is."""
    for budget in options.budgets:
        parse(budget)
    for name in ("epochs", "train_epochs", "images", "seeds"):
        if getattr(options, name) < 1:
            raise compression.UnusableResults(f"--{name.replace('_', '-')} must be at least 1")
    methods = compression.chosen_methods(options.methods, partial(print, file=sys.stderr))
    results = finetune.run(
        data_folder(options.data),
        Path(options.out),
        methods=methods,
        budgets=options.budgets,
        tuning=replace(finetune.TUNING, epochs=options.epochs),
        training=replace(finetune.TRAINING, epochs=options.train_epochs),
        images=options.images,
        seeds=options.seeds,
    )
    print(text(*tables(results["networks"][finetune.NAME])))


def tables(entry: dict[str, Any]) -> list[object]:
    """One table per budget."""
    parts: list[object] = []
    found = by_unit(sorted({b for points in entry["points"].values() for b in points}))
    for budget in (b for budgets in found.values() for b in budgets):
        table = grid(
            f"{finetune.NAME}, {budget}: {entry['images']:,} images, {entry['fine-tuning']['epochs']} epochs "
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
    return [*parts, *compression.refusals(entry)]
