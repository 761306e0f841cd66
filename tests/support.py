"""Checks that many tests share."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

import hope
from hope._util.calls import Example, as_call
from hope.rewrite.apply import outcome
from hope.structure.anatomy import Anatomy
from zoo.silence import masked, random_cut, randomise, run

__all__ = ["assert_same", "backward", "check_cut", "masked", "random_cut", "randomise", "run"]


def assert_same(got: Sequence[Tensor], want: Sequence[Tensor], tolerance: float) -> None:
    """Equal up to `tolerance` of the largest entry, and not trivially so."""
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape
        scale = b.abs().max().item()
        assert scale > 0
        assert torch.isfinite(b).all()
        error = (a - b).abs().max().item()
        assert error <= tolerance * scale, f"relative error {error / scale:.2e}"


def backward(model: nn.Module, example: Example) -> None:
    """One training step's gradients, which must reach every parameter that requires them and is used."""
    args, kwargs = as_call(example)
    model.train()
    out: Any = model(*args, **kwargs)
    loss = sum(
        leaf.float().square().sum()
        for leaf in pytree.tree_leaves(out)
        if isinstance(leaf, Tensor) and leaf.requires_grad
    )
    assert isinstance(loss, Tensor)
    loss.backward()
    assert any(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())
    assert all(p.grad is None or p.grad.shape == p.shape for p in model.parameters())


def check_cut(
    model: nn.Module,
    example: Example,
    *,
    tolerance: float,
    fraction: float = 0.3,
    seed: int = 0,
    train: bool = True,
    streams: bool = False,
) -> tuple[Anatomy, nn.Module]:
    """Inspect, cut at random, and hold the result against the masked original."""
    model.eval()
    anatomy = hope.inspect(model, example, streams=streams)
    actions = random_cut(anatomy, fraction, seed)
    small = hope.cut(model, anatomy, actions)
    assert type(small) is type(model)
    assert_same(run(small, example), run(masked(model, anatomy, actions), example), tolerance)
    counted = sum(parameter.numel() for parameter in small.parameters())
    assert counted == outcome(anatomy, actions).size(anatomy).parameters
    if actions:
        assert counted < sum(parameter.numel() for parameter in model.parameters())
    if train:
        backward(copy.deepcopy(small), example)
    return anatomy, small


def same(a: Any, b: Any) -> bool:
    """Equal field by field, arrays included."""
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if hasattr(a, "__dataclass_fields__"):
        return type(a) is type(b) and all(same(getattr(a, f), getattr(b, f)) for f in a.__dataclass_fields__)
    return not isinstance(a, Tensor) and type(a) is type(b) and a == b
