"""What `torch.export` makes of a model, and what to do where it cannot: compress a part of it."""

from __future__ import annotations

import copy
import logging
import warnings
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from io import StringIO
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from hope._util.calls import evaluation, mode
from hope._util.frozen_bn import as_batch_norm, is_bn

PART, TRIED = 0.1, 8  # a part of a model has this share of its parameters; so many are tried


def exported(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> ExportedProgram:
    """The model as torch captures it, without a word of torch's: where it stops it prints all up to there."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), redirect_stderr(StringIO()), as_batch_norm(model):
            warnings.simplefilter("ignore")
            return torch.export.export(model, args, kwargs, strict=False)
    finally:
        logging.disable(before)


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Export leaves tensors without data where a forward keeps something in the model, such as a buffer, a
    loss, or a layer that it makes when it first runs: take them out again, also out of dicts and lists.
    """
    before = [(module, dict(vars(module))) for module in model.modules()]
    inside = [
        (one, copy.copy(one))
        for _, held in before
        for one in held.values()
        if type(one) in (dict, OrderedDict, list)
    ]
    try:
        yield
    finally:
        for module, held in before:
            vars(module).clear()
            vars(module).update(held)
        for one, entries in inside:
            one.clear()
            one.extend(entries) if isinstance(one, list) else one.update(entries)


def unsized(program: ExportedProgram) -> str | None:
    """The first operator the size of whose result depends on data; None if there is none."""
    for node in program.graph.nodes:
        value = node.meta.get("val")
        known = not isinstance(value, Tensor) or all(isinstance(size, int) for size in value.shape)
        if not known and torch.Tag.dynamic_output_shape in getattr(node.target, "tags", ()):
            return str(node.target.overloadpacket.__name__)
    return None


def way_out(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What to do with a model that cannot be captured, or does not run on tensors without data."""
    if any(name.endswith("down_proj") and tensor.ndim == 3 for name, tensor in model.named_parameters()):
        return (
            "a mixture of experts can as hope.unstack_experts(model), or if that leaves it as it is "
            'after model.set_experts_implementation("batched_mm")'
        )
    part = _part(model, args, kwargs)
    if part is None:
        return "pass the sub-module that does the work"
    path, shapes = part
    return (
        f"compress the part that can be captured in place, model.{path} = hope.encode(model.{path}, x, "
        f"...).model, where x is what it receives ({shapes})"
    )


def _part(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str, str] | None:
    """The largest module inside that is run once and can be captured on what it receives, and the shapes of
    that; None if none of the first few can, or has layers enough to be compressed. Modules with batch norm
    come first: they are compressed without data.
    """
    sizes = {name: sum(p.numel() for p in one.parameters()) for name, one in model.named_modules()}
    large = [
        name
        for name, one in model.named_modules()
        if name and sizes[name] >= PART * sizes[""] and sum(p.ndim > 1 for p in one.parameters()) > 1
    ]
    calls: dict[str, list[tuple[Any, Any]]] = {name: [] for name in large}
    handles = [
        model.get_submodule(name).register_forward_pre_hook(
            lambda _, given, named, name=name: calls[name].append((given, named)), with_kwargs=True
        )
        for name in large
    ]
    try:
        with evaluation(model), unchanged(model), torch.no_grad():
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    once = [name for name in large if len(calls[name]) == 1]
    plain = {name: not any(map(is_bn, model.get_submodule(name).modules())) for name in once}
    for name in sorted(once, key=lambda name: (plain[name], -sizes[name], name))[:TRIED]:
        given, named = calls[name][0]
        one = model.get_submodule(name)
        with suppress(Exception), mode(one, training=False), unchanged(one):
            if unsized(exported(one, given, named)) is None:
                return name, shapes_of(given, named)
    return None


def shapes_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """What a module receives, in words."""

    def one(value: Any) -> str:
        return "x".join(map(str, value.shape)) if isinstance(value, Tensor) else type(value).__name__

    return (
        ", ".join([*map(one, args), *(f"{key}={one(value)}" for key, value in kwargs.items())]) or "no inputs"
    )
