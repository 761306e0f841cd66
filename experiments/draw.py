"""Redraw every figure of README and docs from the committed results: `python -m experiments.draw`.

Few lines, each with its name beside it; no background, and colours that can be read on white and on black.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("svg")
from matplotlib import pyplot
from matplotlib.ticker import FuncFormatter, NullLocator

from experiments.command import RESULTS
from experiments.compression.page import TITLES, budgets
from hope.bench.accuracy import interval

FIGURES = Path(__file__).resolve().parents[1] / "docs"
GREY = "#7b838d"  # text and axes: as far from white as from black
GREEN, BLUE, ORANGE, PINK = "#17a673", "#4b8ff0", "#e07b30", "#c76ad8"
STYLE: Any = {
    "svg.hashsalt": "hope",  # the same picture is the same file
    "svg.fonttype": "none",  # text stays text
    "font.family": ["DejaVu Sans"],  # matplotlib brings it, so that a figure is the same everywhere
    "font.size": 10,
    "text.color": GREY,
    "axes.labelcolor": GREY,
    "axes.edgecolor": GREY,
    "axes.titlecolor": GREY,
    "axes.titlesize": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "lines.linewidth": 2.2,
    "savefig.transparent": True,
}
FONTS = "Helvetica, Arial"  # what a reader rather has; narrower, so labels still fit
PERCENT = FuncFormatter(lambda value, _: f"{100 * value:.0f}%")


def read(name: str) -> Any:
    """Committed results; None where there are none."""
    path = RESULTS / name
    return json.loads(path.read_text()) if path.is_file() else None


def save(figure: Any, name: str) -> None:
    """Write a figure without a date, so that it changes only when it looks different."""
    figure.savefig(FIGURES / name, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    path = FIGURES / name
    text = path.read_text().replace("'DejaVu Sans'", f"{FONTS}, 'DejaVu Sans', sans-serif")
    path.write_text("\n".join(line.rstrip() for line in text.splitlines()) + "\n")
    print(path)


def beside(
    axes: Any,
    text: str,
    at: tuple[float, float],
    colour: str,
    offset: tuple[int, int] = (0, 0),
    side: str = "left",
) -> None:
    """A name beside what it names, in the same colour.

    Args:
        offset: in points, from the place it names.
        side: of the name that is there: "left", "center" or "right".
    """
    look: dict[str, Any] = {"color": colour, "fontsize": 9.5, "fontweight": "bold", "ha": side}
    axes.annotate(text, at, xytext=offset, textcoords="offset points", **look)


def coverage(results: Any) -> None:
    """For each library, what share of a network can go, over its networks from the best to the worst."""
    models = list(results["models"].values())
    figure, axes = pyplot.subplots(figsize=(7.5, 3))
    looks: dict[str, tuple[str, float, tuple[int, int], str]] = {  # colour, and where the name stands
        "torchvision": (GREEN, 88, (0, 8), "center"),
        "timm": (BLUE, 80, (-8, -12), "right"),
        "transformers": (ORANGE, 40, (0, -16), "center"),
    }
    for source, (colour, where, offset, side) in looks.items():
        shares = sorted((100 * m["reachable"] for m in models if m["source"] == source), reverse=True)
        ranks = 100 * (np.arange(len(shares)) + 0.5) / len(shares)
        axes.plot(ranks, shares, color=colour)
        at = where, float(np.interp(where, ranks, shares))
        beside(axes, f"{source} ({len(shares)})", at, colour, offset, side)
    axes.set(xlim=(0, 100), ylim=(0, 103))
    axes.set(xlabel="networks, from the best to the worst, %", ylabel="parameters that can go, %")
    save(figure, "coverage.svg")


def sizes_and_scores(
    points: dict[str, Any], methods: Sequence[str], found: Sequence[str]
) -> list[tuple[float, float]]:
    """(parameters kept, accuracy) of the best of some methods at each budget, by size."""
    best = []
    for budget in found:
        some = [points[method][budget] for method in methods if budget in points.get(method, {})]
        if some:
            top = max(some, key=lambda point: float(point["accuracy"]))
            best.append((float(top["parameters"]), float(top["accuracy"])))
    return sorted(set(best), reverse=True)


LINES = {  # name -> how the methods' names begin, colour, and where the name stands in the first panel
    "HOPE": ("absorb", GREEN, (0.5, 0.87), "left"),
    "the paper": ("paper", BLUE, (0.70, 0.62), "right"),
    "Torch-Pruning": ("torch-pruning", ORANGE, (0.50, 0.22), "right"),
}


def compression(results: Any) -> None:
    """Accuracy against the parameters that are really kept: three lines for each network."""
    networks = results["networks"]
    units = {"cifar10-resnet56": "density", "cifar10-resnet20": "density", "keras-resnet50": "params"}
    parts = [(name, unit) for name, unit in units.items() if name in networks]
    figure, panels = pyplot.subplots(1, len(parts), figsize=(11, 3.2), squeeze=False)
    for axes, (name, unit) in zip(panels[0], parts, strict=True):
        entry = networks[name]
        for text, (start, colour, at, side) in LINES.items():
            methods = [start] if start != "torch-pruning" else [m for m in entry["points"] if start in m]
            line = sizes_and_scores(entry["points"], methods, budgets(entry, unit))
            kept, scores = zip((1.0, entry["base"]), *line, strict=True)
            axes.plot(kept, scores, color=colour, marker="o", markersize=3.5)
            if axes is panels[0][0]:
                beside(axes, text, at, colour, side=side)
        axes.set(title=TITLES[name], ylim=(0, 1), xlim=(1.02, 0.12), xlabel="parameters kept")
        axes.xaxis.set_major_formatter(PERCENT)
    panels[0][0].set(ylabel="top-1, no data, no training")
    figure.subplots_adjust(wspace=0.18)
    save(figure, "compression.svg")


BYTES = {  # name -> what it is called in the results, colour, and where the name stands in the first panel
    "neurons and bits": ("both", GREEN, (0.80, 0.955), "left"),
    "neurons": ("neurons", ORANGE, (0.54, 0.64), "right"),
    "bits": ("bits", BLUE, (0.30, 0.83), "right"),
}


def bits(results: Any) -> None:
    """Accuracy against the bytes that are kept, and against time with onnxruntime."""
    names = [name for name in TITLES if len(_by_bytes(results.get(name), "both")) > 2]
    figure, panels = pyplot.subplots(1, len(names) + 1, figsize=(11, 3.2), squeeze=False)
    for axes, name in zip(panels[0], names, strict=False):
        entry = results[name]
        for text, (way, colour, at, side) in BYTES.items():
            line = [(1.0, entry["base"]), *_by_bytes(entry, way)]
            if len(line) > 1:
                axes.plot(*zip(*line, strict=True), color=colour, marker="o", markersize=3.5)
            if axes is panels[0][0]:
                beside(axes, text, at, colour, side=side)
        axes.set(title=TITLES[name], ylim=(0, 1), xlim=(1.02, 0.04), xlabel="bytes kept")
        axes.xaxis.set_major_formatter(PERCENT)
    _times(panels[0][-1], results, names[-1])
    panels[0][0].set(ylabel="top-1, no data, no training")
    figure.subplots_adjust(wspace=0.18)
    save(figure, "bits.svg")


def _by_bytes(entry: Any, way: str) -> list[tuple[float, float]]:
    """(bytes kept, accuracy), from the largest."""
    points = entry["points"].items() if entry is not None else ()
    known = [one for key, one in points if key.startswith(f"{way} ") and one["accuracy"] is not None]
    return sorted(((one["size"], one["accuracy"]) for one in known), reverse=True)


def _times(axes: Any, results: Any, name: str) -> None:
    """Accuracy of removal against measured time, and of 8 bits alone."""
    entry, integers = read("milliseconds.json")[name], results[name]["points"]["onnxruntime"]
    found = [one for one in entry["points"]["no data"].values() if "speed-up" in one]
    line = sorted(((1 / one["speed-up"]["onnxruntime 1"], one["accuracy"]) for one in found), reverse=True)
    axes.plot(*zip((1.0, entry["base"]), *line, strict=True), color=ORANGE, marker="o", markersize=3.5)
    axes.plot(1 / integers["faster"], integers["accuracy"], color=BLUE, marker="o", markersize=7)
    beside(axes, "8 bits", (1 / integers["faster"], integers["accuracy"]), BLUE, (0, -18), "center")
    axes.set(title=f"{TITLES[name]}, onnxruntime", ylim=(0, 1), xlim=(1.02, 0.2), xlabel="time, batch 1")
    axes.xaxis.set_major_formatter(PERCENT)


READINGS = {  # name -> methods of which the best is drawn, another as rings, colour, place of the name
    "HOPE, closed forms": (("absorb, closed forms",), "", GREEN, (0.69, 0.63)),
    "the paper, without evictions": (
        ("paper, no eviction",), "paper, literal, no eviction", BLUE, (0.90, 0.43),
    ),
    "with evictions": (("paper",), "paper, literal", PINK, (0.72, 0.22)),
    "magnitude, best of three": (("l1-in", "l1-joint", "bn-scale"), "", ORANGE, (0.72, 0.04)),
}  # fmt: skip


def readings(results: Any) -> None:
    """Accuracy of ResNet-50 against the neurons that are kept, with 95% intervals."""
    entry = results["networks"]["keras-resnet50"]
    figure, axes = pyplot.subplots(figsize=(7, 3.4))
    for text, (methods, ringed, colour, at) in READINGS.items():
        line = [(1.0, entry["base"], *interval(entry["base"], entry["images"]))]
        for budget in budgets(entry, "density"):
            some = [entry["points"][m][budget] for m in methods if budget in entry["points"].get(m, {})]
            if some:
                top = max(some, key=lambda point: float(point["accuracy"]))
                share = float(budget.partition("=")[2])
                line.append((share, top["accuracy"], *interval(top["accuracy"], entry["images"])))
        kept, scores, low, high = (np.array(column) for column in zip(*line, strict=True))
        axes.errorbar(kept, scores, (scores - low, high - scores), color=colour, marker="o", markersize=3.5)
        rings = entry["points"].get(ringed, {})
        shares = [float(budget.partition("=")[2]) for budget in rings]
        heights = [point["accuracy"] for point in rings.values()]
        axes.plot(shares, heights, "o", color=colour, markersize=8, markerfacecolor="none")
        beside(axes, text, at, colour)
    axes.set(xlim=(1.02, 0.28), ylim=(0, 0.8), xlabel="neurons kept")
    axes.set(ylabel=f"top-1 of {entry['images']:,} images, no data")
    axes.xaxis.set_major_formatter(PERCENT)
    save(figure, "readings.svg")


def speed(results: Any) -> None:
    """Time and memory of one layer's path against its width, with the fitted exponents."""
    rows = results["layers"]
    widths = np.array([row["neurons"] for row in rows])
    figure, panels = pyplot.subplots(1, 2, figsize=(9, 2.8))
    for axes, key, unit in zip(panels, ("seconds", "megabytes"), ("seconds", "MB"), strict=True):
        values = np.array([row[key] for row in rows])
        there = values > 0  # small layers need no more than importing the package did
        some = np.flatnonzero(there)[-4:]
        exponent = np.polyfit(np.log(widths[some]), np.log(values[some]), 1)[0]
        axes.loglog(widths[there], values[there], "o-", color=GREEN)
        at = float(widths[some[-2]]), float(values[some[-2]])
        beside(axes, f"exponent {exponent:.1f}", at, GREEN, (-8, 8), "right")
        axes.set(xlabel="neurons in the layer", ylabel=unit)
        axes.set_xticks(widths, [f"{w:,}" for w in widths])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_minor_locator(NullLocator())
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    figure.subplots_adjust(wspace=0.22)
    save(figure, "speed.svg")


POINTS = {  # method -> its name, colour, and where the name stands
    "deft, absorbed": ("DEFT, absorbed", GREEN, (6, 9)),
    "deft": ("DEFT", GREEN, (-6, 6)),
    "head-only": ("head only", ORANGE, (0, -16)),
    "full": ("full fine-tuning", ORANGE, (8, -3)),
    "ewc": ("EWC", ORANGE, (8, 4)),
    "l2-sp": ("L2-SP", ORANGE, (8, 4)),
    "bn-tuning": ("BN tuning", ORANGE, (4, -15)),
}


def transfer(results: Any) -> None:
    """The new task against the old one, with lines of equal H-score."""
    figure, axes = pyplot.subplots(figsize=(7, 4))
    side = np.linspace(0.5, 100, 200)
    x, y = np.meshgrid(side, side)
    levels = (20, 40, 60)
    axes.contour(x, y, 2 * x * y / (x + y), levels, colors=GREY, linewidths=0.7, linestyles="dotted")
    for level in levels:
        edge = level * 98 / (2 * 98 - level)  # where the line meets the upper edge
        axes.annotate(f"H = {level}", (edge + 0.6, 96), fontsize=8.5)
    for name, (text, colour, offset) in POINTS.items():
        best = results["methods"][name]["best by target"]
        (target, up), (source, along) = ([100 * v for v in best[k]] for k in ("test target", "test source"))
        axes.errorbar(source, target, up, along, color=colour, marker="o", markersize=6, elinewidth=0.7)
        beside(axes, text, (source, target), colour, offset, "left" if offset[0] >= 0 else "right")
    axes.set(xlabel="old task kept, %", ylabel="new task learned, %", xlim=(0, 75), ylim=(0, 100))
    save(figure, "transfer.svg")


def parser() -> argparse.ArgumentParser:
    """The command line's grammar, which has nothing to choose."""
    return argparse.ArgumentParser(prog="python -m experiments.draw", description="Redraw every figure.")


DRAWINGS = {
    "coverage": coverage,
    "bits": bits,
    "compression": compression,
    "readings": readings,
    "speed": speed,
    "transfer": transfer,
}


def draw(name: str) -> None:
    """One figure, if there are results for it."""
    results = read(f"{name}.json")
    if results is not None:
        with matplotlib.rc_context(STYLE):
            DRAWINGS[name](results)


def main() -> None:
    """Draw what there are results for."""
    parser().parse_args()
    for name in DRAWINGS:
        draw(name)


if __name__ == "__main__":
    main()
