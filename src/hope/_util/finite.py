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
    bad = not_finite(tensors, parameters)
    if bad is not None:
        raise error(f"{bad} must be finite, got NaN or infinite entries: {WAY}")
    for name, tensor in tensors.items():
        if name.rpartition(".")[2] == "running_var" and bool((tensor < 0).any()):
            raise error(f"{name} must not be negative, got negative entries: {WAY}")


def not_finite(tensors: Mapping[str, Tensor], parameters: Collection[str]) -> str | None:
    """The first parameter or BN statistic with entries that are NaN or infinite; None if there is none."""
    for name, tensor in tensors.items():
        known = name in parameters or name.rpartition(".")[2] in STATISTICS
        if known and not bool(tensor.detach().isfinite().all()):
            return name
    return None
