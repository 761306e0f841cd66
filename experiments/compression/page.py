"""The results of the compression experiment as Markdown."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

from experiments.command import RESULTS as FOLDER
from hope._util.numbers import plural

RESULTS = FOLDER / "compression.json"
TITLES = {
    "cifar10-resnet20": "ResNet-20, CIFAR-10",
    "cifar10-resnet56": "ResNet-56, CIFAR-10",
    "keras-resnet50": "Keras' ResNet-50, ImageNet",
    "cifar100-resnet8": "ResNet-8, CIFAR-100",
}
SIZES = ("neurons", "parameters", "macs")
WORDS = {"density": "neurons kept", "params": "parameters kept"}


def read() -> dict[str, Any]:
    """The committed results, by network."""
    return json.loads(RESULTS.read_text())["networks"]  # type: ignore[no-any-return]


def budgets(entry: dict[str, Any], unit: str) -> list[str]:
    """The budgets of a unit that anything was measured at, the largest first."""
    found = {b for points in entry["points"].values() for b in points if b.startswith(unit)}
    return sorted(found, key=lambda b: -float(b.partition("=")[2]))


def table() -> str:
    """A table per network and unit."""
    lines = []
    for name, title in TITLES.items():
        entry = read().get(name)
        if entry is None:
            continue
        for unit, words in WORDS.items():
            columns = budgets(entry, unit)
            rows = {m: p for m, p in entry["points"].items() if any(b in p for b in columns)}
            if not columns or len(rows) < 2:
                continue
            base, count = entry["base"], entry["images"]
            lines += [f"\n**{title}**: top-1 by {words}; base {base:.3f}, {count:,} images\n"]
            lines += ["| | " + " | ".join(b.partition("=")[2] for b in columns) + " |"]
            lines += ["|---" * (len(columns) + 1) + "|"]
            best = {b: max(p[b]["accuracy"] for p in rows.values() if b in p) for b in columns}
            ordered = sorted(rows.items(), key=lambda row: rank(row[0]))
            for method, points in ordered:
                cells = [_cell(points.get(b), best[b]) for b in columns]
                lines.append(f"| {method} | " + " | ".join(cells) + " |")
            lines += _kept(ordered, columns)
            lines += _mix(rows.get("paper", {}), columns)
    lines.append("\nIn brackets: after BN re-estimation on 96 unlabelled images. Bold: the best without it.")
    return "\n".join(lines).strip() + "\n"


def _kept(rows: list[tuple[str, dict[str, Any]]], columns: list[str]) -> list[str]:
    """What every network really keeps, folded away."""
    what = "neurons, parameters, MACs; time relative to the paper's method, on a busy machine"
    lines = [f"\n<details><summary>What they keep: {what}</summary>\n"]
    lines += ["| | " + " | ".join(b.partition("=")[2] for b in columns) + " | time |"]
    lines += ["|---" * (len(columns) + 2) + "|"]
    for method, points in rows:
        some = [points.get(b) for b in columns]
        cells = ["" if p is None else "/".join(f"{p[k]:.2f}"[1 - int(p[k]) :] for k in SIZES) for p in some]
        ratios = [p["time / paper"] for p in some if p is not None and "time / paper" in p]
        lines.append(f"| {method} | {' | '.join(cells)} | {f'{median(ratios):.1f}' if ratios else ''} |")
    return [*lines, "\n</details>"]


def _mix(points: dict[str, Any], columns: list[str]) -> list[str]:
    """What the paper's method did to get there."""
    shown = [(b.partition("=")[2], points[b]["mix"]) for b in columns if b in points]
    words = [
        f"{b}: {plural(m['prune'], 'prune')}, {plural(m['merge'], 'merge')}, {plural(m['evict'], 'eviction')}"
        for b, m in shown
    ]
    return [f"\nActions of the paper's method at {'; '.join(words)}."] if words else []


def rank(method: str) -> tuple[int, str]:
    """The order of rows."""
    order = ("absorb", "paper", "l1", "bn", "random", "torch")
    return next(k for k, start in enumerate(order) if method.startswith(start)), method


def _cell(point: dict[str, Any] | None, best: float) -> str:
    if point is None:
        return ""
    text = f"{point['accuracy']:.3f}"
    text = f"**{text}**" if point["accuracy"] == best else text
    return f"{text} ({point['recalibrated']:.2f})" if "recalibrated" in point else text


def judge() -> str:
    """How the judge ranks networks, against their accuracies."""
    from scipy.stats import spearmanr

    lines = ["| network | compressed forms | rank correlation of fidelity and accuracy |", "|---|---:|---:|"]
    for name, title in TITLES.items():
        entry = read().get(name)
        points = [] if entry is None else [p for m in entry["points"].values() for p in m.values()]
        pairs = [(p["fidelity"], p["accuracy"]) for p in points if "fidelity" in p]
        if len(pairs) > 10:
            lines.append(f"| {title} | {len(pairs)} | {spearmanr(*zip(*pairs, strict=True))[0]:.2f} |")
    return "\n".join(lines) + "\n"


def why() -> str:
    """For the README: absorption, Torch-Pruning's best criterion and the paper's method."""
    lines = [
        "| top-1 | before | HOPE | Torch-Pruning, best of four | the paper's method |",
        "|---|---:|---:|---:|---:|",
    ]
    networks = {**read(), **json.loads((FOLDER / "finetune.json").read_text())["networks"]}
    for name, budget, key in WHY:
        entry = networks[name]
        unit, _, share = budget.partition("=")
        title = f"{TITLES[name]}, {100 * float(share):g}% of the {WORDS[unit].partition(' ')[0]}{ENDS[key]}"
        before = f"{entry['base fine-tuned' if key == 'fine-tuned' else 'base']:.3f}"
        lines.append(f"| {title} | {before} | {' | '.join(_beside(entry['points'], budget, key))} |")
    lines.append("\nIn brackets: the share of parameters kept. Bold: the best in the row.")
    return "\n".join(lines) + "\n"


def _beside(points: dict[str, Any], budget: str, key: str) -> list[str]:
    """Three cells: the accuracy of absorption, Torch-Pruning and the paper's method."""
    peers = [method for method in points if method.startswith("torch-pruning") and budget in points[method]]
    peer = max(peers, key=lambda method: points[method][budget][key])
    shown = [points[method][budget] for method in ("absorb", peer, "paper")]
    best = max(point[key] for point in shown)
    cells = []
    for point, what in zip(shown, ("", f"{peer.removeprefix('torch-pruning ')}, ", ""), strict=True):
        score = f"**{point[key]:.3f}**" if point[key] == best else f"{point[key]:.3f}"
        cells.append(f"{score} ({what}{point['parameters']:.2f})")
    return cells


WHY = (
    ("cifar10-resnet56", "density=0.7", "accuracy"),
    ("cifar10-resnet56", "density=0.5", "accuracy"),
    ("cifar10-resnet56", "density=0.5", "recalibrated"),
    ("cifar10-resnet20", "density=0.7", "accuracy"),
    ("cifar10-resnet20", "density=0.5", "accuracy"),
    ("keras-resnet50", "params=0.825", "accuracy"),
    ("keras-resnet50", "params=0.56", "accuracy"),
    ("cifar100-resnet8", "params=0.5", "fine-tuned"),
    ("cifar100-resnet8", "params=0.3", "fine-tuned"),
)
"""The README's rows: mild and hard, on every network, and where the lead is small."""

ENDS = {"accuracy": "", "recalibrated": ", BN re-estimated", "fine-tuned": ", fine-tuned"}

TABLES = {"compression": table, "judge": judge, "why": why}
"""marker of a page -> what makes its Markdown."""
