"""Times measured on this machine, cached on disk: each is measured once.

`$HOPE_CACHE/latency/` (by default `~/.cache/hope/latency/`) holds a file per engine and number of threads,
with a description of the machine. It is written after every few measurements, completely or not at all, so an
interrupted measurement resumes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from math import isfinite, prod
from pathlib import Path
from typing import Any

import msgspec

from hope._util.digest import is_sealed, parsed, sealed
from hope._util.files import make_folder, write_file
from hope._util.notes import note
from hope._util.progress import TIME, bar
from hope.errors import CannotWrite
from hope.latency.runtime import Runtime, machine
from hope.latency.stopwatch import Point
from hope.latency.surface import Width
from hope.latency.timed_operators import TimedOperator

FORMAT, VERSION = "hope-latency", 2
TOGETHER = 24  # points that are measured alternately
ENTRIES = 50_000_000  # that they may read and write together


class Kept(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The content of a file."""

    format: str = FORMAT
    version: int = VERSION
    machine: dict[str, Any]  # where it was measured (see `runtime.machine`)
    operators: dict[str, dict[str, float]] = {}  # operator -> "inputs x outputs" -> nanoseconds
    networks: dict[str, list[float]] = {}  # a network's digest -> nanoseconds of it at some widths
    sha256: str = ""  # a hash of the rest


def cache_folder() -> Path:
    """The cache folder: $HOPE_CACHE, else the user's cache."""
    given = os.environ.get("HOPE_CACHE")
    if given:
        return Path(given)
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "hope"


class Table:
    """Measured times of one engine with so many threads."""

    def __init__(self, runtime: Runtime, folder: Path | None = None) -> None:
        here = machine(runtime)
        place = (cache_folder() if folder is None else folder) / "latency"
        self.path = place / f"{runtime.engine}-{runtime.threads}.json"
        self.kept = self._read(here) or Kept(machine=here)

    def _read(self, here: dict[str, Any]) -> Kept | None:
        """The stored times, if they are valid here."""
        if not self.path.exists():
            return None
        try:
            data = parsed(self.path.read_bytes())
            if (data.get("format"), data.get("version")) != (FORMAT, VERSION):
                note(f"{self.path} is of another version: latencies are measured again")
                return None
            if not is_sealed(data):
                note(f"{self.path} was altered after it was written: latencies are measured again")
                return None
            kept = msgspec.convert(data, Kept)
        except (OSError, OverflowError, RecursionError, ValueError):
            note(f"{self.path} cannot be read: latencies are measured again")
            return None
        other = [
            f"{name} {kept.machine.get(name)}, here {here[name]}"
            for name in here
            if kept.machine.get(name) != here[name]
        ]
        if other:
            note(f"{self.path} was measured elsewhere ({other[0]}): latencies are measured again")
            return None
        if _drop_absurd(kept):
            note(f"{self.path} has latencies that are not positive numbers: these are measured again")
        return kept

    def write(self) -> None:
        """Store the times."""
        try:
            make_folder(self.path.parent)
            write_file(self.path, sealed(msgspec.to_builtins(self.kept), indent=1))
        except CannotWrite as error:
            raise CannotWrite(f"{error}; set HOPE_CACHE to a folder for measured latencies") from error

    def lookup(self, operator: TimedOperator, width: Width) -> float:
        """Nanoseconds of a measured operator."""
        return self.kept.operators[operator.name][_key(width)]

    def fill(
        self,
        points: Sequence[Point],
        measure: Callable[[Sequence[Point]], list[float]],
        *,
        progress: bool | None = None,
    ) -> None:
        """Measure what is missing."""
        known = self.kept.operators
        missing = [one for one in dict.fromkeys(points) if _key(one[1]) not in known.get(one[0].name, {})]
        with bar(TIME, len(missing), progress) as show:
            done = 0
            for some in _portions(missing):
                for (operator, width), value in zip(some, measure(some), strict=True):
                    known.setdefault(operator.name, {})[_key(width)] = round(value, 1)
                self.write()
                done += len(some)
                show(done)

    def networks(self, digest: str, count: int, measure: Callable[[], list[float]]) -> list[float]:
        """Times of whole networks, measured if missing."""
        if len(self.kept.networks.get(digest, ())) != count:
            self.kept.networks[digest] = [round(value, 1) for value in measure()]
            self.write()
        return self.kept.networks[digest]


def _drop_absurd(kept: Kept) -> bool:
    """Delete latencies that are not positive and finite; returns whether there were any."""
    dropped = False
    for known in kept.operators.values():
        for key in [key for key, value in known.items() if not _sound(value)]:
            del known[key]
            dropped = True
    for digest in [digest for digest, times in kept.networks.items() if not all(map(_sound, times))]:
        del kept.networks[digest]
        dropped = True
    return dropped


def _sound(nanoseconds: float) -> bool:
    return isfinite(nanoseconds) and nanoseconds > 0


def _key(width: Width) -> str:
    return f"{width[0]}x{width[1]}"


def _portions(points: Sequence[Point]) -> list[list[Point]]:
    """Points that can be measured alternately: not too many, and not too much memory."""
    portions: list[list[Point]] = []
    room = 0
    for operator, width in points:
        reads, writes, _ = operator.channels(width)
        entries = prod(operator.over) * (reads + writes)
        if not portions or len(portions[-1]) == TOGETHER or entries > room:
            portions.append([])
            room = ENTRIES
        portions[-1].append((operator, width))
        room -= entries
    return portions
