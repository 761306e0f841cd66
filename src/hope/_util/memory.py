"""How much memory may be used at once; the rest is in files."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor, nn

from hope._util.calls import duplicate
from hope.errors import UnknownMethod

GB = 10**9
PART = 4  # of the allowed memory, the divisor for a single object: a copy, or measured moments


def allowed() -> int:
    """Bytes that moments may use at once: $HOPE_MEMORY, in GB; by default half of the machine's memory."""
    given = os.environ.get("HOPE_MEMORY")
    if given is None:
        known = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", {})
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 if known else 8 * GB
    try:
        number = float(given)
    except ValueError:
        number = -1.0
    if not number >= 0:
        raise UnknownMethod(
            f"HOPE_MEMORY must be a number of gigabytes, got {given!r}: set it to 8, for example"
        )
    return round(number * GB) if number < 1e9 else 10**18


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
