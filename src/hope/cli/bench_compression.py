"""`hope bench compression`: accuracy against size."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from hope._util.tables import grid, text
from hope.bench import compression, networks
from hope.bench.budgets import KEPT, by_unit, parse
from hope.bench.datasets import MissingData, data_folder
from hope.cli import models

WIDTH = 132


def register(kinds: Any) -> None:
    """Add the kind."""
    parser: argparse.ArgumentParser = kinds.add_parser(
        "compression",
        help="accuracy against size: networks × methods × budgets",
        description="Compress real networks with every method and measure their accuracy, without data, and "
        "again after BN re-estimation on 96 unlabelled images. Every point is saved at once; started again, "
        "the command goes on where it stopped.",
        epilog="example: hope bench compression cifar10-resnet20 --data data/ --out results.json; of your "
        "own: hope bench compression file.py:function --checkpoint w.safetensors --images-from images/",
    )
    parser.add_argument(
        "networks",
        nargs="*",
        metavar="NETWORK",
        help=f"of {', '.join(networks.CHECKPOINTS)} (default: all), or a MODEL of your own: {models.HELP}",
    )
    parser.add_argument("--data", metavar="FOLDER", help="checkpoints and images (default: $HOPE_DATA)")
    parser.add_argument("--weights", metavar="FOLDER", help="another folder with checkpoints")
    parser.add_argument("--methods", nargs="*", metavar="METHOD", help="default: all")
    parser.add_argument(
        "--budgets",
        nargs="+",
        metavar="UNIT=SHARE",
        help="shares to keep of density, params or macs, like density=0.5 params=0.5",
    )
    parser.add_argument(
        "--no-recalibration", action="store_true", help="do not measure again after BN re-estimation"
    )
    parser.add_argument("--images", type=int, help="how many images to measure on")
    parser.add_argument("--out", metavar="FILE", default="compression.json", help="default: %(default)s")
    own = parser.add_argument_group("a MODEL of your own")
    own.add_argument("--checkpoint", metavar="FILE", help="its weights: .safetensors, or .pt/.pth")
    own.add_argument(
        "--images-from",
        metavar="PATH",
        help="a folder (one sub-folder per class, or files named by class number) or an .npz with x and y",
    )
    own.add_argument("--input", metavar="SHAPE", default=models.INPUT, help="default: %(default)s")
    for name in ("--mean", "--std"):
        own.add_argument(
            name, nargs="+", type=float, metavar="N", help="per channel, of 0 to 1 (default: ImageNet's)"
        )
    own.add_argument("--seed", type=int, default=0, help="which images are measured (default: %(default)s)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Measure what is missing, print what there is."""
    names = options.networks or list(networks.CHECKPOINTS)
    methods = compression.chosen_methods(options.methods, partial(print, file=sys.stderr))
    for budget in options.budgets or []:
        parse(budget)
    known = [name for name in names if ":" not in name]
    for name in known:
        if name not in networks.CHECKPOINTS:
            raise compression.UnusableResults(
                f"there is no network {name!r}: choose from {', '.join(networks.CHECKPOINTS)}; "
                f"or give {models.HELP}"
            )
    _check_own(names, known, options)
    folders = [data_folder(options.data)] if known else []
    folders += [Path(options.weights)] if options.weights else []
    compression.check_out(Path(options.out))
    compression.read_results(Path(options.out))
    tasks = [_task(name, folders, options) for name in names]
    results = compression.run(
        tasks, Path(options.out), methods=methods, recalibrate=not options.no_recalibration
    )
    print(text(*tables(results), width=WIDTH))


def _check_own(names: Sequence[str], known: Sequence[str], options: argparse.Namespace) -> None:
    """The options of a user's model are there if and only if there is one."""
    own = [name for name in names if name not in known]
    if not own and (options.checkpoint or options.images_from):
        raise models.UnknownModel(
            f"--checkpoint and --images-from belong to a MODEL of your own: give {models.HELP}"
        )
    if own and not options.images_from:
        raise MissingData(f"{own[0]} needs images to be measured on: give --images-from FOLDER or FILE.npz")
    if len(own) > 1 and options.checkpoint:
        raise models.UnknownModel(f"--checkpoint fits one model, not {', '.join(own)}: measure one at a time")
    for name in own:
        if name.partition(":")[0] in ("torchvision", "timm") and not options.checkpoint:
            raise models.UnknownModel(f"{name} has random weights as it is: give --checkpoint FILE")


def _task(name: str, folders: Sequence[Path], options: argparse.Namespace) -> compression.Task:
    if name in networks.CHECKPOINTS:
        task = compression.known_task(name, folders, options.images)
    else:
        model = models.make(name)
        if options.checkpoint:
            models.load_weights(model, Path(options.checkpoint))
        task = compression.own_task(
            name,
            model.eval(),
            models.example(options.input),
            Path(options.images_from),
            mean=options.mean,
            std=options.std,
            count=options.images,
            seed=options.seed,
        )
    return replace(task, budgets=tuple(options.budgets or task.budgets))


def tables(results: dict[str, Any]) -> list[object]:
    """Results as tables: per network and unit the accuracies, then more about every budget.

    "time / hope" is the time from the checkpoint to the network over that of "hope" to the same budgets,
    where both were measured in one run.
    """
    parts: list[object] = []
    for name, entry in results["networks"].items():
        asked = [entry["points"], entry.get("cannot be met", {})]
        budgets = by_unit(sorted({b for methods in asked for some in methods.values() for b in some}))
        for unit, mine in budgets.items():
            base = f"base {entry['base']:.3f}, {entry['images']:,} images"
            columns = [budget.partition("=")[2] for budget in mine]
            table = grid("", " method", *columns)
            for method in entry["points"]:
                points = _points(entry, method, mine)
                if any(point is not None for point in points):
                    table.add_row(method, *(_share(point, "accuracy") for point in points))
            parts += [f"{name}: {base}; {KEPT[unit]} kept", table, ""]
        for budget in (budget for mine in budgets.values() for budget in mine):
            parts += [_details(name, entry, budget), ""]
        parts += [*compression.refusals(entry), ""] if entry.get("cannot be met") else []
    return [*parts, "actions: a absorb, p prune, m merge, e evict; –: the budget cannot be met"]


def _details(name: str, entry: dict[str, Any], budget: str) -> object:
    columns = ["accuracy", "95%", "BN re-est.", "95%", "neurons", "parameters", "MACs", " actions"]
    table = grid(f"{name}, {budget}", " method", *columns, "time / hope")
    for method in entry["points"]:
        (point,) = _points(entry, method, [budget])
        if point is not None:
            table.add_row(
                method,
                *_with_interval(point, "accuracy", entry["images"]),
                *_with_interval(point, "recalibrated", entry["images"]),
                *(_share(point, kept) for kept in KEPT.values()),
                " ".join(f"{count}{kind[0]}" for kind, count in point.get("mix", {}).items() if count),
                f"{point['time / hope']:.2f}" if "time / hope" in point else "",
            )
    return table


def _points(entry: dict[str, Any], method: str, budgets: Sequence[str]) -> list[dict[str, Any] | None]:
    """A method's points; empty ones for budgets that cannot be met, none for those not measured."""
    refused = entry.get("cannot be met", {}).get(method, {})
    return [entry["points"][method].get(b, {} if b in refused else None) for b in budgets]


def _share(point: dict[str, Any] | None, figure: str) -> str:
    """
    >>> _share({"accuracy": 0.5}, "accuracy"), _share({}, "accuracy"), _share(None, "accuracy")
    ('0.500', '–', '')
    """
    if point is None or (point and figure not in point):
        return ""
    return f"{point[figure]:.3f}" if point else "–"


def _with_interval(point: dict[str, Any], figure: str, count: int) -> tuple[str, str]:
    """A share, and its 95% interval; which is worked out here, as old results have another one."""
    if figure not in point:
        return _share(point, figure), ""
    low, high = compression.interval(point[figure], count)
    return _share(point, figure), f"{low:.3f}–{high:.3f}"
