"""Check that weights and statistics are finite, before any work."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import Tensor

from hope.errors import HopeError

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # of a BN
WAY = "load a checkpoint without them"


def check_finite(tensors: Mapping[str, Tensor], parameters: Collection[str], error: type[HopeError]) -> None:
    """Refuse weights and BN statistics that are NaN or infinite, and negative variances.

    Other buffers may have any values, such as a mask of −∞.

    Args:
        tensors: a model's parameters and buffers.
    """
    for name, tensor in tensors.items():
        last = name.rpartition(".")[2]
        if name not in parameters and last not in STATISTICS:
            continue
        if not bool(tensor.detach().isfinite().all()):
            raise error(f"{name} must be finite, got NaN or infinite entries: {WAY}")
        if last == "running_var" and bool((tensor < 0).any()):
            raise error(f"{name} must not be negative, got negative entries: {WAY}")
