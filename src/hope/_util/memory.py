"""How much memory may be used at once, and what is held in files beyond that."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from hope.errors import UnknownMethod

GB = 10**9
PART = 4  # of what is allowed, one over what a single thing takes: a copy, or moments that are measured


def allowed() -> int:
    """Bytes that moments may take at once: $HOPE_MEMORY, in GB; by default half of what the machine has."""
    given = os.environ.get("HOPE_MEMORY")
    if given is None:
        known = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {})
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 if known else 8 * GB
    try:
        number = float(given)
    except ValueError:
        number = -1.0
    if not number >= 0:
        raise UnknownMethod(f"HOPE_MEMORY={given!r} is no amount: give a number of gigabytes, like 8")
    return round(number * GB) if number < 1e9 else 10**18


def size_of(model: nn.Module) -> int:
    """Bytes of all parameters and buffers."""
    return sum(tensor.nbytes for tensor in [*model.parameters(), *model.buffers()])


def filed(tensor: Tensor) -> Tensor:
    """The same in a file that goes with it: the system decides how much of it is in memory."""
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file = str(Path(folder) / "tensor")
        held = torch.from_file(file, shared=True, size=tensor.numel(), dtype=tensor.dtype)
    return held.reshape(tensor.shape).copy_(tensor)


class Unchanged:
    """Tells whether anything was written into a model's tensors since; nothing is copied."""

    def __init__(self, model: nn.Module) -> None:
        self._tensors = [*model.parameters(), *model.buffers()]
        self._before = [tensor._version for tensor in self._tensors]

    def __bool__(self) -> bool:
        return [tensor._version for tensor in self._tensors] == self._before
