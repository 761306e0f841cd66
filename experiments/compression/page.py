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
    "mobilenet_v2": "MobileNetV2, ImageNet",
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
    """For the README: HOPE, Torch-Pruning's best criterion, the paper's method, at equal parameters."""
    lines = [
        "| top-1 | before | HOPE | Torch-Pruning, best of four | the paper's method |",
        "|---|---:|---:|---:|---:|",
    ]
    networks = {**read(), **json.loads((FOLDER / "finetune.json").read_text())["networks"]}
    for name, budget, key in WHY:
        entry = networks[name]
        before = f"{entry['base fine-tuned' if key == 'fine-tuned' else 'base']:.3f}"
        cells = _beside(entry["points"], budget, key)
        lines.append(f"| {TITLES[name]}{ENDS[key]} | {before} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _beside(points: dict[str, Any], budget: str, key: str) -> list[str]:
    """Three cells: the accuracy of absorption, Torch-Pruning's best criterion and the paper's method, all at
    the size that absorption has.
    """
    own = points["absorb"][budget]
    found = {method: at_size(some, own["parameters"], key) for method, some in points.items()}
    peers = {name: point for name, point in found.items() if name.startswith("torch-pruning") and point}
    criterion = max(peers, key=lambda name: peers[name][0])
    named = [found["absorb"], peers[criterion], found["paper"]]
    best = max(round(point[0], 3) for point in named if point)
    cells = []
    for point, what in zip(named, ("", f"{criterion.removeprefix('torch-pruning ')}, ", ""), strict=True):
        if point is None:
            cells.append("–")
            continue
        accuracy, sizes = point
        score = f"{'≈' if len(sizes) > 1 else ''}{accuracy:.3f}"
        score = f"**{score}**" if round(accuracy, 3) == best else score
        cells.append(f"{score} ({what}{'–'.join(f'{size:.2f}' for size in sizes)})")
    return cells


def at_size(points: dict[str, Any], size: float, key: str) -> tuple[float, list[float]] | None:
    """The accuracy at a share of the parameters, and the measured shares that it comes from: one within 0.01,
    or else the nearest on both sides, between which it is interpolated; None without these.
    """
    known = sorted((point["parameters"], point[key]) for point in points.values() if key in point)
    near = min(known, key=lambda point: abs(point[0] - size), default=(0.0, 0.0))
    if abs(near[0] - size) <= NEAR:
        return near[1], [near[0]]
    below, above = ([one for one in known if (one[0] > size) is larger] for larger in (False, True))
    if not below or not above:
        return None
    (low, worse), (high, better) = below[-1], above[0]
    return worse + (better - worse) * (size - low) / (high - low), [low, high]


NEAR = 0.01  # shares of the parameters that count as equal
WHY = (
    ("cifar10-resnet56", "density=0.7", "accuracy"),
    ("cifar10-resnet56", "density=0.5", "accuracy"),
    ("cifar10-resnet56", "density=0.5", "recalibrated"),
    ("cifar10-resnet20", "params=0.7", "accuracy"),
    ("cifar10-resnet20", "params=0.5", "accuracy"),
    ("keras-resnet50", "params=0.825", "accuracy"),
    ("keras-resnet50", "params=0.56", "accuracy"),
    ("cifar100-resnet8", "params=0.5", "fine-tuned"),
    ("cifar100-resnet8", "params=0.3", "fine-tuned"),
)
"""The README's rows: mild and hard, on every network, and where the lead is small."""

ENDS = {"accuracy": "", "recalibrated": ", BN re-estimated", "fine-tuned": ", fine-tuned"}


def times() -> str:
    """For the README: time and memory of typical runs."""
    networks, speed = read(), json.loads((FOLDER / "speed.json").read_text())["network"]
    language = json.loads((FOLDER / "language.json").read_text())
    large = json.loads((FOLDER / "scale.json").read_text())["1B, 6 GB"]["phases"]
    lines = ["| run | time | peak memory |", "|---|---:|---:|"]
    for name, budget in (("cifar10-resnet20", "params=0.5"), ("keras-resnet50", "params=0.56")):
        seconds = networks[name]["points"]["absorb"][budget]["seconds"]
        lines.append(f"| {TITLES[name]}, `{budget}`, no data | {seconds:.0f} s | not measured |")
    paper = networks["keras-resnet50"]["points"]["paper"]["params=0.56"]["seconds"]
    beyond = f"{speed['megabytes beyond the model']:.0f} MB beyond the model"
    lines.append(f'| the same with `method="paper"` | {paper:.0f} s | {beyond} |')
    small = language["smollm2-135m"]["points"]["both"]["0.3"]["absorb"]["256"]["seconds"]
    lines.append(f"| SmolLM2-135M, 30% of its layers, 256 windows of text | {small:.0f} s | not measured |")
    whole = sum(phase["seconds"] for phase in large.values())
    peak = max(phase["resident"] for phase in large.values())
    lines.append(f"| Llama, 1 billion parameters, 10%, `HOPE_MEMORY=6` | {whole:.0f} s | {peak:.0f} GB |")
    return "\n".join(lines) + "\n"


TABLES = {"compression": table, "judge": judge, "why": why, "times": times}
"""marker of a page -> what makes its Markdown."""
