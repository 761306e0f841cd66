"""Tables as plain text, and as HTML for notebooks."""

from __future__ import annotations

from html import escape
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


ROWS = 30  # of a table in a notebook; the rest is one `print` away


def html(*parts: object) -> str:
    """Rich tables and lines as HTML that needs nothing else; all text is escaped.

    >>> html("a < b")
    '<div><p>a &lt; b</p></div>'
    """
    return f"<div>{''.join(_html(part) for part in parts if part != '')}</div>"


def _html(part: object) -> str:
    if not isinstance(part, Table):
        return f"<p>{escape(str(part)).replace(chr(10), '<br>')}</p>"
    sides = [f' style="text-align: {column.justify}"' for column in part.columns]
    heads = [escape(str(column.header)) for column in part.columns]
    rows = list(zip(*(column.cells for column in part.columns), strict=True))
    lines = [
        "".join(f"<td{side}>{escape(str(cell))}</td>" for side, cell in zip(sides, row, strict=True))
        for row in rows[:ROWS]
    ]
    more = len(rows) - ROWS
    if more > 0:
        lines.append(f'<td colspan="{len(heads)}">and {more} more rows: print it for all of them</td>')
    head = "".join(f"<th{side}>{name}</th>" for side, name in zip(sides, heads, strict=True))
    title = f"<caption>{escape(str(part.title))}</caption>" if part.title else ""
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
