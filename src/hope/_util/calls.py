"""Calls of a model: its inputs, its mode, a copy of it."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hope._util.notes import note
from hope.errors import InvalidExample, UnsupportedModel, first_line

Example: TypeAlias = "Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]"


def as_call(example: Example | None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """An example as positional and keyword arguments.

    >>> as_call({"pixel_values": 1})
    ((), {'pixel_values': 1})
    >>> as_call((1, 2))
    ((1, 2), {})
    """
    if isinstance(example, Tensor):
        return (example,), {}
    if isinstance(example, Mapping):
        cached = "use_cache" if "input_ids" in example else None  # of transformers: see `mode`
        return (), {name: one for name, one in example.items() if name != cached}
    if isinstance(example, (tuple, list)):
        return tuple(example), {}
    given = "none" if example is None else f"a {type(example).__name__}"
    raise InvalidExample(
        "the example must be a tensor, a tuple of positional inputs or a dict of keyword inputs, "
        f"got {given}: pass what the model is called with"
    )


def tensors_in(tree: Any) -> list[Tensor]:
    """The tensors among nested inputs or outputs, in their order."""
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def by_name(model: nn.Module, example: Example | None) -> dict[str, Any]:
    """An example's inputs by the parameter names of the model's forward.

    >>> by_name(nn.Linear(2, 2), (1,))
    {'input': 1}
    """
    args, kwargs = as_call(example)
    return {**dict(zip(inspect.signature(model.forward).parameters, args, strict=False)), **kwargs}


def unlabelled(model: nn.Module, batches: Iterable[Any]) -> Iterator[Any]:
    """Batches without the labels of a loader of (inputs, labels), with one note.

    A second tensor is taken as labels if the model cannot run on both, but on the first alone. The first
    batch is read immediately, which may run the model.
    """
    if isinstance(batches, Tensor):
        raise InvalidExample("calibration must be a list of batches, got one tensor: pass tensor.split(32)")
    if isinstance(batches, Mapping):
        raise InvalidExample("calibration must be a list of batches, got one dict: pass [batch]")
    if not isinstance(batches, Iterable):
        raise InvalidExample(
            f"calibration must be a list of batches, got a {type(batches).__name__}: pass [batch, …]"
        )
    rest = iter(batches)
    first = list(islice(rest, 1))
    if not first or not _labelled(model, first[0]):
        return chain(first, rest)
    note("the batches are pairs: the first of each is used as input, the second as labels")
    return (batch[:1] for batch in chain(first, rest))


def _labelled(model: nn.Module, batch: Any) -> bool:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2 or not isinstance(batch[0], Tensor):
        return False
    takes = inspect.signature(model.forward)
    try:
        takes.bind(batch[0])
    except TypeError:
        return False
    try:
        takes.bind(*batch)
    except TypeError:
        return True
    return not runs(model, tuple(batch)) and runs(model, (batch[0],))


def runs(model: nn.Module, args: tuple[Any, ...]) -> bool:
    """Whether a model runs on these inputs."""
    with evaluation(model), torch.no_grad():
        try:
            model(*args)
        except Exception:  # anything that its forward raises: the question is whether it does
            return False
    return True


@contextmanager
def mode(model: nn.Module, training: bool) -> Iterator[None]:
    """Set every module to one mode, and restore its own afterwards. Meanwhile transformers models return no
    cache: it would be among their outputs.
    """
    before = [(module, module.training) for module in model.modules()]
    every = [config for module in model.modules() for config in configs(getattr(module, "config", None))]
    caching = {id(config): config for config in every if getattr(config, "use_cache", False) is True}
    if training:
        model.train()
    else:
        for module, _ in before:
            module.training = False  # a user's `train` may do anything: ultralytics' starts a training run
    for config in caching.values():
        config.use_cache = False
    try:
        yield
    finally:
        for module, was in before:
            module.training = was
        for config in caching.values():
            config.use_cache = True


@contextmanager
def evaluation(model: nn.Module) -> Iterator[None]:
    """Run a user's model in evaluation mode and restore its buffers: a forward may count its calls, or keep
    averages, in them.
    """
    before = [
        (module, name, tensor, tensor.detach().clone())
        for module in model.modules()
        for name, tensor in module._buffers.items()
        if tensor is not None and not tensor.is_meta
    ]
    try:
        with mode(model, training=False):
            yield
    finally:
        with torch.no_grad():
            for module, name, tensor, value in before:
                module._buffers[name] = tensor
                if not torch.equal(tensor, value):
                    tensor.copy_(value)


def configs(config: Any) -> list[Any]:
    """A configuration of transformers and those inside it, such as a decoder's."""
    names = getattr(type(config), "sub_configs", None) or {}
    return [config, *(getattr(config, name, None) for name in names)]


def duplicate(model: nn.Module, shared: Iterable[Tensor] = ()) -> nn.Module:
    """A deep copy, or the reason why there can be none.

    Args:
        shared: parameters and buffers that the copy has in common with the model.
    """
    try:
        with torch.inference_mode(False):  # what is made there could not be trained
            return copy.deepcopy(model, {id(tensor): tensor for tensor in shared})
    except Exception as error:  # whatever a module's attributes raise
        raise no_copy(model, error) from error


def no_copy(model: nn.Module, error: Exception) -> UnsupportedModel:
    """The error for a model that cannot be copied."""
    return UnsupportedModel(
        f"the model must be one that copy.deepcopy copies, got {type(model).__name__} "
        f"({first_line(error)}): remove old-style weight_norm (torch.nn.utils.remove_weight_norm)"
    )
