"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hope.errors import CannotWrite, first_line


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
