"""Budgets on the command line."""

from __future__ import annotations

import argparse
from typing import Any

from hope.schedule.budget import UNITS

KEPT = {"density": "neurons", "params": "parameters", "macs": "MACs"}
AMOUNTS = {  # budgets that are written with a unit
    "size": "bytes of parameters and buffers to keep: a fraction (0.6) or an amount (10MB)",
    "latency": "time to keep on this machine: a fraction of the original's (0.6) or a time (12ms)",
}


def add_budgets(parser: argparse.ArgumentParser, *, required: bool) -> None:
    """--density, --params, --macs, --size, --latency, --steps: one of them; where a run is made, also
    --fidelity.
    """
    group = parser.add_mutually_exclusive_group(required=required)
    for unit in UNITS:
        kept = f"{KEPT.get(unit, unit)} to keep: a fraction (0.6) or a count"
        words = "how many steps to take" if unit == "steps" else AMOUNTS.get(unit, kept)
        kind = _amount if unit in AMOUNTS else _number
        group.add_argument(f"--{unit}", type=kind, metavar="N", help=words)
    if required:
        group.add_argument(
            "--fidelity", type=_number, metavar="F", help="the least predicted fidelity, e.g. 0.9"
        )


def _number(text: str) -> float:
    """A budget: "0.6" is a fraction, "15_000_000" a count.

    >>> _number("0.6"), _number("15_000_000")
    (0.6, 15000000)
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        words = f"{text!r} is no number: give a fraction up to 1 (0.6) or a whole count"
        raise argparse.ArgumentTypeError(words) from None


def _amount(text: str) -> float | str:
    """A budget with a unit: "0.6" is a fraction, anything else is looked at with its unit.

    >>> _amount("0.6"), _amount("12ms"), _amount("12")
    (0.6, '12ms', '12')
    """
    try:
        return float(text) if 0 <= float(text) <= 1 else text
    except ValueError:
        return text


def budget_of(options: argparse.Namespace) -> dict[str, Any]:
    """The budget that was given, as keywords."""
    given = {unit: getattr(options, unit, None) for unit in (*UNITS, "fidelity")}
    return {unit: value for unit, value in given.items() if value is not None}
