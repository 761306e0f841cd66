"""BN statistics: save and restore them, and freeze those of some channels."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from hope._util.finite import STATISTICS
from hope.deft.masks import in_head


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Copies of all running statistics, by their names in the model."""
    return {
        name: buffer.detach().clone()
        for name, buffer in model.named_buffers()
        if name.rpartition(".")[2] in STATISTICS
    }


def put_back(model: nn.Module, statistics: Mapping[str, Tensor]) -> None:
    """Write statistics into the model's buffers, in place and invisible to autograd."""
    buffers = dict(model.named_buffers())
    for name, value in statistics.items():
        buffers[name].data.copy_(value)


class Held:
    """A forward hook on a BN: some channels are normalised by fixed statistics, also in training.

    In evaluation it does nothing, because statistics do not change there.

    Args:
        frozen: (channels,) which ones.
    """

    def __init__(self, bn: nn.Module, frozen: Tensor) -> None:
        assert isinstance(bn.running_mean, Tensor)
        assert isinstance(bn.running_var, Tensor)
        self.frozen = frozen.to(bn.running_mean.device)
        self.mean, self.variance = bn.running_mean.detach().clone(), bn.running_var.detach().clone()

    def __call__(self, bn: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        """Replace the BN's output for frozen channels, and restore their statistics."""
        if not bn.training:
            return None
        assert isinstance(bn, nn.modules.batchnorm._BatchNorm)
        assert bn.running_mean is not None
        assert bn.running_var is not None
        x = inputs[0]
        if self.mean.device != x.device:
            self.frozen, self.mean, self.variance = (
                t.to(x.device) for t in (self.frozen, self.mean, self.variance)
            )
        mean, variance = self.mean.to(bn.running_mean.dtype), self.variance.to(bn.running_var.dtype)
        # through .data: autograd has recorded the statistics, but in training its formula does not read them
        bn.running_mean.data.copy_(torch.where(self.frozen, mean, bn.running_mean))
        bn.running_var.data.copy_(torch.where(self.frozen, variance, bn.running_var))
        fixed = functional.batch_norm(x, mean, variance, bn.weight, bn.bias, False, 0.0, bn.eps)
        return torch.where(self.frozen.reshape(1, -1, *[1] * (x.ndim - 2)), fixed, output)


def hold(model: nn.Module, frozen: Mapping[str, Tensor], head: str) -> None:
    """Freeze the statistics of frozen channels in every BN.

    Args:
        frozen: buffer name -> a mask that broadcasts to it.
    """
    for name, module in model.named_modules():
        key = f"{name}.running_mean" if name else "running_mean"
        if in_head(key, head) or not isinstance(module, nn.modules.batchnorm._BatchNorm):
            continue
        if isinstance(module.running_mean, Tensor):
            mask = frozen.get(key, torch.ones(1, dtype=torch.bool)).expand(module.running_mean.shape)
            if bool(mask.any()):
                module.register_forward_hook(Held(module, mask.clone()))
