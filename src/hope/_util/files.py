"""Files that are written completely or not at all."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import shutil
import socket
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hope.errors import CannotWrite, first_line

# .NAME.PID.HOST-TOKEN.part: while it is written
PART = re.compile(r"\.(?P<name>.+)\.(?P<pid>[0-9]+)\.(?P<host>[0-9a-f]{8})-[0-9a-f]{8}\.part")
ANOTHER = "give a path that can be written to"
_being_written: set[str] = set()  # by this process


def make_folder(folder: Path) -> None:
    """Make a folder, and what is above it, if it is not there."""
    check_folder(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(
            f"{folder} cannot be made: {error.strerror or first_line(error)}: {ANOTHER}"
        ) from error


def check_folder(folder: Path) -> None:
    """Check before any work that a folder can be created and written to; nothing is created yet."""
    there = next((place for place in (folder, *folder.absolute().parents) if os.path.lexists(place)), None)
    if there is None:
        return
    if not there.is_dir():
        below = "" if there == folder else f"{there} "
        raise CannotWrite(f"{folder} cannot be written: {below or 'it '}is a file: give a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise CannotWrite(f"{folder} cannot be written: no permission to write in {there}: give another")


def write_file(path: Path, data: bytes | Iterable[bytes]) -> None:
    """All or nothing: a reader sees the old file or the new one. Data may come in parts."""
    with _partial(path) as partial:
        try:
            with open(partial, "wb") as file:
                file.writelines([data] if isinstance(data, bytes) else data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, path)
        except OSError as error:
            raise CannotWrite(
                f"{path} cannot be written: {error.strerror or first_line(error)}: {ANOTHER}"
            ) from error
        finally:
            if partial.parent.is_dir():
                partial.unlink(missing_ok=True)


@contextmanager
def staged(path: Path) -> Iterator[Path]:
    """For writers that need a path: a file of the same name in a separate folder next to the target. If the
    block succeeds, everything in the folder replaces the target, the file last; otherwise it is removed.
    """
    with _partial(path) as folder:
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
            raise CannotWrite(
                f"{path} cannot be written: {error.strerror or first_line(error)}: {ANOTHER}"
            ) from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """A unique path next to the target that names its writer."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.{_host()}-{secrets.token_hex(4)}.part")
    _being_written.add(partial.name)
    try:
        yield partial
    finally:
        _being_written.discard(partial.name)


def remove_leftovers(folder: Path, is_locked: Callable[[str], bool]) -> None:
    """Remove partial files and folders of killed writers. Those of a writer that may still run are kept: a
    running process of this machine, or any process of another.

    Args:
        is_locked: whether files of that name are written only under a lock that the caller holds, so that
            no other writer of them is running.
    """
    for path in folder.iterdir():
        found = PART.fullmatch(path.name)
        if not found or path.name in _being_written:
            continue
        pid, here = int(found["pid"]), found["host"] == _host()
        if is_locked(found["name"]) or (here and (pid == os.getpid() or not is_alive(pid))):
            with suppress(OSError):
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()


def is_alive(pid: object) -> bool:
    """Whether this machine has such a process; True if that is unknown."""
    if type(pid) is not int or pid <= 0 or sys.platform == "win32":  # there, os.kill would end it
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


def _host() -> str:
    """This machine, in a few letters that a file name can contain."""
    return hashlib.sha256(socket.gethostname().encode()).hexdigest()[:8]
