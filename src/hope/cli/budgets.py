"""Budgets on the command line: an option for each unit of `schedule.resources`."""

from __future__ import annotations

import argparse
from typing import Any

from hope.schedule.budget import one_budget
from hope.schedule.resources import UNITS


def add_budgets(parser: argparse.ArgumentParser, *, required: bool, or_bits: bool = False) -> None:
    """--density, --params, --macs, --size, --latency, --steps and what is registered: one of them; where a
    run is made, also --fidelity.

    Args:
        or_bits: whether --bits will do instead.
    """
    group = parser.add_mutually_exclusive_group(required=required and not or_bits)
    for name, unit in UNITS.items():
        if required or unit.replayable:
            group.add_argument(f"--{name.replace('_', '-')}", type=_number, metavar="N", help=unit.help)


def _number(text: str) -> float | str:
    """A budget: "0.6" is a fraction, "15_000_000" a count, anything else is left to the unit.

    >>> _number("0.6"), _number("15_000_000"), _number("12ms")
    (0.6, 15000000, '12ms')
    """
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def budget_of(options: argparse.Namespace) -> dict[str, Any]:
    """The budget that was given, as keywords; checked."""
    given = {name: getattr(options, name, None) for name in UNITS}
    found = {name: value for name, value in given.items() if value is not None}
    if found:
        one_budget(**found)
    return found
