"""A partition as a figure: one bar per layer, split into core, slack and freed neurons."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hope.errors import MissingExtra

if TYPE_CHECKING:
    from hope.deft.partition import Partition

COLOURS = {"core": "#34495e", "slack": "#00b159", "freed by merging": "#f5b7b1"}


def draw(partition: Partition, path: Path) -> Path:
    """Write the figure; the file's suffix determines its format."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("a picture needs matplotlib: pip install 'hope-encoding[report]'") from error
    counts = partition.counts()
    names = list(counts)
    figure = Figure(figsize=(8, 1.2 + 0.28 * len(names)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    start = [0.0] * len(names)
    for position, (label, colour) in enumerate(COLOURS.items()):
        shares = [counts[name][position] / max(1, sum(counts[name])) for name in names]
        axes.barh(names, shares, left=start, color=colour, label=label)
        start = [a + b for a, b in zip(start, shares, strict=True)]
    for row, name in enumerate(names):
        axes.text(1.01, row, str(sum(counts[name])), va="center", fontsize=8)
    axes.set_xlim(0, 1)
    axes.invert_yaxis()
    axes.set_xlabel("share of the neurons (their number on the right)")
    axes.set_title(f"{partition.anatomy.model}: core and slack by {partition.by}, {partition.amount}")
    axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.06), ncols=len(COLOURS), frameon=False)
    figure.savefig(path, metadata={"Software": None} if path.suffix == ".png" else None)
    return path
