"""Tables as plain text, no wider than the terminal, and as HTML for notebooks."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from html import escape
from io import StringIO

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

PIPED = 100  # columns, if the width is unknown


class FlexibleTable(Table):
    """A table that can do without some of its columns."""

    optional: tuple[int, ...] = ()  # their positions, in order


def text(*parts: object, width: int | None = None) -> str:
    """Rich tables and lines as plain text.

    Args:
        width: in columns; by default that of the terminal, or 100. A wider table drops optional columns and
            names them; if it is still too wide, it is folded.
    """
    if width is None:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else PIPED
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
        if isinstance(part, FlexibleTable):
            console.print(part.title)  # above the table, which would fold it to its own width
            part, dropped = _narrowed(part, console)
            console.print(part)
            if dropped:
                console.print(f"(not shown for want of space: {', '.join(dropped)})")
        else:
            console.print(part)
    return out.getvalue().rstrip()


def grid(title: str, *columns: str) -> FlexibleTable:
    """An empty table. A column whose name starts with a space is text, the others are numbers. One whose name
    ends with a question mark is dropped if there is no space, the last such first.
    """
    table = FlexibleTable(title=title, box=None, pad_edge=False, header_style="")
    for column in columns:
        table.add_column(
            column.strip().removesuffix("?"),
            justify="left" if column.startswith(" ") else "right",
            overflow="fold",
        )
    table.optional = tuple(k for k, column in enumerate(columns) if column.endswith("?"))
    return table


def _narrowed(table: FlexibleTable, console: Console) -> tuple[Table, list[str]]:
    """As many columns as fit, without the title, and the names of the others."""
    kept, optional = list(range(len(table.columns))), list(table.optional)
    while optional and _natural(_with(table, kept), console) > console.width:
        kept.remove(optional.pop())
    dropped = [str(column.header) for k, column in enumerate(table.columns) if k not in kept]
    return _with(table, kept), dropped


def _natural(table: Table, console: Console) -> int:
    """The natural width of a table."""
    return Measurement.get(console, console.options.update(width=10_000), table).maximum


def _with(table: Table, kept: Sequence[int]) -> Table:
    """Some columns of a table, without its title."""
    some = Table(box=None, pad_edge=False, header_style="")
    for k in kept:
        column = table.columns[k]
        some.add_column(column.header, justify=column.justify, overflow=column.overflow)
    for row in zip(*(table.columns[k].cells for k in kept), strict=True):
        some.add_row(*row)
    return some


ROWS = 30  # of a table in a notebook; `print` shows the rest


def html(*parts: object) -> str:
    """Rich tables and lines as self-contained HTML; all text is escaped.

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
