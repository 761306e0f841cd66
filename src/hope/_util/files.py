"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hope.errors import CannotWrite, first_line


def make_folder(folder: Path) -> None:
    """Make a folder, and what is above it, if it is not there.

    Raises:
        CannotWrite: a file is in the way, or there is no permission.
    """
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(f"{folder} cannot be made: {error.strerror or first_line(error)}") from error


def check_folder(folder: Path) -> None:
    """Say before any work whether a folder can be made and written to; nothing is made yet."""
    there = next((place for place in (folder, *folder.absolute().parents) if os.path.lexists(place)), None)
    if there is None:
        return
    if not there.is_dir():
        below = "" if there == folder else f"{there} "
        raise CannotWrite(f"{folder} cannot be written: {below or 'it '}is a file: give a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise CannotWrite(f"{folder} cannot be written: no permission to write in {there}: give another")


def write_file(path: Path, data: bytes) -> None:
    """All or nothing: a reader sees the old file or the new one.

    Raises:
        CannotWrite: there is no such folder, no permission, no space.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(partial, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, path)
    except OSError as error:
        raise CannotWrite(f"{path} cannot be written: {error.strerror or first_line(error)}") from error
    finally:
        if partial.parent.is_dir():
            partial.unlink(missing_ok=True)


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """For writers that want a path: a file of the same name in a folder of its own beside the target. When
    the block ends well, all that is in the folder takes its place, the file itself last; else all is gone.

    Raises:
        CannotWrite: there is no such folder, no permission, no space.
    """
    folder = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        folder.mkdir()
        yield folder / path.name
        for file in sorted(folder.iterdir(), key=lambda one: one.name == path.name):
            with open(file, "rb") as written:
                os.fsync(written.fileno())
            os.replace(file, path.with_name(file.name))
    except CannotWrite:
        raise
    except OSError as error:
        raise CannotWrite(f"{path} cannot be written: {error.strerror or first_line(error)}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)
