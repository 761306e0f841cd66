"""docs/mutation.md from results.json."""

from __future__ import annotations

from collections import Counter
from typing import Any

HEAD = """# Mutation tests

Each mutant changes one thing in the source: a comparison, an operator, a number, a condition, a result or a
clamp. The tests that run the changed line should fail. The tables give the share of mutants that some test
detects, and list those that no test detects. To repeat:

    python -m tests.mutation.run --map                         # which test runs which line
    python -m tests.mutation.run geometry methods schedule rewrite --sample 60 --seed 0
    python -m tests.mutation.run deft --sample 40 --seed 1
    python -m tests.mutation.run geometry methods schedule rewrite --sample 7 --seed 2
    python -m tests.mutation.run --again --seconds 400         # survivors, with more tests each
    python -m tests.mutation.run --page

Data: `tests/mutation/results.json`: {note}. Names are those of the tested version: the package `run` is now
`schedule`, and `surgery` is now `rewrite`.

*Caught at first*: detected by tests that were written before the mutants were drawn, within {seconds} seconds
    of
tests per mutant, quickest first. This is a lower bound, because a slower test may detect more. *Caught now*:
after tests were written *for these survivors*, and with more time. This is near 100% by construction and says
nothing about other mutants. Which survivors do not matter was decided by hand.
"""


def written(kept: dict[str, Any]) -> str:
    """The page."""
    counts: dict[str, Counter[str]] = {}
    for name, entry in kept["mutants"].items():
        some = counts.setdefault(name.partition("/")[0], Counter())
        some[kind(entry)] += 1
        some["first"] += entry["first"] in ("caught", "hangs")
    head = HEAD.format(**kept["how"])
    columns = ("package", "possible", "tried", "caught at first", "of all", "of those that matter")
    columns += ("caught now", "do not matter", "left")
    lines = [head, "| " + " | ".join(columns) + " |", "|---|" + "---:|" * (len(columns) - 1)]
    for package, some in (*sorted(counts.items()), ("all", sum(counts.values(), Counter[str]()))):
        first, idle = some["first"], some["idle"]
        tried = some["caught"] + idle + some["left"]
        possible = kept["of"].get(package, sum(kept["of"][name] for name in counts))
        shares = f"{first / tried:.0%} | {first / max(1, tried - idle):.0%}"
        reported = (package, f"{possible:,}", tried, first, shares, some["caught"], idle, some["left"])
        lines.append("| " + " | ".join(map(str, reported)) + " |")
    entries = sorted(kept["mutants"].items())
    lines += ["", "By seed, each with the tests at that time:", "", *by_draw(kept)]
    lines += ["", "## Survivors that do not matter", "", "| change | why |", "|---|---|"]
    for name, entry in entries:
        if kind(entry) == "idle":
            lines.append(f"| {shown(name)} | " + entry["why"].replace("|", "\\|") + " |")
    open_ = [name for name, entry in entries if kind(entry) == "left"]
    if open_:
        lines += ["", "## Survivors that a test should detect", "", *(f"- {shown(name)}" for name in open_)]
    noticed = [name for name, e in entries if kind(e) == "caught" and e["first"] not in ("caught", "hangs")]
    lines += ["", "## Caught now, not at first", "", *(f"- {shown(name)}" for name in noticed)]
    return "\n".join(lines) + "\n"


def by_draw(kept: dict[str, Any]) -> list[str]:
    """What was caught at first, draw by draw: whether tests for one draw's survivors help with the next."""
    lines = ["| seed | of | tried | caught at first | of all | of those that matter |"]
    lines.append("|---:|---|---:|---:|---:|---:|")
    for draw in sorted({entry["draw"] for entry in kept["mutants"].values()}):
        some = {name: entry for name, entry in kept["mutants"].items() if entry["draw"] == draw}
        packages = ", ".join(sorted({name.partition("/")[0] for name in some}))
        first = sum(entry["first"] in ("caught", "hangs") for entry in some.values())
        matter = sum(kind(entry) != "idle" for entry in some.values())
        shares = f"{first / len(some):.0%} | {first / max(1, matter):.0%}"
        lines.append(f"| {draw} | {packages} | {len(some)} | {first} | {shares} |")
    return lines


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
