"""Files that appear whole or not at all."""

from __future__ import annotations

import os
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
