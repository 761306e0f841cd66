"""Budgets and bits on the command line: an option for each unit of `schedule.resources`, and how weights are
rounded."""

from __future__ import annotations

import argparse
from typing import Any

from hope.schedule.budget import one_budget
from hope.schedule.resources import UNITS, BudgetUnit


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


def add_bits(parser: argparse.ArgumentParser) -> None:
    """--bits, --group and --round."""
    parser.add_argument(
        "--bits",
        metavar="N",
        type=_bits,
        default="auto",
        help="numbers of bits that weights may be rounded to: 8, or several, 8,4; without a budget nothing "
        "is removed and all weights are rounded. With --size any number by default; none: only neurons",
    )
    parser.add_argument(
        "--group",
        metavar="N",
        type=int,
        help="inputs of a rounded weight that share a scale: 32, 64 or 128 (default: all of an output)",
    )
    parser.add_argument(
        "--round",
        metavar="HOW",
        default="feedback",
        help="feedback (the default): rounding errors are compensated by the entries that are not rounded "
        "yet; nearest: every entry on its own",
    )


def _bits(text: str) -> Any:
    """What --bits says.

    >>> _bits("8"), _bits("8,4"), _bits("none")
    ([8], [8, 4], None)
    """
    if text in ("none", "auto"):
        return None if text == "none" else text
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        return text


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


def unit_given(options: argparse.Namespace) -> BudgetUnit | None:
    """The unit of the budget that was given; None if there is none."""
    return next((UNITS[name] for name in UNITS if getattr(options, name, None) is not None), None)
