"""Show that long work is under way: a bar that vanishes when it is done, or one line per phase in a log."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

QUIET = 10.0  # seconds before the first line of a log


@dataclass
class _Log:
    """Lines about the phases of a command whose output is no terminal."""

    started: float = field(default_factory=time.monotonic)
    phase: str = ""

    def enter(self, text: str) -> None:
        """A phase begins."""
        self.phase = text
        if time.monotonic() - self.started >= QUIET:
            self.write()

    def write(self) -> None:
        """Write the phase and how long the command has run."""
        if self.phase:
            minutes, seconds = divmod(round(time.monotonic() - self.started), 60)
            print(f"hope: [{minutes}:{seconds:02}] {self.phase}", file=sys.stderr, flush=True)


_log: _Log | None = None


@contextmanager
def logged() -> Iterator[None]:
    """While the body runs, write a line per phase where no bar can be shown; none in the first seconds."""
    global _log
    before, _log = _log, _Log()
    timer = threading.Timer(QUIET, _log.write)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        _log = before


@contextmanager
def _shown(text: str, *columns: ProgressColumn, show: bool | None) -> Iterator[Progress]:
    console = Console(file=sys.stderr)  # this one, whatever torch is kept from writing to meanwhile
    visible = console.is_terminal or console.is_jupyter if show is None else show
    if show is None and not visible and _log is not None:
        _log.enter(text)
    with Progress(*columns, console=console, transient=True, disable=not visible) as progress:
        yield progress


@contextmanager
def busy(text: str, show: bool | None = None) -> Iterator[None]:
    """Show a spinner with the elapsed time while the body runs.

    Args:
        text: what is being done, in a few words.
        show: True or False to force it; None shows it on a terminal and in a notebook.
    """
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with _shown(text, *columns, show=show) as progress:
        progress.add_task(text, total=None)
        yield


@contextmanager
def bar(text: str, total: float | None, show: bool | None = None) -> Iterator[Callable[[float], None]]:
    """Show a bar with the time left while the body runs; what is yielded takes how much is done. Without a
    total it only moves.

    >>> with bar("counting", 3, show=False) as done:
    ...     done(1)
    """
    percent = TextColumn("{task.percentage:.0f}%")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        percent,
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with _shown(text, *columns, show=show) as progress:
        task = progress.add_task(text, total=total)
        yield lambda completed: progress.update(task, completed=completed)
