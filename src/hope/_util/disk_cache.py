"""What an interrupted run has computed, on disk: values and numbers by name, so that they are computed once.

A run makes its cache current (`using`), and whatever is expensive asks for its value by name (`cached`,
`cached_number`). Without a cache the value is computed. Files that are damaged, or of another run, count as
missing.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.utils import _pytree as pytree

from hope._util.digest import is_sealed, parsed, sealed
from hope._util.files import make_folder, write_file
from hope._util.hashing import hash_inputs
from hope._util.tensor_file import write_tensor_file

SUFFIX = ".cache"  # of its files: CHECKPOINT.NAME.cache
WORTH = 0.3  # seconds: a value that takes less is computed again
SHARE = 20  # writing takes at most one part in so many of the time
INVALID = (ArithmeticError, AttributeError, LookupError, OSError, RecursionError, RuntimeError,
           SafetensorError, TypeError, ValueError)  # what reading a damaged file raises  # fmt: skip


@dataclass
class Throttle:
    """How often something is written: seldom enough for the time that it takes."""

    every: float = 0.5  # seconds, at least
    _last: float = field(default_factory=time.monotonic)
    _took: float = 0.0

    @property
    def due(self) -> bool:
        """Whether it is time to write."""
        return time.monotonic() - self._last >= max(self.every, SHARE * self._took)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """While it is written."""
        started = time.monotonic()
        yield
        self._last = time.monotonic()
        self._took = self._last - started


@dataclass
class DiskCache:
    """The values of one run.

    Attributes:
        path: its checkpoint; files are next to it.
        settings: a hash of what the run depends on; values of other settings are not used.
    """

    path: Path
    settings: str
    numbers: dict[str, float] = field(default_factory=dict)
    throttle: Throttle = field(default_factory=Throttle)

    def __post_init__(self) -> None:
        try:
            data = parsed(_file(self.path, "numbers").read_bytes())
            if is_sealed(data) and data["settings"] == self.settings:
                self.numbers = {str(name): float(value) for name, value in data["numbers"].items()}
        except INVALID:  # it is missing, or damaged
            pass

    def value(self, name: str, make: Callable[[], Any]) -> Any:
        """A value of tensors and JSON values in dicts, lists and tuples."""
        path = _file(self.path, name)
        try:
            metadata, tensors = read_tensors(path)
            if metadata["settings"] == self.settings:
                others = enumerate(json.loads(metadata["rest"]))
                leaves = [tensors[str(k)] if one is None else one[0] for k, one in others]
                return pytree.tree_unflatten(leaves, pytree.treespec_loads(metadata["form"]))
        except INVALID:  # it is missing, or damaged
            pass
        started = time.monotonic()
        made = make()
        if time.monotonic() - started >= WORTH:
            leaves, form = pytree.tree_flatten(made)
            tensors = {str(k): one for k, one in enumerate(leaves) if isinstance(one, Tensor)}
            rest = json.dumps([None if isinstance(one, Tensor) else [one] for one in leaves])
            metadata = {"settings": self.settings, "form": pytree.treespec_dumps(form), "rest": rest}
            write_tensors(path, tensors, metadata)
        return made

    def number(self, name: str, make: Callable[[], float]) -> float:
        """A number; all are in one file."""
        if name not in self.numbers:
            self.numbers[name] = make()
            if self.throttle.due:
                with self.throttle.writing():
                    data = {"settings": self.settings, "numbers": self.numbers}
                    make_folder(self.path.parent)
                    write_file(_file(self.path, "numbers"), sealed(data))
        return self.numbers[name]


_current: ContextVar[DiskCache | None] = ContextVar("cache", default=None)


@contextmanager
def using(cache: DiskCache | None) -> Iterator[None]:
    """While the body runs, `cached` and `cached_number` use this cache; none with None."""
    token = _current.set(cache)
    try:
        yield
    finally:
        _current.reset(token)


def cached(name: str, make: Callable[[], Any]) -> Any:
    """A value of the current cache, computed if it is not there.

    >>> cached("answer", lambda: {"is": 42})
    {'is': 42}
    """
    cache = _current.get()
    return make() if cache is None else cache.value(name, make)


def cached_number(name: str, make: Callable[[], float]) -> float:
    """A number of the current cache, computed if it is not there."""
    cache = _current.get()
    return make() if cache is None else cache.number(name, make)


def remove_checkpoint(path: Path) -> None:
    """A run is finished: remove its checkpoint and its cache."""
    path.unlink(missing_ok=True)
    if path.parent.is_dir():
        for file in path.parent.iterdir():
            if file.name.startswith(f"{path.name}.") and file.name.endswith(SUFFIX):
                file.unlink(missing_ok=True)


def fit_file(cache: DiskCache | None) -> Path | None:
    """Where a run notes what its refit has come to; None for one that cannot be resumed."""
    return None if cache is None else _file(cache.path, "fit")


def _file(path: Path, name: str) -> Path:
    return path.with_name(f"{path.name}.{name}{SUFFIX}")


def read_tensors(path: Path) -> tuple[dict[str, str], dict[str, Tensor]]:
    """Metadata and tensors of a file that `write_tensors` wrote.

    Raises:
        ValueError: it was altered; or another of `INVALID`.
    """
    with safe_open(str(path), framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    if metadata.pop("sha256") != _digest(tensors, metadata):
        raise ValueError(f"{path} must have the digest that it names, got another")
    return metadata, tensors


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """Write tensors and words about them, all or nothing."""
    make_folder(path.parent)
    write_tensor_file(path, tensors, {**metadata, "sha256": _digest(tensors, metadata)})


def _digest(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    words = f"{sorted(metadata.items())} {hash_inputs(sorted(tensors.items()))}"
    return hashlib.sha256(words.encode()).hexdigest()
