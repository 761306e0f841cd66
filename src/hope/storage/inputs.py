"""The inputs of the refit, as a file of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from hope._util.calls import as_call
from hope.storage.arrays import Arrays, read_arrays, write_arrays


def write_inputs(folder: Path, inputs: Sequence[Any]) -> Arrays | None:
    """Batches of tensors, by number and argument; others are not saved."""
    calls = [as_call(batch) for batch in inputs]
    tensors = {
        f"{number}/{name}": value
        for number, (args, kwargs) in enumerate(calls)
        for name, value in [*enumerate(args), *kwargs.items()]
    }
    plain = tensors and all(isinstance(value, Tensor) for value in tensors.values())
    return write_arrays(folder, "inputs", tensors) if plain else None


def read_inputs(folder: Path, saved: Arrays | None) -> list[Any]:
    """The batches in the form that the model accepts; none if none were saved."""
    tensors = read_arrays(folder, saved) if saved is not None else {}
    batches: dict[int, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        number, _, name = key.partition("/")
        batches.setdefault(int(number), {})[name] = tensor
    return [
        tuple(batch[str(k)] for k in range(len(batch))) if "0" in batch else batch
        for _, batch in sorted(batches.items())
    ]
