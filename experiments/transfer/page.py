"""The results of the transfer experiment as Markdown.

The measurements themselves, and what is kept of them:

    python -m experiments.transfer --scale medium --data FOLDER --out runs/transfer
    python -m experiments.transfer --scale medium --data FOLDER --out runs/transfer --ablate
    cp runs/transfer/results.json experiments/results/transfer.json

`transfer-small.json` is a run at the small scale with more forms of DEFT, `transfer-vit.json` one with
`--scale vit`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from experiments.command import RESULTS as FOLDER

RESULTS = FOLDER / "transfer.json"
SMALL = FOLDER / "transfer-small.json"
VIT = FOLDER / "transfer-vit.json"
PAPER = {  # target accuracy, source retention, H-score; Table "Cross-Domain Transfer Learning Results"
    "deft": (89.79, 52.14, 65.82),
    "head-only": (36.11, 63.13, 45.79),
    "full": (94.09, 7.52, 13.88),
    "ewc": (93.94, 6.74, 12.54),
    "bn-tuning": (81.91, 5.44, 10.18),
}
BEST = "best by target"  # the paper's choice of an epoch


def table(path: Path = RESULTS) -> str:
    """Test accuracies in per cent, the paper's beside them."""
    found = json.loads(path.read_text())
    scale, methods = found["scale"], found["methods"]
    before = next(iter(methods.values()))["before"]
    tasks = found.get("trials", scale["trials"]) * scale["tasks"]
    lines = [
        "| | target | source kept | H-score | H, epoch by H | masked | prepared | paper: target, source, H |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    top = max(row[BEST]["test h"][0] for row in methods.values())
    for name, row in methods.items():
        best = row[BEST]
        cells = [_cell(best["test target"]), _cell(best["test source"]), _cell(best["test h"])]
        if best["test h"][0] == top:
            cells[-1] = f"**{cells[-1]}**"
        cells += [
            _cell(row["best by h"]["test h"]),
            _cell(best["test source masked"]),
            _cell(row["prepared"]),
        ]
        cells.append(", ".join(f"{value:.1f}" for value in PAPER.get(name, ())))
        lines.append(f"| {_title(name, row['point'])} | {' | '.join(cells)} |")
    lines.append(
        "\nTest accuracy in per cent, mean ± deviation over trials: CIFAR-100 superclasses to SVHN, VGG-8 at "
        f"{scale['width']:g} of the paper's width, {tasks} source models ({_cell(before)} on their own "
        f"task), {scale['pretraining']} epochs of pre-training and {scale['tuning']} of fine-tuning with "
        f"batches of {scale['batch']} and an L2 penalty of {scale['penalty']:g}. *H-score*: the harmonic "
        "mean of target and source, at the epoch with the best target validation, as in the paper; *H, epoch "
        "by H*: at the one with the best validation H. *masked*: the source with a head whose weights for "
        "slack are zero (for a baseline, slack at P = 40); *prepared*: the source after merging and "
        "severing, before the first step."
    )
    return "\n".join(lines) + "\n"


def small() -> str:
    """The same of the small scale."""
    return table(SMALL)


def vit(path: Path = VIT) -> str:
    """The vision transformer's, and whether what should be the same is the same to the bit."""
    found = json.loads(path.read_text())
    scale, methods, trials = found["scale"], found["methods"], found["trials"]

    def cell(value: list[float]) -> str:
        return _cell(value) if trials > 1 else f"{100 * value[0]:.1f}"

    lines = [
        "| | target | source kept | H-score | H, epoch by H | prepared | scores changed | after loading |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    top = max(row[BEST]["test h"][0] for row in methods.values())
    for name, row in methods.items():
        best = row[BEST]
        cells = [cell(best["test target"]), cell(best["test source"]), cell(best["test h"])]
        if best["test h"][0] == top:
            cells[-1] = f"**{cells[-1]}**"
        cells += [cell(row["best by h"]["test h"]), cell(row["prepared"])]
        cells += [f"{row[key]:.2g}" for key in ("difference", "reloaded")]
        lines.append(f"| {_title(name, row['point'])} | {' | '.join(cells)} |")
    before = cell(next(iter(methods.values()))["before"])
    reported = f"mean ± deviation over {trials} trials" if trials > 1 else "one trial"
    lines.append(
        f"\nTest accuracy in per cent, {reported}: a vision transformer (6 blocks, 64 channels, no BN) from "
        f"{5 * scale['superclasses']} classes of CIFAR-100 (all of {scale['superclasses']} superclasses; "
        f"{before} on its own task) to SVHN, {scale['pretraining']} epochs of pre-training and "
        f"{scale['tuning']} of fine-tuning with AdamW, batches of {scale['batch']}. *H-score* and *prepared* "
        "as above. *scores changed*: "
        "the largest difference of any score of any source test image between the model as prepared and as "
        "tested, in `source()`; *after loading*: the same for both tasks between the model and its "
        "saved and reloaded copy."
    )
    return "\n".join(lines) + "\n"


def ablation(path: Path = RESULTS) -> str:
    """What each limit of the run is worth: one task, one thing changed at a time."""
    found = json.loads(path.read_text())["ablation"]
    names = list(next(iter(found.values())))
    heads = [f"{name}: {what}" for name in names for what in ("target", "source", "H")]
    lines = [f"| | source model | {' | '.join(heads)} |", f"|---|---:{'|---:' * len(heads)}|"]
    for change, rows in found.items():
        cells = [f"{100 * rows[names[0]]['before'][0]:.1f}"]
        for name in names:
            best = rows[name][BEST]
            cells += [f"{100 * best[key][0]:.1f}" for key in ("test target", "test source", "test h")]
        lines.append(f"| {change} | {' | '.join(cells)} |")
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
