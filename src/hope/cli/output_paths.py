"""Where commands write: a place that is named, and none that holds what is read."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

from hope.errors import CannotWrite


def path(given: str) -> str:
    """A path on the command line; an empty one is refused, since it would be the folder one is in.

    >>> path("run/")
    'run/'
    """
    if not given.strip():
        raise argparse.ArgumentTypeError(f"a path must be given, got {given!r}: name a file or a folder")
    return given


def check_apart(target: str, sources: Iterable[Path]) -> None:
    """Refuse to write to a file or folder that is read."""
    for source in sources:
        there = os.path.exists(target) and os.path.exists(source)
        if os.path.samefile(target, source) if there else Path(target).resolve() == source.resolve():
            raise CannotWrite(f"{target} must not be replaced, it belongs to the run: give another path")
