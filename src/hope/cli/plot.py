"""`hope plot`: a saved run, or several, as a figure for a paper."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hope.cli import report
from hope.report.figure import write_figure


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "plot",
        help="draw saved runs as a figure: .svg, .pdf or .png",
        description="Draw what is left of the network along a saved run, or several, what it cost and, "
        "where measured, its accuracy.",
        epilog="example: hope plot run/ -o figure.svg",
    )
    report.add_runs(parser)
    parser.add_argument(
        "-o", "--out", metavar="FILE", required=True, help="where to draw it: .svg, .pdf or .png"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Draw, and say where."""
    runs, measured = report.read(options)
    print(write_figure(runs, Path(options.out), accuracies=measured))
