"""Progress of long work: a line on standard error that is removed at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def _shown(*columns: ProgressColumn, show: bool | None) -> Iterator[Progress]:
    console = Console(stderr=True)
    if show is None:
        show = console.is_terminal
    with Progress(*columns, console=console, transient=True, disable=not show) as progress:
        yield progress


@contextmanager
def busy(text: str, show: bool | None = None) -> Iterator[None]:
    """Show a spinner with the elapsed time while the body runs.

    Args:
        show: True or False to force it; None shows it on a terminal only.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with _shown(*columns, show=show) as progress:
        progress.add_task(text, total=None)
        yield


@contextmanager
def bar(text: str, total: float | None, show: bool | None = None) -> Iterator[Callable[[float], None]]:
    """Show a bar while the body runs; yields a function that takes the amount done. Without a total the bar
    only moves.

    >>> with bar("counting", 3, show=False) as done:
    ...     done(1)
    """
    percent = TextColumn("{task.percentage:.0f}%")
    columns = (TextColumn("{task.description}"), BarColumn(), percent, TimeElapsedColumn())
    with _shown(*columns, show=show) as progress:
        task = progress.add_task(text, total=total)
        yield lambda completed: progress.update(task, completed=completed)
