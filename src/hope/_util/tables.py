"""Tables as plain text."""

from __future__ import annotations

from io import StringIO

from rich.console import Console
from rich.table import Table


def text(*parts: object, width: int = 120) -> str:
    """Rich tables and lines as plain text."""
    out = StringIO()
    console = Console(
        file=out,
        width=width,
        force_terminal=False,
        color_system=None,
        highlight=False,
        emoji=False,
        markup=False,
    )
    for part in parts:
        console.print(part)
    return out.getvalue().rstrip()


def grid(title: str, *columns: str) -> Table:
    """An empty table: a column whose name starts with a space is text, the others are numbers."""
    table = Table(
        title=title, title_justify="left", box=None, pad_edge=False, title_style="", header_style=""
    )
    for column in columns:
        table.add_column(
            column.strip(), justify="left" if column.startswith(" ") else "right", overflow="fold"
        )
    return table
