"""Redraw every figure of README and docs from the committed results: `python -m experiments.draw`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

matplotlib.use("svg")
from matplotlib import pyplot

from experiments.command import RESULTS
from experiments.compression.page import TITLES, budgets
from experiments.transfer.page import PAPER

matplotlib.rcParams["svg.hashsalt"] = "hope"  # the same picture is the same file
FIGURES = Path(__file__).resolve().parents[1] / "docs"
COLOURS = {
    "absorb": "#0b6e4f", "absorb, dreamed": "#12a87b", "absorb, 96 images": "#7fd1b0",
    "hope": "#1f4e9e", "hope, no eviction": "#6f9be0", "hope, merge=sum": "#b3c9ee",
    "hope, merge=sum, no eviction": "#8fa3c7", "hope, prunes only": "#5b6f94",
    "hope, live ΔP": "#3aa6b9",
    "l1-in": "#c0392b", "l1-joint": "#e67e22", "bn-scale": "#8e44ad", "random": "#d4a017",
    "torch-pruning magnitude": "#333333", "torch-pruning BN scale": "#999999",
    "torch-pruning LAMP": "#000000", "torch-pruning FPGM": "#666666",
}  # fmt: skip
MARKS = {
    "torch-pruning magnitude": "v", "torch-pruning BN scale": "s",
    "torch-pruning LAMP": "o", "torch-pruning FPGM": "^",
}  # fmt: skip


def read(name: str) -> Any:
    path = RESULTS / name
    return json.loads(path.read_text()) if path.is_file() else None


def save(figure: Any, name: str) -> None:
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / name, bbox_inches="tight", metadata={"Date": None})
    pyplot.close(figure)
    print(FIGURES / name)


def coverage(results: Any) -> None:
    """One bar per model, sorted: the share of its parameters that can be removed physically."""
    models = results["models"].values() if isinstance(results.get("models"), dict) else results["models"]
    rows = sorted((m["reachable"], m["source"]) for m in models)
    colours = {"torchvision": "#0b6e4f", "timm": "#3b7dd8", "transformers": "#e67e22"}
    figure, axes = pyplot.subplots(figsize=(9, 2.6))
    axes.bar(
        range(len(rows)), [100 * share for share, _ in rows], width=1, color=[colours[s] for _, s in rows]
    )
    axes.set(
        ylabel="% of parameters",
        xlabel=f"{len(rows)} networks, sorted",
        ylim=(0, 100),
        xlim=(-0.5, len(rows) - 0.5),
    )
    axes.set_xticks([])
    for source, colour in colours.items():
        count = sum(s == source for _, s in rows)
        axes.bar(0, 0, color=colour, label=f"{source} ({count})")
    axes.legend(frameon=False, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=3)
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, "coverage.svg")


def _methods(entry: Any, unit: str) -> set[str]:
    return {m for m in COLOURS if any(b.startswith(unit) for b in entry["points"].get(m, {}))}


def compression(results: Any) -> None:
    """Accuracy against what is really kept, one panel per network and unit."""
    networks = results["networks"]
    order = ("keras-resnet50", "cifar10-resnet56", "cifar10-resnet20")
    drawn = [(n, u) for n in order if n in networks for u in ("params", "density")]
    parts = [(n, u) for n, u in drawn if len(_methods(networks[n], u)) > 3]
    figure, panels = pyplot.subplots(1, len(parts), figsize=(3.8 * len(parts), 3.6), squeeze=False)
    for axes, (name, unit) in zip(panels[0], parts, strict=True):
        entry = networks[name]
        for method, colour in COLOURS.items():
            points = entry["points"].get(method, {})
            some = [b for b in budgets(entry, unit) if b in points]
            if some:
                size = "parameters" if unit == "params" else "neurons"
                kept, scores = zip(
                    *sorted({(points[b][size], points[b]["accuracy"]) for b in some}), strict=True
                )
                look: dict[str, Any] = {
                    "color": colour,
                    "label": method,
                    "marker": MARKS.get(method),
                    "markersize": 4,
                }
                look["linewidth"] = 2.4 if method.startswith("absorb") else 1.2
                style = {"a": "-", "h": "-.", "t": ":"}.get(method[0], "--")
                axes.plot([*kept, 1], [*scores, entry["base"]], style, **look)
        axes.set(title=TITLES[name], ylim=(0, None))
        axes.set_xlabel("parameters kept" if unit == "params" else "neurons kept")
        axes.invert_xaxis()
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("top-1, no fine-tuning")
    found = {line.get_label(): line for axes in panels[0] for line in axes.get_lines()}
    named = {method: found[method] for method in COLOURS if method in found}
    figure.legend(named.values(), named.keys(), frameon=False, fontsize=8, loc="lower center", ncols=7)
    figure.subplots_adjust(bottom=0.3)
    save(figure, "compression.svg")


def speed(results: Any) -> None:
    """Time and memory of one layer's path against its width, with the fitted exponents."""
    rows = results["layers"]
    widths = np.array([row["neurons"] for row in rows])
    figure, panels = pyplot.subplots(1, 2, figsize=(8, 2.8))
    for axes, key, label in zip(panels, ("seconds", "megabytes"), ("seconds", "MB"), strict=True):
        values = np.array([row[key] for row in rows])
        there = values > 0  # small layers need no more than importing the package did
        some = np.flatnonzero(there)[-4:]
        exponent = np.polyfit(np.log(widths[some]), np.log(values[some]), 1)[0]
        axes.loglog(widths[there], values[there], "o-", color="#0b6e4f", label=f"exponent {exponent:.2f}")
        axes.set(xlabel="neurons in the layer", ylabel=label)
        axes.set_xticks(widths, [f"{w:,}" for w in widths], fontsize=7)
        axes.legend(frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
    save(figure, "speed.svg")


def transfer(results: Any) -> None:
    """The new task against the old one, with lines of equal H-score; the paper's results are hollow."""
    figure, axes = pyplot.subplots(figsize=(6, 4.2))
    side = np.linspace(0.5, 100, 200)
    x, y = np.meshgrid(side, side)
    levels = range(10, 90, 10)
    lines = axes.contour(x, y, 2 * x * y / (x + y), levels, colors="#cccccc", linewidths=0.8)
    axes.clabel(lines, fontsize=7, fmt="H %d", manual=[(76, h * 76 / (152 - h)) for h in levels])
    methods = results["methods"]
    greens = iter(pyplot.colormaps["viridis"](np.linspace(0.3, 0.85, len(methods))))
    reds = iter(pyplot.colormaps["autumn"](np.linspace(0, 0.7, len(methods))))
    for name, marker in zip(methods, "osD^vPX*<>h", strict=False):
        best = methods[name]["best by target"]
        (target, up), (source, along) = ([100 * v for v in best[k]] for k in ("test target", "test source"))
        look = {"marker": marker, "color": next(greens if name.startswith("deft") else reds)}
        axes.errorbar(source, target, up, along, elinewidth=0.6, linestyle="", label=name, **look)
        if name in PAPER:
            at = PAPER[name][1], PAPER[name][0]
            axes.plot(*at, markerfacecolor="none", linestyle="", label=f"{name}, paper", **look)
    axes.set(xlabel="source task kept, %", ylabel="target task, %", xlim=(0, 80), ylim=(0, 100))
    axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.02, 0.5))
    axes.spines[["top", "right"]].set_visible(False)
    save(figure, "transfer.svg")


def parser() -> argparse.ArgumentParser:
    """The command line's grammar, which has nothing to choose."""
    return argparse.ArgumentParser(prog="python -m experiments.draw", description="Redraw every figure.")


def main() -> None:
    """Draw what there are results for."""
    parser().parse_args()
    drawings = {"coverage": coverage, "compression": compression, "speed": speed, "transfer": transfer}
    for name, draw in drawings.items():
        results = read(f"{name}.json")
        if results is not None:
            draw(results)


if __name__ == "__main__":
    main()
