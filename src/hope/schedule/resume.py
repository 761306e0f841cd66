"""A run that is under way, on disk: what was done so far, so that an interrupted run can go on."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hope._util.files import make_folder, write_file
from hope.structure.steps import AnyStep, Step

FORMAT, VERSION = "hope-partial", 3
EVERY = 2.0  # seconds between two writes


@dataclass(frozen=True)
class EvictionProgress:
    """How far the judge has come with its evictions, where it is not done yet.

    Attributes:
        levels: how many sizes it has looked at; None while the steps themselves are not complete.
        evicted: (position in the steps, number of the block) of what it has decided for.
    """

    levels: int | None = None
    evicted: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Resume:
    """What an interrupted run has done.

    Attributes:
        steps: in order; without evictions as long as these are being decided about.
        deciding: how far that has come; None if there is nothing to decide, or all is decided.
    """

    steps: tuple[Step, ...] = ()
    deciding: EvictionProgress | None = None


@dataclass
class RunCheckpoint:
    """A file with the steps of a run that is not finished.

    Attributes:
        path: where.
        settings: what the run depends on; a file of other settings is not gone on with.
    """

    path: Path
    settings: Mapping[str, Any]
    _written: float = field(default=0.0)

    def read(self) -> Resume:
        """What was done so far; nothing if there is no file, or one of another run."""
        try:
            data = json.loads(self.path.read_bytes())
            told = (data["format"], data["version"], data["settings"])
            if told == (FORMAT, VERSION, self.settings):
                steps: tuple[Step, ...] = tuple(msgspec.convert(data["steps"], list[AnyStep]))
                return Resume(steps, msgspec.convert(data["deciding"], EvictionProgress | None))
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return Resume()

    def write(
        self, steps: Sequence[Step], deciding: EvictionProgress | None = None, *, now: bool = False
    ) -> None:
        """Note what was done, every few seconds, all or nothing."""
        if not now and time.monotonic() - self._written < EVERY:
            return
        data = {
            "format": FORMAT,
            "version": VERSION,
            "schema": f"{FORMAT}-{VERSION}",
            "settings": self.settings,
            "steps": msgspec.to_builtins(list(steps)),
            "deciding": msgspec.to_builtins(deciding),
        }
        make_folder(self.path.parent)
        write_file(self.path, json.dumps(data, separators=(",", ":")).encode())
        self._written = time.monotonic()

    def remove(self) -> None:
        """The run is finished."""
        self.path.unlink(missing_ok=True)
