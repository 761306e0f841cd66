"""The results of `hope bench latency` as Markdown: `python -m benchmarks.latency [--write-readme]`.

The measurements themselves:

    hope bench latency keras-resnet50 --weights keras-resnet50.safetensors --methods absorb hope \
        --budgets params=0.65 params=0.4 --multiple-of 8 --out benchmarks/latency.json
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.compression import TITLES
from benchmarks.readme import command

RESULTS = Path(__file__).with_name("latency.json")


def table(path: Path = RESULTS) -> str:
    """Speed-ups by engine and batch size, with what each network keeps."""
    results = json.loads(path.read_text())
    columns = list(dict.fromkeys((row["engine"], row["batch"]) for row in results["rows"]))
    networks: dict[tuple[Any, ...], dict[tuple[str, int], Any]] = {}
    for row in results["rows"]:
        key = (row["method"], row["budget"], row["multiple of"])
        networks.setdefault(key, {})[row["engine"], row["batch"]] = row
    heads = [f"{engine}, batch {batch}" for engine, batch in columns]
    lines = [
        "| | neurons | parameters | MACs | " + " | ".join(heads) + " |",
        "|---" + "|---:" * (3 + len(heads)) + "|",
    ]
    for (method, budget, multiple), rows in networks.items():
        if method == "original":
            continue
        first = next(iter(rows.values()))
        kept = [f"{first[name]:.2f}" for name in ("neurons", "parameters", "macs")]
        name = f"{method}, {budget}" + (f", multiples of {multiple}" if multiple > 1 else "")
        cells = [f"{rows[column]['speed-up']:.2f}" if column in rows else "" for column in columns]
        lines.append(f"| {name} | {' | '.join(kept)} | {' | '.join(cells)} |")
    lines.append(
        f"\nSpeed-up over the original, {TITLES[results['model']]}, {results['threads']} threads: ratios of "
        f"medians over {results['repeats']} interleaved repeats in one run. {_spread(results)}"
    )
    return "\n".join(lines) + "\n"


def _spread(results: dict[str, Any]) -> str:
    """How quiet the machine was."""
    widths = [
        (row["upper quartile ms"] - row["lower quartile ms"]) / row["median ms"] for row in results["rows"]
    ]
    middle = sorted(widths)[len(widths) // 2]
    return f"Quartiles lie {100 * middle:.0f}% apart (median), at most {100 * max(widths):.0f}%."


if __name__ == "__main__":
    command(__doc__, {"latency": table})
