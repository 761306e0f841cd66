"""The inputs of the refit, as a file of tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from hope._util.calls import as_call
from hope.errors import DamagedFolder, first_line
from hope.storage.arrays import Arrays, read_arrays, write_arrays
from hope.storage.codec import SENSELESS


def write_inputs(folder: Path, inputs: Sequence[Any]) -> Arrays | None:
    """Batches of tensors, by number and argument, in lists, tuples and dicts or not; others are not saved."""
    calls = [as_call(batch) for batch in inputs]
    tensors = {
        f"{number}/{path}": value
        for number, (args, kwargs) in enumerate(calls)
        for name, argument in [*enumerate(args), *kwargs.items()]
        for path, value in _leaves(str(name), argument)
    }
    plain = tensors and all(isinstance(value, Tensor) for value in tensors.values())
    return write_arrays(folder, "inputs", tensors) if plain else None


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Tensors inside a value by their paths: "0/[1" in a list, "0/(1" in a tuple, "0/{key" in a dict."""
    marks: dict[type, str] = {list: "[", tuple: "(", dict: "{"}
    mark = marks.get(type(value))
    if mark is None or not value:
        yield path, value
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        plain = isinstance(key, int) or (isinstance(key, str) and "/" not in key)
        yield from _leaves(f"{path}/{mark}{key}", inner if plain else None)


def _nested(entries: dict[str, Any]) -> Any:
    """The value whose tensors have these paths."""
    if "" in entries:
        return entries[""]
    parts: dict[str, dict[str, Any]] = {}
    for path, tensor in entries.items():
        key, _, rest = path.partition("/")
        parts.setdefault(key, {})[rest] = tensor
    mark = next(iter(parts))[:1]
    values = {key[1:]: _nested(inner) for key, inner in parts.items()}
    if mark == "{":
        return values
    made = [values[str(k)] for k in range(len(values))]
    return made if mark == "[" else tuple(made)


def read_inputs(folder: Path, saved: Arrays | None) -> list[Any]:
    """The batches in the form that the model accepts; none if none were saved."""
    if saved is None:
        return []
    try:
        return _batches(read_arrays(folder, saved))
    except SENSELESS as error:
        raise DamagedFolder(
            f"{saved.inside(folder)} has invalid content ({first_line(error)}): save the run again"
        ) from error


def _batches(tensors: Mapping[str, Tensor]) -> list[Any]:
    found: dict[int, dict[str, dict[str, Tensor]]] = {}
    for key, tensor in tensors.items():
        number, _, path = key.partition("/")
        name, _, rest = path.partition("/")
        found.setdefault(int(number), {}).setdefault(name, {})[rest] = tensor
    batches = {number: {name: _nested(one) for name, one in some.items()} for number, some in found.items()}
    return [
        tuple(batch[str(k)] for k in range(len(batch))) if "0" in batch else batch
        for _, batch in sorted(batches.items())
    ]
