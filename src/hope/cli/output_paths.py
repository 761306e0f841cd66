"""Where commands write: a place that is named, and none that holds what is read; and how much that was."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable
from pathlib import Path

from hope._util.locks import LOCK
from hope.errors import CannotWrite
from hope.schedule.resources import Bytes

KINDS = {"inputs": "synthetic inputs", "moments": "input statistics", "weights": "weights"}  # files of a run


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


def saved(out: Path, name: str) -> str:
    """How large the folder is, and what is large in it."""
    files = [file for file in out.iterdir() if file.is_file() and file.name != LOCK]
    sizes = {file.name: file.stat().st_size for file in files}
    large = [
        f"{KINDS[key]} {Bytes().format(size)}"
        for file, size in sorted(sizes.items())
        if (key := file.partition("-")[0]) in KINDS
    ]
    parts = f": {', '.join(large)}" if large else ""
    return (
        f"saved in {name} ({Bytes().format(sum(sizes.values()))}{parts}); "
        "for another budget of the same run: hope extract --help"
    )
