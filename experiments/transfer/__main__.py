"""Fine-tuning without forgetting: `python -m experiments.transfer`, resumable."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments import readme
from experiments.command import call
from experiments.data import data_folder
from experiments.transfer import jobs, page
from experiments.transfer.scale import SCALES
from hope._util.tables import grid, text
from hope.errors import MissingData


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="python -m experiments.transfer",
        description="Train networks on CIFAR-100 superclasses, teach them SVHN with every method, and "
        "measure what they know of both. Every piece of work leaves a file; started again, the command goes "
        "on where it stopped.",
        epilog="example: python -m experiments.transfer --data data/ --workers 2 --out runs/transfer",
    )
    top.add_argument(
        "--scale",
        choices=list(SCALES),
        default="small",
        help="full is the paper's protocol; vit has a vision transformer",
    )
    top.add_argument(
        "--out", metavar="FOLDER", default="runs/transfer", help="where the pieces go; resumes from them"
    )
    top.add_argument("--data", metavar="FOLDER", help="where the images are (default: $HOPE_DATA)")
    top.add_argument("--methods", nargs="+", metavar="METHOD", help="default: all")
    top.add_argument("--penalty", type=float, help="L2 penalty instead of the scale's")
    top.add_argument(
        "--ablate", action="store_true", help="after a run: change one of its limits at a time, on one task"
    )
    top.add_argument("--workers", type=int, default=1, help="processes")
    readme.add_arguments(top)
    return top


def run(options: argparse.Namespace) -> None:
    """Run the experiment, or what is left of it, and print its table. Each worker has one thread."""
    pages = {
        "transfer": page.table,
        "transfer-ablation": page.ablation,
        "transfer-small": page.small,
        "transfer-vit": page.vit,
    }
    if readme.shown(options, pages):
        return
    data = data_folder(options.data)
    if options.workers < 1:
        raise MissingData(f"--workers {options.workers} is none: give 1 or more")
    scale = SCALES[options.scale]
    if options.penalty is not None:
        scale = replace(scale, penalty=options.penalty)
    executor = None
    if options.workers > 1:
        executor = ProcessPoolExecutor(options.workers, initializer=torch.set_num_threads, initargs=(1,))
    try:
        found = (jobs.ablate if options.ablate else jobs.run)(
            Path(options.out),
            data,
            scale,
            methods=options.methods,
            executor=executor,
            note=partial(print, file=sys.stderr),
        )
    finally:
        if executor is not None:
            executor.shutdown(cancel_futures=True)
    for best in ("best by target", "best by h"):
        if options.ablate:
            flat = {f"{change}: {name}": row for change, rows in found.items() for name, row in rows.items()}
            print(text(_table(flat, best), ""))
        else:
            print(text(_table(found, best), ""))


def _table(found: dict[str, Any], best: str) -> object:
    heads = ("target", "source", "source masked", "H-score", "prepared")
    table = grid(f"Test accuracy, epoch {best}", " method", *heads)
    for name, row in found.items():
        cells = [row[best][k] for k in ("test target", "test source", "test source masked", "test h")]
        cells.append(row["prepared"])
        table.add_row(name, *(f"{100 * mean:.2f} ± {100 * spread:.2f}" for mean, spread in cells))
    return table


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
