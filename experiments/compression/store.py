"""The results file of the compression experiment, and whether it can be gone on with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hope.bench.budgets import parse
from hope.errors import HopeError, first_line

FORMAT, VERSION = "hope-bench-compression", 1


class UnusableResults(HopeError):
    """A results file cannot be gone on with."""


def read_results(path: Path) -> dict[str, Any]:
    """Results so far; empty if there are none."""
    if not path.is_file():
        return {"format": FORMAT, "version": VERSION, "networks": {}}
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise UnusableResults(f"{path} is not JSON: move it away and start again") from error
    results: dict[str, Any] = found if isinstance(found, dict) else {}
    if results.get("format") != FORMAT or results.get("version") != VERSION:
        raise UnusableResults(
            f"{path} is not a results file of this version (expected {FORMAT} {VERSION}, found "
            f"{results.get('format')} {results.get('version')}): move it away and start again"
        )
    try:
        _check_entries(results)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UnusableResults(
            f"{path} is damaged ({type(error).__name__}: {first_line(error)}): move it away and start again"
        ) from error
    return results


def _check_entries(results: Mapping[str, Any]) -> None:
    """Every figure that is read again is where it should be; any error tells that one is not."""
    dict(results.get("versions", {}))
    for entry in results["networks"].values():
        format(entry["base"], ".3f")
        format(entry["images"], ",d")
        for budget, point in (pair for points in entry["points"].values() for pair in points.items()):
            parse(budget)
            for figure in ("accuracy", "neurons", "parameters", "macs"):
                format(point[figure], ".3f")
            sum(point["mix"].values())
        refusals(entry)


def refusals(entry: Mapping[str, Any]) -> list[str]:
    """The budgets that cannot be met, with the reasons."""
    refused = entry.get("cannot be met", {})
    return [f"{method}, {budget}: {why}" for method, some in refused.items() for budget, why in some.items()]
