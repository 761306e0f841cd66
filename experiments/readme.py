"""Put generated text between two markers of a page: the README, or one of docs/."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = (
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("results-*.md")),
    *(ROOT / "docs" / f"{name}.md" for name in ("choose", "coverage", "transformers")),
)


def put(name: str, text: str, pages: Iterable[Path] = PAGES) -> None:
    """Replace what stands between `<!-- name:start -->` and `<!-- name:end -->`, on every page that has
    both.
    """
    start, end = f"<!-- {name}:start -->", f"<!-- {name}:end -->"
    wholes = {page: page.read_text() for page in pages}
    found = [page for page, whole in wholes.items() if start in whole and end in whole]
    if not found:
        reported = ", ".join(page.name for page in wholes)
        raise SystemExit(
            f"none of {reported} has {start} and {end} to write between: add the two lines first"
        )
    for page in found:
        before, _, rest = wholes[page].partition(start)
        _, _, after = rest.partition(end)
        page.write_text(f"{before}{start}\n{text.strip()}\n{end}{after}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--table and --write-pages: for what was measured before."""
    group = parser.add_argument_group("the committed results, without measuring")
    group.add_argument("--table", action="store_true", help="print them as Markdown")
    group.add_argument("--write-pages", action="store_true", help="put the Markdown into README and docs")


def shown(options: argparse.Namespace, tables: Mapping[str, Callable[[], str]]) -> bool:
    """Whether tables were asked for; then they are printed or put into the pages.

    Args:
        tables: marker of a page -> what makes its Markdown.
    """
    for name, table in tables.items():
        if options.table:
            print(table())
        if options.write_pages:
            put(name, table())
    return bool(options.table or options.write_pages)
