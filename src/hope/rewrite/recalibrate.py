"""Re-estimate BN statistics on a few unlabelled inputs: what many do after pruning, as a function."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from hope._util.calls import as_call, duplicate, mode
from hope.errors import InvalidExample


def recalibrate_bn(model: nn.Module, batches: Iterable[Any]) -> nn.Module:
    """A copy of a model whose BNs' running means and variances are those of these inputs.

    Args:
        model: any model; it is not changed. Without a BN the copy is all there is.
        batches: inputs as the model takes them (a tensor, a tuple or a dict each), without labels.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        >>> fresh = hope.recalibrate_bn(net, [torch.randn(16, 3) for _ in range(4)])
        >>> bool((fresh[1].running_mean != net[1].running_mean).any())
        True
    """
    small = duplicate(model)
    bns = [
        module
        for module in small.modules()
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.track_running_stats
    ]
    before = [bn.momentum for bn in bns]
    for bn in bns:
        bn.reset_running_stats()
        bn.momentum = None  # an average over all batches
    seen = 0
    with mode(small, training=False), torch.no_grad():
        for bn in bns:
            bn.train()
        for batch in batches:
            args, kwargs = as_call(batch)
            small(*args, **kwargs)
            seen += 1
    for bn, momentum in zip(bns, before, strict=True):
        bn.momentum = momentum
    if bns and not seen:
        raise InvalidExample("batches must have at least one input for BN statistics, got none: give some")
    return small
