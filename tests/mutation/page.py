"""docs/mutation.md from results.json."""

from __future__ import annotations

from collections import Counter
from typing import Any

HEAD = """# What the tests would notice

Small wrong programs, one change each (a comparison, an operator, a number, a condition, a result, a clamp),
meet the tests that run the changed line. The share of them that some test notices, and those that none
does. Made by

    python -m tests.mutation.run --map                         # which test runs which line
    python -m tests.mutation.run {packages} --sample {sample}
    python -m tests.mutation.run --again --seconds 60          # survivors, with more tests each
    python -m tests.mutation.run --page

from `tests/mutation/results.json`. A mutant meets tests for some seconds only, quickest first: what is called
a survivor may be noticed by a slower test, what is caught is caught.
"""


def written(kept: dict[str, Any]) -> str:
    """The page."""
    counts: dict[str, Counter[str]] = {}
    for name, entry in kept["mutants"].items():
        counts.setdefault(name.partition("/")[0], Counter())[kind(entry)] += 1
    sample = max(sum(some.values()) for some in counts.values())
    columns = (
        "package",
        "possible",
        "tried",
        "caught",
        "survive and do not matter",
        "survive",
        "share caught",
    )
    lines = [HEAD.format(sample=sample, packages=" ".join(sorted(counts))), "| " + " | ".join(columns) + " |"]
    lines += ["|---|" + "---:|" * (len(columns) - 1)]
    for package, some in (*sorted(counts.items()), ("all", sum(counts.values(), Counter[str]()))):
        tried, caught, idle, left = sum(some.values()), some["caught"], some["idle"], some["left"]
        possible = kept["of"].get(package, sum(kept["of"][name] for name in counts))
        share = caught / max(1, caught + left)
        lines.append(f"| {package} | {possible:,} | {tried} | {caught} | {idle} | {left} | {share:.0%} |")
    entries = sorted(kept["mutants"].items())
    lines += ["", "## Survivors that do not matter", "", "| change | why |", "|---|---|"]
    lines += [f"| {shown(name)} | {entry['why']} |" for name, entry in entries if kind(entry) == "idle"]
    open_ = [name for name, entry in entries if kind(entry) == "left"]
    if open_:
        lines += ["", "## Survivors that a test should notice", "", *(f"- {shown(name)}" for name in open_)]
    return "\n".join(lines) + "\n"


def kind(entry: dict[str, Any]) -> str:
    """ "caught", "idle" (survives, and a reason is written down) or "left"."""
    if entry["outcome"] in ("caught", "hangs"):
        return "caught"
    return "idle" if "why" in entry else "left"


def shown(name: str) -> str:
    """A mutant in a table's cell: where, then before and after as code."""
    where, _, change = name.partition(": ")
    before, _, after = change.partition(" → ")
    parts = (part if len(part) < 90 else part[:87] + "…" for part in (before, after))
    code = " → ".join(f"`{part}`".replace("|", "\\|") for part in parts)
    return f"{where}: {code}"
