"""Put generated text between two markers of the README."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def put(name: str, text: str, readme: Path = README) -> None:
    """Replace what stands between `<!-- name:start -->` and `<!-- name:end -->`."""
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    whole = readme.read_text()
    if start not in whole or end not in whole:
        raise SystemExit(f"{readme.name} has no {start} and {end} to write between: add the two lines first")
    before, _, rest = whole.partition(start)
    _, _, after = rest.partition(end)
    readme.write_text(f"{before}{start}\n{text.strip()}\n{end}{after}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--table and --write-readme: for what was measured before."""
    group = parser.add_argument_group("the committed results, without measuring")
    group.add_argument("--table", action="store_true", help="print them as Markdown")
    group.add_argument("--write-readme", action="store_true", help="put the Markdown into README.md")


def shown(options: argparse.Namespace, tables: Mapping[str, Callable[[], str]]) -> bool:
    """Whether tables were asked for; then they are printed or put into the README.

    Args:
        tables: marker of the README -> what makes its Markdown.
    """
    for name, table in tables.items():
        if options.table:
            print(table())
        if options.write_readme:
            put(name, table())
    return bool(options.table or options.write_readme)
