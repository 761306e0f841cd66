"""Figures for papers: what is left, what it cost and, where measured, how well it still works."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hope.errors import HopeError
from hope.report import output
from hope.report.page import run_names
from hope.surgery.store import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "pdf", "png")
COLOURS = ("#0b6e4f", "#2f6fc4", "#c2571a", "#7d4cc2", "#b3891b", "#b23a6b")
UNITS = ("neurons", "parameters", "MACs")


class CannotPlot(HopeError):
    """matplotlib is not installed, or does not write that kind of file."""


def write_figure(
    runs: Sequence[Run], target: Path, *, accuracies: Sequence[Sequence[tuple[int, float]]] = ()
) -> Path:
    """Draw runs into an SVG, PDF or PNG file. The same runs give the same file.

    Args:
        runs: what `read_run` returned.
        target: the file; its ending says which kind.
        accuracies: per run, (steps, accuracy) where it was measured.
    """
    kind = target.suffix.lower().lstrip(".")
    if kind not in FORMATS:
        raise CannotPlot(f"{target} has no ending that a figure can have: .{', .'.join(FORMATS)}")
    try:
        import matplotlib
    except ImportError as error:
        raise CannotPlot("figures need matplotlib: pip install 'hope-encoding[report]'") from error
    buffer = BytesIO()
    stamp = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    with matplotlib.rc_context({"svg.hashsalt": "hope", "svg.fonttype": "none", "font.size": 9}):
        figure = draw(runs, accuracies)
        figure.savefig(buffer, format=kind, bbox_inches="tight", metadata=stamp, dpi=200)
    output.write(target, buffer.getvalue())
    return target


def draw(runs: Sequence[Run], accuracies: Sequence[Sequence[tuple[int, float]]] = ()) -> Figure:
    """The figure: shares left along the run, distortion against parameters, accuracy where measured."""
    from matplotlib.figure import Figure

    measured = any(accuracies)
    panels = 3 if measured else 2
    figure = Figure(figsize=(3.4 * panels, 2.8), layout="constrained")
    axes: Any = figure.subplots(1, panels)
    names = run_names([run.folder for run in runs])
    for number, (run, name) in enumerate(zip(runs, names, strict=True)):
        colour = COLOURS[number % len(COLOURS)]
        shares = run.trajectory.sizes / np.maximum(run.trajectory.sizes[0], 1)  # (steps + 1, 3)
        spent = np.concatenate([[0.0], np.cumsum(run.trajectory.costs)])
        columns = (1,) if len(runs) > 1 else (0, 1, 2)
        for column in columns:
            label = name if len(runs) > 1 else f"{UNITS[column]} left"
            tint = colour if len(runs) > 1 else COLOURS[column]
            axes[0].plot(100 * shares[:, column], color=tint, label=label)
        axes[1].plot(100 * shares[:, 1], spent, color=colour, label=name)
        if measured and number < len(accuracies) and accuracies[number]:
            steps, values = zip(*accuracies[number], strict=True)
            axes[2].plot(100 * shares[list(steps), 1], values, "o-", color=colour, markersize=3.5, label=name)
    axes[0].set(xlabel="steps", ylabel="% of parameters left" if len(runs) > 1 else "% left", ylim=(0, 102))
    scales = "; scales differ" if len({run.method for run in runs}) > 1 else ""
    axes[1].set(xlabel="% of parameters left", ylabel=f"distortion (sum of J{scales})")
    axes[1].invert_xaxis()
    axes[0].legend(frameon=False)
    if measured:
        axes[2].set(xlabel="% of parameters left", ylabel="accuracy", ylim=(0, 1.02))
        axes[2].invert_xaxis()
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    return figure
