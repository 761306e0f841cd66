"""`hope report`: a saved run, or several, as one HTML page."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hope.cli import models
from hope.errors import InvalidAccuracies
from hope.report.accuracies import read_accuracies
from hope.report.page import write_page
from hope.storage.run import Run, read_run

PAGE = "report.html"


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "report",
        help="write a page about a saved run: every step, what it did, and why",
        description="Write one HTML page about a saved run, or several to compare: a slider over every step, "
        "the network at that step, the next steps and their costs. The page works offline.",
        epilog="example: hope report run/ -o page.html",
    )
    add_runs(parser)
    parser.add_argument(
        "-o", "--out", metavar="FILE", help=f"where to write it (default: {PAGE} in the first run's folder)"
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help=f"for the extraction command, if the run does not store it: {models.HELP}",
    )
    parser.add_argument("--weights", metavar="FILE", help="for the same command: the original checkpoint")
    parser.add_argument("--input", metavar="SHAPE", help="for the same command: shape of an input")
    parser.set_defaults(run=run)


def add_runs(parser: argparse.ArgumentParser) -> None:
    """RUN [RUN ...] and --accuracy."""
    parser.add_argument("folders", metavar="RUN", nargs="+", help="a folder saved by `hope encode`")
    parser.add_argument(
        "--accuracy",
        metavar="FILE",
        action="append",
        default=[],
        help='measured accuracies as JSON, {"steps": accuracy, ...}; once per run, in their order',
    )


def read(options: argparse.Namespace) -> tuple[list[Run], list[list[tuple[int, float]]]]:
    """The named runs and accuracies."""
    runs = [read_run(folder) for folder in options.folders]
    return runs, accuracies(runs, options.accuracy)


def accuracies(runs: Sequence[Run], files: Sequence[str]) -> list[list[tuple[int, float]]]:
    """What was measured of each run."""
    if len(files) > len(runs):
        raise InvalidAccuracies(
            f"--accuracy must be given at most once for each of {len(runs)} runs, got {len(files)} files: "
            "leave some out"
        )
    return [read_accuracies(Path(file), len(run.trajectory)) for file, run in zip(files, runs, strict=False)]


def write(folders: Sequence[Path], target: Path) -> None:
    """Write the report of runs that were just made."""
    write_page([read_run(folder) for folder in folders], target)
    print(f"{target}: the report; open it in a browser")


def run(options: argparse.Namespace) -> None:
    """Write the report and print its path."""
    runs, measured = read(options)
    target = Path(options.out) if options.out else runs[0].folder / PAGE
    given = {name: getattr(options, name) for name in ("model", "weights", "input")}
    source = {name: value for name, value in given.items() if value}
    write_page(runs, target, accuracies=measured, source=source)
    print(f"{target}: open it in a browser")
