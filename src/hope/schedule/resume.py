"""A run that is under way, on disk: what was done so far, so that an interrupted run can go on."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from hope._util.digest import is_sealed, parsed, sealed
from hope._util.files import make_folder, write_file
from hope._util.names import current_settings
from hope._util.notes import note
from hope.actions import Action
from hope.actions.registered import from_stored
from hope.structure.anatomy import Anatomy

FORMAT, VERSION = "hope-partial", 4
EVERY = 2.0  # seconds between two writes


@dataclass(frozen=True)
class EvictionProgress:
    """How far the search for evictions has come, if it is not finished.

    Attributes:
        levels: how many sizes it has evaluated; None while the steps themselves are not complete.
        evicted: (position in the steps, number of the block) of what it has decided for.
    """

    levels: int | None = None
    evicted: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Resume:
    """What an interrupted run has done.

    Attributes:
        steps: in order; without evictions as long as these are searched.
        evictions: how far that has come; None if there is nothing to search, or all is done.
    """

    steps: tuple[Action, ...] = ()
    evictions: EvictionProgress | None = None


@dataclass
class RunCheckpoint:
    """A file with the steps of a run that is not finished.

    Attributes:
        path: where.
        settings: what the run depends on; a file of other settings is not resumed.
    """

    path: Path
    settings: Mapping[str, Any]
    _written: float = field(default=0.0)

    def read(self, anatomy: Anatomy, blocks: int) -> Resume:
        """What was done so far; nothing if there is no file. One that is damaged or of another run is not
        resumed, which a note says.

        Args:
            anatomy: the network.
            blocks: how many blocks can be evicted.
        """
        try:
            data = parsed(self.path.read_bytes())
            if (data.get("format"), data.get("version")) != (FORMAT, VERSION):
                return self._anew("was not written by this version")
            if not is_sealed(data):
                return self._anew("was altered after it was written")
            found = data["settings"]
            if not isinstance(found, dict) or current_settings(found) != self.settings:
                return self._anew("is of another model, or of other options")
            found_run = Resume(
                tuple(from_stored(data["steps"])), msgspec.convert(data["deciding"], EvictionProgress | None)
            )
            _check(found_run, anatomy, blocks)
        except FileNotFoundError:
            return Resume()
        except (OSError, ArithmeticError, LookupError, RecursionError, TypeError, ValueError):
            return self._anew("cannot be read")
        return found_run

    def _anew(self, why: str) -> Resume:
        note(f"{self.path} {why}: the run starts anew")
        return Resume()

    def write(
        self, steps: Sequence[Action], evictions: EvictionProgress | None = None, *, now: bool = False
    ) -> None:
        """Note what was done, every few seconds, all or nothing."""
        if not now and time.monotonic() - self._written < EVERY:
            return
        data = {
            "format": FORMAT,
            "version": VERSION,
            "schema": f"{FORMAT}-{VERSION}",
            "settings": dict(self.settings),
            "steps": msgspec.to_builtins(list(steps)),
            "deciding": msgspec.to_builtins(evictions),
        }
        make_folder(self.path.parent)
        write_file(self.path, sealed(data))
        self._written = time.monotonic()

    def remove(self) -> None:
        """The run is finished."""
        self.path.unlink(missing_ok=True)


def _check(found_run: Resume, anatomy: Anatomy, blocks: int) -> None:
    """Refuse what cannot be done to this network.

    Raises:
        LookupError, ValueError: there is no such unit, neuron or block, or a neuron is removed twice.
    """
    removed: dict[str, set[int]] = {}
    for step in found_run.steps:
        if step.evicts is not None:
            anatomy.block(step.evicts)
            continue
        known, before = range(anatomy.unit(step.name).neurons), removed.setdefault(step.name, set())
        if not all(neuron in known for neuron in step.neurons) or not before.isdisjoint(step.neurons):
            raise ValueError(f"neurons must be there and removed once, got {step}")
        before.update(step.removed)
    for position, number in found_run.evictions.evicted if found_run.evictions is not None else ():
        if not (0 <= position <= len(found_run.steps) and 0 <= number < blocks):
            raise ValueError(
                f"evictions must be of {blocks} blocks in {len(found_run.steps)} steps, "
                f"got block {number} at step {position}"
            )
