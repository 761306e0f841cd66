"""What reaches the BNs of a network, compared with the statistics that they keep."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from hope._util.frozen_bn import eps_of, is_bn


@contextmanager
def observing(model: nn.Module) -> Iterator[list[tuple[nn.Module, Tensor]]]:
    """Collect what reaches the BNs that keep statistics."""
    observed: list[tuple[nn.Module, Tensor]] = []

    def observe(bn: nn.Module, args: tuple[Tensor, ...], kwargs: dict[str, Tensor]) -> None:
        observed.append((bn, args[0] if args else next(iter(kwargs.values()))))

    handles = [
        module.register_forward_pre_hook(observe, with_kwargs=True)
        for module in model.modules()
        if keeps_statistics(module)
    ]
    try:
        yield observed
    finally:
        for handle in handles:
            handle.remove()


def keeps_statistics(module: nn.Module) -> bool:
    """Whether a module is a BN with running statistics."""
    return is_bn(module)


def bn_distance(bn: nn.Module, z: Tensor) -> Tensor:
    """How far a batch is from what a BN remembers, in units of its deviations."""
    known_mean, known_variance, eps = bn.running_mean, bn.running_var, eps_of(bn)
    assert isinstance(known_mean, Tensor)
    assert isinstance(known_variance, Tensor)
    rows = z.transpose(0, 1).flatten(1)
    mean, variance = rows.mean(dim=1), rows.var(dim=1)
    wanted = known_variance + eps
    gaps = (mean - known_mean) ** 2 + (torch.sqrt(variance + eps) - torch.sqrt(wanted)) ** 2
    return (gaps / wanted).mean()
