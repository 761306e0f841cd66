"""Put generated text between two markers of the README."""

from __future__ import annotations

import argparse
from collections.abc import Callable
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


def command(doc: str | None, tables: dict[str, Callable[[], str]]) -> None:
    """Print tables, or with --write-readme put them into the README."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write-readme", action="store_true", help="put the tables into README.md")
    write = parser.parse_args().write_readme
    for name, table in tables.items():
        if write:
            put(name, table())
        else:
            print(table())
