"""Typed records as JSON and back.

A file is one JSON object: `format` and `version` say what it is, `schema` names its JSON Schema
(`docs/schema`), `sha256` is a hash of everything else, and the rest is a record (a `msgspec.Struct`). The
version before is migrated when it is read.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np

from hope._util.digest import is_sealed, parsed, sealed
from hope._util.files import write_file
from hope.errors import DamagedFolder, first_line
from hope.trace.labels import Ids

Plain = dict[str, Any]  # a JSON object
T = TypeVar("T")


@dataclass(frozen=True)
class Format(Generic[T]):
    """A kind of file."""

    name: str  # the format, as stored in files
    what: str  # what people call what is in it
    record: type[T]  # the type of its record
    version: int  # the version that is written
    migrate: Callable[[Plain], Plain]  # makes it of the version before: a function of plain data alone
    # raises ValueError for plain data, of the version that is written, whose numbers would have more memory
    # taken than they may
    check: Callable[[Plain], None] = lambda plan: None

    @property
    def schema(self) -> str:
        """The name of the record's JSON Schema."""
        return f"{self.name}-{self.version}"


def encode(value: Any) -> Any:
    """Dataclasses, structs, enums and index arrays as JSON types. Costs may be infinite: Python's `json`
    writes them.

    >>> encode({"owner": np.array([0, 0, 1, 1])})
    {'owner': [4, 2, 2, 0, 2, 1]}
    """
    return msgspec.to_builtins(value, enc_hook=_encode)


def decode(data: Any, kind: type[T]) -> T:
    """The reverse of `encode`.

    Raises:
        msgspec.ValidationError: the data is not of that type; the message says where.
    """
    return msgspec.convert(data, kind, dec_hook=_decode)


def write_record(path: Path, form: Format[T], record: T) -> None:
    """Write a record, all or nothing."""
    plan = {"format": form.name, "version": form.version, "schema": form.schema, **encode(record)}
    write_file(path, sealed(plan))


def read_record(path: Path, form: Format[T], before: Callable[[Plain], None] = lambda plan: None) -> T:
    """Read a record of any version, and check it.

    Args:
        before: checks the plain data of any version, before they are converted.

    Raises:
        DamagedFolder: there is no such file, or it is truncated, altered, foreign, or of a newer version.
    """
    plan = _read(path, form)
    try:
        before(plan)
        plan = migrated(plan, form)
        form.check(plan)
        body = {key: value for key, value in plan.items() if key not in _ENVELOPE}
        return decode(body, form.record)
    except SENSELESS as error:
        raise damaged(path, form, error) from error


def stored_files(path: Path, form: Format[Any]) -> set[str]:
    """The files that a record of any version names by their hash; none if it cannot be read."""
    try:
        plan = _read(path, form)
    except (DamagedFolder, OSError):
        return set()
    named = [one for one in plan.values() if isinstance(one, dict) and {"file", "sha256"} <= one.keys()]
    pairs = [(str(one["file"]), str(one["sha256"])[:12]) for one in named]
    return {file for file, digest in pairs if file.endswith(f"-{digest}.safetensors")}


# what forged content raises, where it is converted or used
SENSELESS: tuple[type[Exception], ...] = (ArithmeticError, AssertionError, AttributeError, LookupError)
SENSELESS += (MemoryError, RuntimeError, TypeError, ValueError)
_ENVELOPE = ("format", "version", "schema", "sha256")


def _read(path: Path, form: Format[Any]) -> Plain:
    """The JSON object of a file, if it is of this kind, unaltered and not newer than this package."""
    if not path.is_file():
        raise DamagedFolder(
            f"{path.parent} is not a saved {form.what}, it has no {path.name}: give another folder"
        )
    try:
        plan = parsed(path.read_bytes())
    except ValueError as error:
        raise DamagedFolder(
            f"{path} is truncated or not JSON: copy the folder again, or save the {form.what} again"
        ) from error
    if plan.get("format") != form.name:
        raise DamagedFolder(f"{path} was not written by this package: give the folder of a {form.what}")
    version = plan.get("version")
    if version not in (form.version - 1, form.version):
        raise DamagedFolder(
            f"{path} has version {reprlib.repr(version)}, this package reads {form.version - 1} and "
            f"{form.version}: update the package, or save the {form.what} again"
        )
    if not is_sealed(plan):
        raise DamagedFolder(
            f"{path} was altered after it was saved: copy the folder again, or save the {form.what} again"
        )
    return plan


def migrated(plan: Plain, form: Format[Any]) -> Plain:
    """A file's content in the version that is written now."""
    if plan["version"] == form.version:
        return plan
    return {**form.migrate(plan), "version": form.version}


def damaged(path: Path, form: Format[Any], error: Exception) -> DamagedFolder:
    """The error for a complete file with invalid content."""
    kind = "" if isinstance(error, msgspec.ValidationError) else f"{type(error).__name__}: "
    said = f"{kind}{first_line(error)}"
    return DamagedFolder(f"{path} has invalid content ({said}): save the {form.what} again")


# ---- index arrays ------------------------------------------------------------------------------------------


def _encode(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return pack(value)
    if isinstance(value, np.generic):
        return value.item()
    raise TypeError(f"stored values must be arrays or numbers, got a {type(value).__name__}")


def _decode(kind: Any, data: Any) -> Any:
    assert kind == Ids, kind
    return unpack(data)


def pack(owner: Ids) -> list[Any]:
    """The owner of each position, as [size, neurons, places, start, step per neuron, step per place] if
    regular, otherwise every owner.

    >>> pack(np.array([-1, -1, -1, -1, 0, 0, 1, 1])), pack(np.array([0, 1, 1]))
    ([8, 2, 2, 4, 2, 1], [[0, 1, 1]])
    """
    first, second = (np.flatnonzero(owner == neuron) for neuron in (0, 1))
    if len(first):
        start, neurons, places = int(first[0]), int(owner.max()) + 1, len(first)
        down = int(second[0]) - start if len(second) else 0
        across = int(first[1]) - start if places > 1 else 0
        packed = [len(owner), neurons, places, start, down, across]
        with_it = _laid_out(packed)
        if with_it is not None and np.array_equal(with_it, owner):
            return packed
    return [owner.tolist()]


def unpack(packed: Any) -> Ids:
    """The reverse of `pack`.

    >>> unpack([8, 2, 2, 4, 2, 1])
    array([-1, -1, -1, -1,  0,  0,  1,  1])
    """
    checked = _checked(packed)
    if len(checked) == 1:
        return np.array(checked[0], dtype=np.int64)
    owner = _laid_out(checked)
    assert owner is not None
    return owner


def extent(packed: Any) -> tuple[int, int]:
    """The numbers of positions and of neurons in packed owners; no array is created.

    >>> extent([8, 2, 2, 4, 2, 1]), extent([[0, 1, 1]])
    ((8, 2), (3, 2))

    Raises:
        ValueError: they lead out of the tensor, or are no owners.
    """
    checked = _checked(packed)
    return (
        (len(checked[0]), max(checked[0], default=-1) + 1) if len(checked) == 1 else (checked[0], checked[1])
    )


def _checked(packed: Any) -> Any:
    """Packed owners, if valid: a list of whole numbers in a list, or six numbers that stay inside the
    tensor.
    """
    if isinstance(packed, list) and len(packed) == 1:
        return [msgspec.convert(packed[0], list[int])]
    numbers = msgspec.convert(packed, tuple[int, int, int, int, int, int])
    if not _inside(*numbers):
        raise ValueError(f"owners must be inside the tensor, got {reprlib.repr(packed)}")
    return numbers


def _inside(size: int, neurons: int, places: int, start: int, down: int, across: int) -> bool:
    """Whether owners by six numbers stay inside the tensor; a position has one owner."""
    corners = [start + down * n + across * p for n in (0, neurons - 1) for p in (0, places - 1)]
    positive = neurons > 0 and places > 0
    return positive and min(corners) >= 0 and max(corners) < size and neurons * places <= size


def _laid_out(packed: Any) -> Ids | None:
    """Owners by six numbers; None if these leave the tensor."""
    if not _inside(*packed):
        return None
    size, neurons, places, start, down, across = packed
    owner = np.full(size, -1, dtype=np.int64)
    rows = np.arange(neurons)[:, None]
    owner[start + down * rows + across * np.arange(places)[None, :]] = rows
    return owner
