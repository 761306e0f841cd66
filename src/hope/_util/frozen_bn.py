"""Frozen batch norm: modules that are none of torch's own, keep the same statistics and compute the same, as
`FrozenBatchNorm2d` of torchvision and of detectron2 does. They are recognised by what they hold and compute.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

NUMBERS = ("weight", "bias", "running_mean", "running_var")
USUAL = 1e-5  # ε of those that have it in their code


def is_bn(module: nn.Module) -> bool:
    """Whether a module is a BN with running statistics, torch's own or a frozen one."""
    return (isinstance(module, _BatchNorm) and module.running_var is not None) or has_bn_numbers(module)


def has_bn_numbers(module: nn.Module) -> bool:
    """Whether a module that is none of torch's norms holds what a BN does, and no other module."""
    tensors = {**module._parameters, **module._buffers}
    held = [tensors.get(name) for name in NUMBERS]
    shapes = {tuple(one.shape) for one in held if one is not None and one.ndim == 1}
    plain = not isinstance(module, nn.modules.batchnorm._NormBase) and not module._modules
    return plain and all(one is not None and one.ndim == 1 for one in held) and len(shapes) == 1


def eps_of(module: nn.Module) -> float:
    """The ε of a BN."""
    return float(getattr(module, "eps", USUAL))


def normalised(module: nn.Module, x: Tensor) -> Tensor:
    """What a BN in evaluation returns."""
    weight, bias, mean, variance = (getattr(module, name) for name in NUMBERS)
    return batch_norm(x, mean, variance, weight, bias, False, 0.0, eps_of(module))


@contextmanager
def as_batch_norm(model: nn.Module) -> Iterator[None]:
    """Meanwhile frozen BNs run as torch's operator `batch_norm`: then a captured graph has that, and not what
    it is made of.
    """
    frozen = [module for module in model.modules() if _computes_bn(module)]
    before = [vars(module).get("forward") for module in frozen]
    for module in frozen:
        vars(module)["forward"] = partial(normalised, module)
    try:
        yield
    finally:
        for module, forward in zip(frozen, before, strict=True):
            vars(module).pop("forward", None)
            if forward is not None:
                vars(module)["forward"] = forward


def _computes_bn(module: nn.Module) -> bool:
    if not has_bn_numbers(module):
        return False
    variance = module.running_var
    if not isinstance(variance, Tensor) or variance.is_meta or not variance.is_floating_point():
        return False
    x = torch.randn(2, len(variance), 2, 2, generator=torch.Generator().manual_seed(0)).to(variance)
    try:
        with torch.no_grad():
            want, got = normalised(module, x), module(x)
    except Exception:  # whatever its forward raises
        return False
    return isinstance(got, Tensor) and got.shape == want.shape and torch.allclose(got, want, 1e-3, 1e-4)
