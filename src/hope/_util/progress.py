"""Show that long work is under way: a line on standard error that vanishes when it is done."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def busy(text: str, show: bool | None = None) -> Iterator[None]:
    """Show a spinner with the elapsed time while the body runs.

    Args:
        text: what is being done, in a few words.
        show: True or False to force it; None shows it on a terminal only.
    """
    console = Console(stderr=True)
    if show is None:
        show = console.is_terminal
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not show) as progress:
        progress.add_task(text, total=None)
        yield
