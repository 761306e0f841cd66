"""How much memory may be used at once; the rest is in files."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from hope._util.calls import duplicate
from hope.errors import UnknownMethod

GB = 10**9
SCALES = {"": GB, "MB": 10**6, "GB": GB, "TB": 10**12, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
PART = 4  # of the allowed memory, the divisor for a single object: a copy, or measured moments

_given: ContextVar[int | None] = ContextVar("memory", default=None)


def amount(given: object, name: str) -> int:
    """An amount of memory in bytes; a plain number is of gigabytes.

    >>> amount("8GB", "memory"), amount(0.5, "memory"), amount("2 GiB", "memory")
    (8000000000, 500000000, 2147483648)
    """
    found = re.fullmatch(r"\s*(\d+\.?\d*(?:e[+-]?\d+)?|\.\d+)\s*([a-z]*)\s*", str(given), re.IGNORECASE)
    if found is None or found[2].upper() not in SCALES or not math.isfinite(float(found[1])):
        raise UnknownMethod(
            f"{name} must be an amount of memory, a number of gigabytes or one with its unit (MB, GB, TB), "
            f"got {given!r}: give {name}=8GB, for example"
        )
    return round(min(float(found[1]) * SCALES[found[2].upper()], 1e18))


@contextmanager
def limited(memory: str | float | None) -> Iterator[None]:
    """While the body runs, this is the ceiling of `ceiling`; none is given with None."""
    token = _given.set(amount(memory, "memory") if memory is not None else _given.get())
    try:
        yield
    finally:
        _given.reset(token)


def given_ceiling() -> int | None:
    """Bytes that the process may have: `memory=`, else $HOPE_MEMORY in GB, else None. 0 stands for as little
    as can be, whatever that is.
    """
    text = os.environ.get("HOPE_MEMORY")
    if _given.get() is not None or text is None:
        return _given.get()
    return amount(text, "HOPE_MEMORY")


def allowed() -> int:
    """Bytes that moments may use at once: half of the ceiling, by default half of the machine's memory."""
    ceiling = given_ceiling()
    return (_machine() if ceiling is None else ceiling) // 2


def available() -> int:
    """Bytes that this process has and may still get from the machine, or its container."""
    try:
        lines = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
        own = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        free = int(lines["MemAvailable"].split()[0]) * 1024 + own
    except (OSError, ValueError, KeyError):  # not Linux
        free = _machine()
    try:
        return min(free, int(Path("/sys/fs/cgroup/memory.max").read_text()))
    except (OSError, ValueError):  # there is none, or it is "max"
        return free


def _machine() -> int:
    known = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {})
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if known else 16 * GB


def size_of(model: nn.Module) -> int:
    """Bytes of all parameters and buffers."""
    return sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])


def filed(tensor: Tensor) -> Tensor:
    """The same tensor in a temporary file: the system decides how much of it is in memory."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file = str(Path(folder) / "tensor")
        held = torch.from_file(file, shared=True, size=tensor.numel(), dtype=tensor.dtype)
    return held.reshape(tensor.shape).copy_(tensor)


def share_weights(model: nn.Module) -> nn.Module:
    """A copy whose parameters and buffers share memory with the model's; converting or moving one does not
    change the other.
    """
    tensors = [*model.parameters(), *model.buffers()]
    other = duplicate(model, tensors)
    seen = {id(one): _view(one) for one in tensors}
    tables: Any = ((module._parameters, module._buffers) for module in other.modules())
    for table in (one for both in tables for one in both):
        table.update({name: seen.get(id(one), one) for name, one in table.items() if one is not None})
    return other


def _view(tensor: Tensor) -> Tensor:
    view = tensor.detach()
    return nn.Parameter(view, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else view
