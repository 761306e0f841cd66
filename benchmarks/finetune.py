"""The results of `hope bench finetune` as Markdown: `python -m benchmarks.finetune [--write-readme]`.

The measurements themselves:

    hope bench finetune --data FOLDER --out benchmarks/finetune.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.compression import budgets, rank
from benchmarks.readme import command
from hope.bench.finetune import NAME

RESULTS = Path(__file__).with_name("finetune.json")
COLUMNS = {"accuracy": "as it is", "recalibrated": "BN re-estimated", "fine-tuned": "fine-tuned"}


def table(results: Path = RESULTS) -> str:
    entry = json.loads(results.read_text())["networks"][NAME]
    lines = []
    for budget in budgets(entry, ""):
        rows = [(method, points[budget]) for method, points in entry["points"].items() if budget in points]
        best = {key: max(point[key] for _, point in rows) for key in COLUMNS}
        lines += [f"**{budget}**\n", f"| | parameters, MACs kept | {' | '.join(COLUMNS.values())} |"]
        lines += ["|---" + "|---:" * (1 + len(COLUMNS)) + "|"]
        for method, point in sorted(rows, key=lambda row: rank(row[0])):
            kept = f"{point['parameters']:.2f}, {point['macs']:.2f}"
            cells = [_cell(point, key, best[key]) for key in COLUMNS]
            lines.append(f"| {method} | {kept} | {' | '.join(cells)} |")
        lines.append("")
    return "\n".join([*lines, _words(entry)]) + "\n"


def _cell(point: dict[str, Any], key: str, best: float) -> str:
    text = f"{point[key]:.3f}"
    text = f"**{text}**" if point[key] == best else text
    if key != "fine-tuned":
        return text
    seeds = point["fine-tuned by seed"]
    return f"{text} ({min(seeds):.3f}–{max(seeds):.3f})" if len(seeds) > 1 else text


def _words(entry: dict[str, Any]) -> str:
    tuning, seeds = entry["fine-tuning"], entry["seeds"]
    return (
        f"ResNet-8 on thirty classes of CIFAR-100, trained for {entry['training']['epochs']} epochs: "
        f"{entry['base']:.3f}, and {entry['base fine-tuned']:.3f} when fine-tuned like the others: "
        f"{tuning['epochs']} epochs over {entry['fine-tuning images']:,} training images from a rate of "
        f"{tuning['rate']:g}"
        + (f", mean of {seeds} seeds (lowest–highest)" if seeds > 1 else "")
        + f". Measured on {entry['images']:,} test images; the 95% interval of one figure is up to "
        f"±{196 * (0.25 / entry['images']) ** 0.5:.1f} points. Bold: the best of a column."
    )


if __name__ == "__main__":
    command(__doc__, {"finetune": table})
