"""One writer per folder: a lock that names its owner, and that the system releases when its owner dies."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hope._util.files import ANOTHER, is_alive, make_folder
from hope.errors import CannotWrite, first_line

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

LOCK, OWNER = ".hope.lock", ".hope.owner"  # the second where files cannot be locked
PATIENCE = 1.0  # seconds in which an owner that has just locked the file writes its name in it
NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP)  # of a file system without locks


@dataclass
class _FolderLock:
    """The lock of a folder in this process."""

    threads: Any = field(default_factory=threading.RLock)  # threads of this process wait for each other
    held: bool = False  # whether this process holds the file
    file: int | None = None  # descriptor of the locked file; None where the file's existence is the lock


_folders: dict[str, _FolderLock] = {}
_guard = threading.Lock()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder. The folder is created if it does not exist, and removed afterwards if it is
    empty. A thread that holds the lock may acquire it again; other threads of the process wait.

    Raises:
        CannotWrite: another process holds it; or the folder cannot be written.
    """
    path = os.path.realpath(folder)
    with _guard:
        lock = _folders.setdefault(path, _FolderLock())
    with lock.threads:
        if lock.held:
            yield
            return
        made = [one for one in (Path(path), *Path(path).parents) if not one.exists()]
        lock.file, lock.held = _acquire(folder, Path(path)), True
        try:
            yield
        finally:
            _release(Path(path), lock, made)


def _acquire(folder: Path, place: Path) -> int | None:
    """Lock the folder's file and write in it whose it is; its descriptor, None if there are no file locks."""
    path, started = place / LOCK, time.monotonic()
    while True:
        make_folder(folder)
        if fcntl is None:
            _acquire_by_existence(folder, place)
            return None
        file = None
        try:
            # a link in somebody else's folder could lead to any file of the user
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, path):
                _write_owner(file)
                held, file = file, None
                return held
        except BlockingIOError:
            assert file is not None
            owner = _read_owner(file)
            if owner or time.monotonic() - started > PATIENCE:
                raise _refusal(folder, owner) from None
            time.sleep(PATIENCE / 100)
        except FileNotFoundError:  # the previous owner has removed the empty folder
            continue
        except OSError as error:
            if error.errno in NO_LOCKS:
                _acquire_by_existence(folder, place)
                return None
            raise CannotWrite(
                f"{path} cannot be locked: {error.strerror or first_line(error)}: {ANOTHER}"
            ) from error
        finally:
            if file is not None:
                os.close(file)


def _acquire_by_existence(folder: Path, place: Path) -> None:
    """Without file locks, the process that creates a file holds the lock, as long as it runs."""
    path = place / OWNER
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            owner = _owner_at(path)
            if owner.get("host") != socket.gethostname() or is_alive(owner.get("pid")):
                raise _refusal(folder, owner, f"remove {path} if it is no longer running") from None
            path.unlink(missing_ok=True)
        except OSError as error:
            raise CannotWrite(
                f"{path} cannot be made: {error.strerror or first_line(error)}: {ANOTHER}"
            ) from error
        else:
            _write_owner(file)
            os.close(file)
            return


def _owner_at(path: Path) -> dict[str, Any]:
    try:
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    except OSError:
        return {}
    try:
        return _read_owner(file)
    finally:
        os.close(file)


def _is_at(file: int, path: Path) -> bool:
    """Whether an open file still has its name: its previous owner may have removed it."""
    try:
        return os.path.samestat(os.fstat(file), os.lstat(path))
    except FileNotFoundError:
        return False


def _release(place: Path, lock: _FolderLock, made: list[Path]) -> None:
    """Remove the file while it is locked, so that no process locks a file that is about to be removed."""
    for name in (LOCK, OWNER):
        with suppress(OSError):
            os.unlink(place / name)
    if lock.file is not None:
        os.close(lock.file)
    lock.file, lock.held = None, False
    with suppress(OSError):  # not empty
        for one in made:
            one.rmdir()


def _write_owner(file: int) -> None:
    since = time.strftime("%Y-%m-%d %H:%M:%S%z")
    owner = {"host": socket.gethostname(), "pid": os.getpid(), "since": since}
    os.ftruncate(file, 0)
    os.lseek(file, 0, os.SEEK_SET)
    os.write(file, json.dumps(owner).encode())


def _read_owner(file: int) -> dict[str, Any]:
    """The owner of a lock; "" if the file does not name it."""
    try:
        os.lseek(file, 0, os.SEEK_SET)
        owner = json.loads(os.read(file, 4096))
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _refusal(folder: Path, owner: dict[str, Any], else_: str = "stop it") -> CannotWrite:
    who = "another process"
    if {"host", "pid", "since"} <= owner.keys():
        who = f"process {owner['pid']} on {owner['host']} since {owner['since']}"
    return CannotWrite(
        f"{folder} is being written by {who}: wait until it has finished, {else_}, or give another folder"
    )


def _forget() -> None:
    """A forked process holds none of its parent's locks, and must not keep them when its parent dies."""
    global _guard
    for lock in _folders.values():
        if lock.file is not None:
            os.close(lock.file)
    _folders.clear()
    _guard = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
