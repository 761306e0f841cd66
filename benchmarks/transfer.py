"""The results of `hope bench transfer` as Markdown: `python -m benchmarks.transfer [--write-readme]`.

The measurements themselves, and what is kept of them:

    hope bench transfer --scale small --data FOLDER --workers 2 --out runs/transfer
    cp runs/transfer/results.json benchmarks/transfer.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.readme import command

RESULTS = Path(__file__).with_name("transfer.json")
PAPER = {  # target accuracy, source retention, H-score; Table "Cross-Domain Transfer Learning Results"
    "deft": (89.79, 52.14, 65.82),
    "head-only": (36.11, 63.13, 45.79),
    "full": (94.09, 7.52, 13.88),
    "ewc": (93.94, 6.74, 12.54),
    "bn-tuning": (81.91, 5.44, 10.18),
}
COLUMNS = ("test target", "test source", "test h")
BEST = "best by target"  # the paper's choice of an epoch


def table(path: Path = RESULTS) -> str:
    """Test accuracies in per cent, the paper's beside them."""
    found = json.loads(path.read_text())
    scale, methods = found["scale"], found["methods"]
    before = next(iter(methods.values()))["before"][0]
    tasks = scale["trials"] * scale["tasks"]
    lines = [
        f"CIFAR-100 superclasses to SVHN, VGG-8 at {scale['width']:g} of the paper's width, {tasks} source "
        f"models ({100 * before:.1f} on their own task), {scale['tuning']} epochs of fine-tuning; test "
        "accuracy in per cent, mean ± deviation over trials, at the epoch with the best target validation.",
        "",
        "| | target | source kept | H-score | source, prepared | the paper: target, source, H |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    top = max(row[BEST]["test h"][0] for row in methods.values())
    for name, row in methods.items():
        cells = [_cell(row[BEST][column]) for column in COLUMNS]
        if row[BEST]["test h"][0] == top:
            cells[-1] = f"**{cells[-1]}**"
        paper = ", ".join(f"{value:.1f}" for value in PAPER.get(name, ()))
        lines.append(
            f"| {_title(name, row['point'])} | {' | '.join(cells)} | {_cell(row['prepared'])} | {paper} |"
        )
    lines.append("\n*source, prepared*: the source task after merging and severing, before the first step.")
    return "\n".join(lines) + "\n"


def _cell(value: list[float]) -> str:
    return f"{100 * value[0]:.1f} ± {100 * value[1]:.1f}"


def _title(name: str, point: dict[str, Any]) -> str:
    """The method with what its sweep chose."""
    chosen = [f"rate {point['rate']:g}"]
    if name.startswith("deft"):
        chosen.append(f"P = {point['percentile']:g}")
    if name in ("ewc", "l2-sp"):
        chosen.append(f"strength {point['strength']:g}")
    return f"{name} ({', '.join(chosen)})"


if __name__ == "__main__":
    command(__doc__, {"transfer": table})
