"""One bar for a whole run: which phase it is in ("3 of 7"), how much of all is done, and the time left.

A terminal shows a line that vanishes at the end, a notebook an output of its own. Elsewhere commands write a
line per phase, and so do calls with `progress=True`.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

READ = "reading the network"
MEASURE = "measuring input statistics"
SENSITIVITY = "measuring the sensitivity of each layer"
RANK = "ranking what to remove"
BLOCKS = "choosing blocks to remove"
ROUND = "choosing bits"
TIME = "measuring times on this machine"
SEARCH = "searching the smallest network"
REFIT = "refitting the weights"
FIDELITY = "predicting the fidelity"
EVALUATE = "evaluating networks"
LOAD = "loading the model"
DREAM = "making synthetic inputs"

QUIET = 10.0  # seconds before the first line of a log
AGAIN = 60.0  # seconds between two lines about one phase
KNOWN = 0.05  # the share of a phase after which its own speed predicts its time


@dataclass
class RunProgress:
    """How far a run is.

    Attributes:
        phases: in their order, as far as they are known.
        expected: estimated seconds of each phase; with them all phases are known.
        spent: measured seconds of the phases that are finished.
        number: the position of the present phase; -1 before the first.
        done: the share of it that is done.
        depth: how many bars are open, one in another.
        visible: whether anything is shown.
    """

    phases: Sequence[str]
    expected: Mapping[str, float] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)
    number: int = -1
    done: float = 0.0
    started: float = field(default_factory=lambda: time.monotonic())
    entered: float = field(default_factory=lambda: time.monotonic())
    depth: int = 0
    visible: bool = True
    on_change: Callable[[], None] = lambda: None

    def enter(self, phase: str) -> bool:
        """Begin a phase, unless it is over already, not one of this run, or a part of another one."""
        inside = self.depth > 1 and phase != self.phases[max(self.number, 0)]
        if inside or phase not in self.phases[max(self.number, 0) :]:
            return False
        if self.phases.index(phase) != self.number:
            self.close()
            self.number, self.done, self.entered = self.phases.index(phase), 0.0, time.monotonic()
            self.on_change()
        return True

    def close(self) -> None:
        """End the present phase."""
        if self.number >= 0:
            self.spent[self.phases[self.number]] = time.monotonic() - self.entered

    def advance(self, done: float) -> None:
        """So much of the phase is done, between 0 and 1; it never decreases."""
        self.done = max(self.done, min(1.0, done))
        self.on_change()

    @property
    def text(self) -> str:
        """The phase and its number."""
        name = self.phases[max(0, self.number)]
        known = self.expected and len(self.phases) > 1
        return f"{max(1, self.number + 1)} of {len(self.phases)}: {name}" if known else name

    @property
    def share(self) -> float | None:
        """How much of the run is done, by its phases if there is no estimate; None if unknown."""
        left, spent = self.left, time.monotonic() - self.started
        if left is None and len(self.phases) > 1 and not self.expected:
            return (max(0, self.number) + self.done) / len(self.phases)
        return spent / max(1e-9, spent + left) if left is not None else None

    @property
    def left(self) -> float | None:
        """Predicted seconds to the end: by the estimates, corrected by what took so long until now."""
        names = [name for name in self.spent if name in self.expected]
        expected = sum(self.expected[name] for name in names)
        speed = sum(self.spent[name] for name in names) / expected if expected > 1 else 1.0
        rest = self.phases[self.number + 1 :]
        if rest and not self.expected:
            return None
        name, now = self.phases[max(0, self.number)], time.monotonic() - self.entered
        if self.done > KNOWN:
            here = now * (1 / self.done - 1)
        elif name in self.expected:
            here = max(0.0, self.expected[name] * speed - now)
        else:
            return None
        return here + speed * sum(self.expected.get(name, 0.0) for name in rest)


def duration(seconds: float) -> str:
    """A time in words.

    >>> duration(0.2), duration(34), duration(170), duration(8000)
    ('1 second', '34 seconds', '3 minutes', '2.2 hours')
    """
    if seconds < 55:
        whole = max(1, round(seconds))
        return f"{whole} second{'s' * (whole > 1)}"
    if seconds < 5400:
        whole = max(1, round(seconds / 60))
        return f"{whole} minute{'s' * (whole > 1)}"
    return f"{seconds / 3600:.1f} hours"


_run: ContextVar[RunProgress | None] = ContextVar("run", default=None)


@dataclass
class _Log:
    """When the command began, and the last line about its phases: what, and when."""

    started: float
    phase: str = ""
    at: float = 0.0


_logs: ContextVar[_Log | None] = ContextVar("logs", default=None)


@contextmanager
def logged() -> Iterator[None]:
    """While the body runs, write a line per phase where no bar can be shown; none in the first seconds."""
    token = _logs.set(_Log(time.monotonic()))
    try:
        yield
    finally:
        _logs.reset(token)


@contextmanager
def run_of(phases: Sequence[str], show: bool | None = None) -> Iterator[RunProgress]:
    """Show one bar for all phases of the body, by their order; inside another run, that one is continued.

    Args:
        show: True or False to force it; None shows it on a terminal, in a notebook and on the command line.
    """
    outer = _run.get()
    if outer is not None:
        yield outer
        return
    run, console, log = RunProgress(phases), Console(file=sys.stderr), _logs.get()
    run.started = run.started if log is None else log.started
    token = _run.set(run)
    try:
        with _display(run, console, show):
            yield run
            run.close()
    finally:
        _run.reset(token)


@contextmanager
def bar(text: str, total: float | None, show: bool | None = None) -> Iterator[Callable[[float], None]]:
    """Show how much of the body is done; what is yielded takes how much that is. Without a total it is only
    shown that the body runs.

    Args:
        text: a phase of the run, or by itself what is being done, in a few words.
        show: as in `run_of`.

    >>> with bar("counting", 3, show=False) as done:
    ...     done(1)
    """
    with run_of((text,), show) as run:
        run.depth += 1
        try:
            current = run.enter(text)
            yield lambda done: run.advance(done / total) if current and total else None
        finally:
            run.depth -= 1


@contextmanager
def busy(text: str, show: bool | None = None) -> Iterator[None]:
    """Show that the body runs, as `bar` does."""
    with bar(text, None, show):
        yield


def expect(seconds: Mapping[str, float]) -> None:
    """The phases that follow in the run that is under way, with an estimate of their seconds."""
    run = _run.get()
    if run is not None and not run.expected:
        run.phases = (*run.phases, *(name for name in seconds if name not in run.phases))
        run.expected = dict(seconds)


@contextmanager
def _display(run: RunProgress, console: Console, show: bool | None) -> Iterator[None]:
    if show is False:
        run.visible = False
        yield
    elif console.is_jupyter:
        with _notebook(run):
            yield
    elif console.is_terminal:
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TimeElapsedColumn(),
            _Left(run),
        )
        with Progress(*columns, console=console, transient=True) as progress:
            task = progress.add_task("", total=None)

            def update() -> None:
                share = run.share
                total = None if share is None else 1.0
                progress.update(task, description=escape(run.text), total=total, completed=share or 0.0)

            run.on_change = update
            yield
    elif show or _logs.get() is not None:
        with _log(run, 0.0 if show else QUIET):
            yield
    else:
        run.visible = False
        yield


class _Left(ProgressColumn):
    """The time left."""

    def __init__(self, run: RunProgress) -> None:
        super().__init__()
        self.run = run

    def render(self, task: Task) -> Text:
        return Text(_left(self.run), style="progress.remaining")


def _left(run: RunProgress) -> str:
    return "" if run.left is None else f"about {duration(run.left)} left"


@contextmanager
def _log(run: RunProgress, quiet: float) -> Iterator[None]:
    """A line per phase, and one a minute within a long phase."""
    log = _logs.get() or _Log(run.started)

    def update() -> None:
        now = time.monotonic()
        new = log.phase != run.text
        if run.number >= 0 and now - run.started >= quiet and (new or now - log.at >= AGAIN):
            log.phase, log.at = run.text, now
            minutes, seconds = divmod(round(now - run.started), 60)
            share = f"{run.done:.0%}" if run.done and not new else ""
            parts = [f"hope: [{minutes}:{seconds:02}] {run.text}", share, _left(run)]
            print(", ".join(filter(None, parts)), file=sys.stderr, flush=True)

    run.on_change = update
    timer = threading.Timer(max(0.0, run.started + quiet - time.monotonic()), update)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _notebook(run: RunProgress) -> Iterator[None]:
    """An output that is updated in place; it needs no widgets, and what is saved is the last state."""
    import IPython.display

    show: Any = IPython.display.display
    handle = show({"text/plain": ""}, raw=True, display_id=True)
    shown = [0.0]

    def update(last: str = "") -> None:
        now = time.monotonic()
        if not last and now - shown[0] < 0.2 and run.done:
            return
        shown[0] = now
        words = last or ", ".join(filter(None, (run.text, _left(run))))
        share = 0.0 if run.share is None else run.share
        page = f'<progress max="1" value="{share:.3f}"></progress> {words}'
        with suppress(Exception):  # a notebook that is closed meanwhile must not stop the run
            handle.update({"text/plain": words, "text/html": words if last else page}, raw=True)

    run.on_change = update
    words = "stopped"
    try:
        yield
        words = "done" if len(run.phases) > 1 else f"{run.text}: done"
    finally:
        update(f"{words} after {duration(time.monotonic() - run.started)}")
