"""Accuracy against size: `python -m experiments.compression [NETWORK ...]`, resumable."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from experiments import readme
from experiments.command import call
from experiments.compression import measure, page
from experiments.compression.methods import chosen_methods
from experiments.compression.store import UnusableResults, read_results, refusals
from experiments.data import data_folder
from hope._util.tables import grid, text
from hope.bench.accuracy import interval
from hope.bench.budgets import KEPT, by_unit, parse
from hope.bench.results import check_out
from zoo import networks

WIDTH = 132


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="python -m experiments.compression",
        description="Compress real networks with every method and measure their accuracy, without data, and "
        "again after BN re-estimation on 96 unlabelled images. Every point is saved at once; started again, "
        "the command goes on where it stopped.",
        epilog="example: python -m experiments.compression cifar10-resnet20 --data data/ --out results.json",
    )
    top.add_argument(
        "networks",
        nargs="*",
        metavar="NETWORK",
        help=f"of {', '.join(networks.CHECKPOINTS)} (default: all)",
    )
    top.add_argument("--data", metavar="FOLDER", help="checkpoints and images (default: $HOPE_DATA)")
    top.add_argument("--weights", metavar="FOLDER", help="another folder with checkpoints")
    top.add_argument("--methods", nargs="*", metavar="METHOD", help="default: all")
    top.add_argument(
        "--budgets",
        nargs="+",
        metavar="UNIT=SHARE",
        help="shares to keep of density, params or macs, like density=0.5 params=0.5",
    )
    top.add_argument(
        "--no-recalibration", action="store_true", help="do not measure again after BN re-estimation"
    )
    top.add_argument("--images", type=int, help="how many images to measure on")
    top.add_argument(
        "--out", metavar="FILE", default=str(page.RESULTS), help="default: the committed results"
    )
    readme.add_arguments(top)
    return top


def run(options: argparse.Namespace) -> None:
    """Measure what is missing, print what there is."""
    if readme.shown(options, page.TABLES):
        return
    methods = chosen_methods(options.methods, partial(print, file=sys.stderr))
    for budget in options.budgets or []:
        parse(budget)
    names = options.networks or list(networks.CHECKPOINTS)
    for name in names:
        if name not in networks.CHECKPOINTS:
            raise UnusableResults(
                f"there is no network {name!r}: choose from {', '.join(networks.CHECKPOINTS)}; "
                "or measure your own with hope bench compression"
            )
    folders = [data_folder(options.data), *([Path(options.weights)] if options.weights else [])]
    check_out(Path(options.out))
    read_results(Path(options.out))
    tasks = [measure.known_task(name, folders, options.images) for name in names]
    if options.budgets:
        tasks = [replace(task, budgets=tuple(options.budgets)) for task in tasks]
    results = measure.run(tasks, Path(options.out), methods=methods, recalibrate=not options.no_recalibration)
    print(text(*tables(results), width=WIDTH))


def tables(results: dict[str, Any]) -> list[object]:
    """Results as tables: per network and unit the accuracies, then more about every budget.

    "time / paper" is the time from the checkpoint to the network over that of "paper" to the same budgets,
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
        parts += [*refusals(entry), ""] if entry.get("cannot be met") else []
    return [*parts, "actions: a absorb, p prune, m merge, e evict; –: the budget cannot be met"]


def _details(name: str, entry: dict[str, Any], budget: str) -> object:
    columns = ["accuracy", "95%", "BN re-est.", "95%", "neurons", "parameters", "MACs", " actions"]
    table = grid(f"{name}, {budget}", " method", *columns, "time / paper")
    for method in entry["points"]:
        (point,) = _points(entry, method, [budget])
        if point is not None:
            table.add_row(
                method,
                *_with_interval(point, "accuracy", entry["images"]),
                *_with_interval(point, "recalibrated", entry["images"]),
                *(_share(point, kept) for kept in KEPT.values()),
                " ".join(f"{count}{kind[0]}" for kind, count in point.get("mix", {}).items() if count),
                f"{point['time / paper']:.2f}" if "time / paper" in point else "",
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
    low, high = interval(point[figure], count)
    return _share(point, figure), f"{low:.3f}–{high:.3f}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return call(parser(), run, argv)


if __name__ == "__main__":
    sys.exit(main())
