"""Figures for papers: remaining sizes, cost and, if measured, accuracy or score."""

from __future__ import annotations

from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hope._util.files import write_file
from hope.errors import CannotPlot, MissingExtra
from hope.report.page import labels, scales
from hope.storage.run import Run

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FORMATS = ("svg", "pdf", "png")
COLOURS = ("#0b6e4f", "#2f6fc4", "#c2571a", "#7d4cc2", "#b3891b", "#b23a6b")
DASHES = ("-", (0, (6, 2)), (0, (2, 2)), (0, (8, 2, 2, 2)), (0, (4, 1, 1, 1, 1, 1)))  # 30 with the colours
UNITS = ("neurons", "parameters", "MACs")


def write_figure(
    runs: Sequence[Run], target: Path, *, accuracies: Sequence[Sequence[tuple[int, float]]] = ()
) -> Path:
    """Draw runs into an SVG, PDF or PNG file. The same runs give the same file.

    Args:
        runs: results of `read_run`.
        target: the file; its suffix determines the format.
        accuracies: per run, (steps, accuracy) where it was measured.
    """
    kind = target.suffix.lower().lstrip(".")
    if kind not in FORMATS:
        raise CannotPlot(
            f"{target} must end with one of .{', .'.join(FORMATS)}, got another ending: change it"
        )
    check_matplotlib()
    import matplotlib

    buffer = BytesIO()
    stamp = {"svg": {"Date": None}, "pdf": {"CreationDate": None}, "png": {}}[kind]
    with matplotlib.rc_context({"svg.hashsalt": "hope", "svg.fonttype": "none", "font.size": 9}):
        figure = draw(runs, accuracies)
        figure.savefig(buffer, format=kind, bbox_inches="tight", metadata=stamp, dpi=200)
    write_file(target, buffer.getvalue())
    return target


def check_matplotlib() -> None:
    """Refuse to draw without matplotlib."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtra("figures need matplotlib: pip install 'hope-encoding[report]'") from error


def draw(runs: Sequence[Run], accuracies: Sequence[Sequence[tuple[int, float]]] = ()) -> Figure:
    """The figure: shares kept along the run, distortion against parameters; and accuracy if it was measured,
    else the scores, or else the predicted fidelity, if they were computed along a run.
    """
    from matplotlib.figure import Figure

    class Shown(Figure):
        """A figure that notebooks show, whatever matplotlib's backend is."""

        def _repr_png_(self) -> bytes:
            buffer = BytesIO()
            self.savefig(buffer, format="png", dpi=120)
            return buffer.getvalue()

    measured = "accuracy" if any(accuracies) else ""
    points = accuracies
    for name, what in (("scores", "score"), ("fidelities", "predicted fidelity")):
        if not measured:
            known = [getattr(run.details, name) for run in runs]
            points = [some if len(some) > 1 else () for some in known]
            measured = what if any(points) else ""
    panels = 3 if measured else 2
    figure = Shown(figsize=(3.4 * panels, 2.8), layout="constrained")
    axes: Any = figure.subplots(1, panels)
    several = len(runs) > 1
    names = labels(runs) if several else [f"{unit} kept" for unit in UNITS]
    for number, run in enumerate(runs):
        style: Any = {"color": COLOURS[number % len(COLOURS)], "linestyle": DASHES[number % len(DASHES)]}
        shares = run.trajectory.sizes / np.maximum(run.trajectory.sizes[0], 1)  # (steps + 1, 3)
        spent = np.concatenate([[0.0], np.cumsum([step.cost for step in run.trajectory])])
        for column in (1,) if several else (0, 1, 2):
            own = {} if several else {"color": COLOURS[column], "linestyle": DASHES[column]}
            axes[0].plot(100 * shares[:, column], **(style | own))
        axes[1].plot(100 * shares[:, 1], spent, **style)
        if measured and number < len(points) and points[number]:
            steps, values = zip(*points[number], strict=True)
            axes[2].plot(100 * shares[list(steps), 1], values, marker="o", markersize=3.5, **style)
    axes[0].set(xlabel="steps", ylabel="% of parameters kept" if several else "% kept", ylim=(0, 102))
    differ = "; scales differ" if len(set(scales(runs))) > 1 else ""
    axes[1].set(xlabel="% of parameters kept", ylabel=f"distortion (sum of J{differ})")
    axes[1].invert_xaxis()
    legend = axes[0].legend(axes[0].get_lines(), [str(n) for n in range(len(names))], frameon=False)
    for entry, name in zip(legend.get_texts(), names, strict=True):  # a label would be parsed as mathematics
        entry.set(text=name, parse_math=False)
    if measured:
        axes[2].set(xlabel="% of parameters kept", ylabel=measured)
        if measured != "score":
            axes[2].set(ylim=(0, 1.02))
        axes[2].invert_xaxis()
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
    return figure
