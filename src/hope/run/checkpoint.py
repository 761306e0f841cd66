"""A run that is under way, on disk: what was done so far, so that an interrupted run can go on."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hope._util.files import write_file
from hope.anatomy.steps import AnyStep, Step

FORMAT, VERSION = "hope-partial", 2
EVERY = 2.0  # seconds between two writes


@dataclass
class Checkpoint:
    """A file with the steps of a run that is not finished.

    Attributes:
        path: where.
        settings: what the run depends on; a file of other settings is not gone on with.
    """

    path: Path
    settings: Mapping[str, Any]
    _written: float = field(default=0.0)

    def read(self) -> list[Step]:
        """What was done so far; nothing if there is no file, or one of another run."""
        try:
            data = json.loads(self.path.read_bytes())
            told = (data["format"], data["version"], data["settings"])
            if told == (FORMAT, VERSION, self.settings):
                return list(msgspec.convert(data["steps"], list[AnyStep]))
        except (OSError, ValueError, KeyError, TypeError):
            pass
        return []

    def write(self, steps: Sequence[Step], *, now: bool = False) -> None:
        """Note what was done, every few seconds, all or nothing."""
        if not now and time.monotonic() - self._written < EVERY:
            return
        data = {
            "format": FORMAT,
            "version": VERSION,
            "schema": f"{FORMAT}-{VERSION}",
            "settings": self.settings,
            "steps": msgspec.to_builtins(list(steps)),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_file(self.path, json.dumps(data, separators=(",", ":")).encode())
        self._written = time.monotonic()

    def remove(self) -> None:
        """The run is finished."""
        self.path.unlink(missing_ok=True)
