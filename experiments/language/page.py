"""The committed results as tables."""

from __future__ import annotations

import json
import math
from typing import Any

from experiments.command import RESULTS as FOLDER
from experiments.language.parts import KINDS

RESULTS = FOLDER / "language.json"
MODELS = ("smollm2-135m", "minilm-l6")
TITLES = {"smollm2-135m": "SmolLM2-135M", "minilm-l6": "MiniLM-L6"}
WHAT = {"mlp": "MLP neurons", "heads": "attention heads", "both": "neurons and heads"}
OF = {"mlp": "the MLPs' parameters", "heads": "the attentions' parameters", "both": "all layers' parameters"}


def table() -> str:
    """A table per model and kind."""
    lines: list[str] = []
    for name, entry in json.loads(RESULTS.read_text()).items():
        for kind in KINDS:
            if kind in entry["points"]:
                lines += ["", *_one(TITLES[name], kind, entry, entry["points"][kind]), ""]
    return "\n".join(lines).strip() + "\n"


def _one(title: str, kind: str, entry: dict[str, Any], found: dict[str, Any]) -> list[str]:
    shares = sorted(found, key=float)
    rows = sorted(
        {(m, s) for share in shares for m, some in found[share].items() for s in some},
        key=lambda row: (not row[0].startswith("absorb"), row[0], row[1].zfill(4)),
    )
    base = entry["base"]
    if "spearman" in base:
        reported = f"Spearman by share of {OF[kind]} removed; base {base['spearman']:.3f}"
    else:
        reported = (
            f"perplexity (excess of its logarithm ± standard error) by share of {OF[kind]} removed; base "
            f"{math.exp(base['loss']):.2f}"
        )
    lines = [
        f"**{title}, {WHAT[kind]}**: {reported}",
        "",
        f"| method | calibration | {' | '.join(f'{float(share):.0%}' for share in shares)} |",
        "|---|---|" + "---:|" * len(shares),
    ]
    for method, source in rows:
        cells = [_cell(found[share].get(method, {}).get(source), base) for share in shares]
        words = f"{source} windows" if source[0].isdigit() else source
        lines.append(f"| {method.replace('not looked', 'no sensitivity')} | {words} | {' | '.join(cells)} |")
    return lines


def _cell(point: dict[str, Any] | None, base: dict[str, Any]) -> str:
    if point is None:
        return ""
    if "spearman" in point:
        return f"{point['spearman']:.3f}"
    excess = [a - b for a, b in zip(point["losses"], base["losses"], strict=True)]
    mean = sum(excess) / len(excess)
    deviation = math.sqrt(sum((e - mean) ** 2 for e in excess) / (len(excess) - 1) / len(excess))
    perplexity = math.exp(point["loss"])
    shown = f"{perplexity:.1f}" if perplexity < 1e4 else f"{perplexity:.0e}"
    return f"{shown} ({mean:.3f} ± {deviation:.3f})"
