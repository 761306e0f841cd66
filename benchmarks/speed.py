"""The results of `hope bench speed --out benchmarks/speed.json` as Markdown in the README."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.readme import put

RESULTS = Path(__file__).with_name("speed.json")


def table() -> str:
    results = json.loads(RESULTS.read_text())
    net, rows = results["network"], results["layers"]
    last = rows[-1]
    return (
        f"ResNet-50 (random weights) from 1.0 to density 0.3, {net['steps']:,} steps, everything but the "
        f"capture of the graph: **{net['encode / grams']:.1f} times** the time of its float64 Gram products "
        f"alone and **{net['naive rescan / encode']:.0f} times** faster than working out all live pairs "
        "before each step (if a naive loop keeps all pairs and only looks through them: "
        f"{net['the same, pairs kept']:.1f} times, and over the {net['steps without evictions']:,} steps of "
        f"a run without evictions {net['the same, pairs kept, no evictions']:.0f} times); "
        f"{net['megabytes beyond the model']:.0f} MB beyond the model. One layer of "
        f"{last['neurons']:,} neurons with fan-in and fan-out 2,048, down to one: {last['seconds']:.0f} s, "
        f"{last['megabytes']:,.0f} MB. Absorption, the judge apart: {net['absorb / hope']:.1f} times the "
        f"time of the paper's method ({net['absorb / hope, both without evictions']:.1f} times if neither "
        "evicts). Ratios from one run of `hope bench speed` on two cores.\n"
    )


if __name__ == "__main__":
    put("speed", table())
