"""A run that is under way, on disk: what was done so far, so that an interrupted run can go on."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from hope.encoder.actions import Action, from_json, to_json
from hope.errors import InvalidAction

FORMAT, VERSION = "hope-partial", 1
EVERY = 2.0  # seconds between two writes
Begun: TypeAlias = tuple[list[Action], list[float], list[int], list[float]]  # as in a `Trajectory`


@dataclass
class Checkpoint:
    """A file with the actions of a run that is not finished.

    Attributes:
        path: where.
        settings: what the run depends on; a file of other settings is not gone on with.
    """

    path: Path
    settings: Mapping[str, Any]
    _written: float = field(default=0.0)

    def read(self) -> Begun:
        """What was done so far; nothing if there is no file, or one of another run."""
        try:
            data = json.loads(self.path.read_bytes())
            same = (
                data["format"] == FORMAT and data["version"] == VERSION and data["settings"] == self.settings
            )
            if same:
                actions = [from_json(one) for one in data["actions"]]
                return actions, data["costs"], data["releases"], data["left"]
        except (OSError, ValueError, KeyError, TypeError, InvalidAction):
            pass
        return [], [], [], []

    def write(
        self,
        actions: Sequence[Action],
        costs: Sequence[float],
        releases: Sequence[int],
        left: Sequence[float],
        *,
        now: bool = False,
    ) -> None:
        """Note what was done, every few seconds, all or nothing."""
        if not now and time.monotonic() - self._written < EVERY:
            return
        data = {
            "format": FORMAT,
            "version": VERSION,
            "settings": self.settings,
            "actions": [to_json(action) for action in actions],
            "costs": list(costs),
            "releases": list(releases),
            "left": list(left),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        part.write_text(json.dumps(data, separators=(",", ":")))
        os.replace(part, self.path)
        self._written = time.monotonic()

    def remove(self) -> None:
        """The run is finished."""
        self.path.unlink(missing_ok=True)
