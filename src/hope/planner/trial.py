"""Cut a copy without data and run it: does the model's own code accept what the anatomy lists?

A graph does not show whether `forward` takes a width from a tensor or has it written down as a number. A copy
with fake tensors (shapes, no data) is cut everywhere at once and run in evaluation and in training mode; only
where that fails are the layers and blocks tried in halves, and what the code does not accept is left alone
with its own words as the reason.
"""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils import _pytree as pytree

from hope.anatomy.anatomy import Anatomy, Candidate
from hope.anatomy.blocks import Block, Silence
from hope.anatomy.graph import Example, as_call, mode
from hope.anatomy.neurons import Skipped
from hope.errors import UnsupportedModel, first_line
from hope.surgery.actions import Action, Evict, Prune
from hope.surgery.operate import operate


class _Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=_Named)


@contextmanager
def _quiet() -> Iterator[None]:
    """Failing here is an answer, not an event: keep torch from reporting it."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = before


class Trial:
    """Runs of data-free copies of one model."""

    def __init__(self, model: nn.Module, example: Example | None) -> None:
        self.model = model
        self.call = as_call(example)
        self._originals: dict[bool, Any] = {}

    def original(self, training: bool) -> Any:
        """Shapes of the model's own outputs; None if it does not run in this mode (training on one sample,
        say).
        """
        if training not in self._originals:
            try:
                self._originals[training] = self._run(lambda _: None, training)
            except UnsupportedModel:
                raise
            except Exception:  # whatever its forward raises: then there is nothing to hold a cut against
                self._originals[training] = None
        return self._originals[training]

    def _run(self, change: Callable[[nn.Module], object], training: bool) -> Any:
        """Shapes of all outputs of a changed copy."""
        with FakeTensorMode(allow_non_fake_inputs=True) as fake, _quiet(), torch.no_grad():
            tensors = [*self.model.parameters(), *self.model.buffers()]
            memo: dict[int, Any] = {id(tensor): fake.from_tensor(tensor) for tensor in tensors}
            try:
                skeleton = copy.deepcopy(self.model, memo)
            except Exception as error:
                raise UnsupportedModel(
                    f"{type(self.model).__name__} cannot be copied: {first_line(error)}"
                ) from error
            change(skeleton)
            args, kwargs = pytree.tree_map_only(Tensor, fake.from_tensor, self.call)
            with mode(skeleton, training):
                out = skeleton(*args, **kwargs)
        return pytree.tree_map(
            lambda leaf: tuple(leaf.shape) if isinstance(leaf, Tensor) else None, pytree.tree_leaves(out)
        )

    def failure(self, anatomy: Anatomy, actions: Sequence[Action]) -> str | None:
        """Why the model does not run after these actions; None if it does."""
        for training in (False, True):
            try:
                shapes = self._run(
                    lambda skeleton: operate(skeleton, anatomy, actions, arithmetic=False), training
                )
            except Exception as error:
                if self.original(training) is not None:
                    return first_line(error)
            else:
                if not training and shapes != self.original(training):
                    return "the outputs change their shapes"
        return None

    def returns(self, paths: Sequence[str]) -> dict[str, int]:
        """How many things each of these modules returns as a tuple; 0 for a tensor."""
        counts: dict[str, int] = {}

        def watch(skeleton: nn.Module) -> None:
            for path in paths:

                def note(_module: nn.Module, _args: Any, out: Any, path: str = path) -> None:
                    counts[path] = len(out) if isinstance(out, tuple) else 0

                skeleton.get_submodule(path).register_forward_hook(note)

        self._run(watch, False)
        return counts


def verify(
    model: nn.Module, example: Example | None, anatomy: Anatomy, candidates: Sequence[Candidate]
) -> Anatomy:
    """The anatomy with its blocks, less whatever the model's own code does not accept."""
    trial = Trial(model, example)
    refused = _refused(
        anatomy.layers,
        lambda some: trial.failure(anatomy, [Prune(layer.name, layer.neurons - 1) for layer in some]),
    )
    fixed = [
        Skipped(
            layer.name,
            layer.neurons,
            f"the model's code does not accept another width: {refused[layer.name]}",
        )
        for layer in anatomy.layers
        if layer.name in refused
    ]
    anatomy = replace(anatomy, layers=tuple(layer for layer in anatomy.layers if layer.name not in refused))
    blocks, stuck = _blocks(trial, anatomy, candidates)
    return replace(anatomy, blocks=blocks, skipped=(*anatomy.skipped, *fixed, *stuck))


def _refused(items: Sequence[T], failure: Callable[[Sequence[T]], str | None]) -> dict[str, str]:
    """The names of the items that fail, with the reason. One run if none does; else by halving."""
    refused: dict[str, str] = {}

    def search(some: Sequence[T]) -> None:
        reason = failure(some) if some else None
        if reason is not None and len(some) == 1:
            refused[some[0].name] = reason
        elif reason is not None:
            search(some[: len(some) // 2])
            search(some[len(some) // 2 :])

    search(items)
    rest = [item for item in items if item.name not in refused]
    reason = failure(rest) if refused and rest else None
    if reason is not None:  # each half runs, but not together: leave them all
        refused.update({item.name: reason for item in rest})
    return refused


def _blocks(
    trial: Trial, anatomy: Anatomy, candidates: Sequence[Candidate]
) -> tuple[tuple[Block, ...], list[Skipped]]:
    """For every candidate its best way out that the code accepts."""
    silenced = [
        path
        for c in candidates
        for block in c.ways
        if isinstance(block.way, Silence)
        for path in block.way.modules
    ]
    returns = trial.returns(silenced) if silenced else {}
    chosen: dict[str, Block] = {}
    reasons = {c.name: "its code is interwoven with what surrounds it" for c in candidates}
    left = [(c.name, [_returning(block, returns) for block in c.ways]) for c in candidates]
    while left := [(name, ways) for name, ways in left if ways and name not in chosen]:
        tried = [ways.pop(0) for _, ways in left]
        depth = _depths(tried)
        for level in sorted(set(depth.values())):
            some = [block for block in tried if depth[block.name] == level]
            listed = replace(anatomy, blocks=tuple(some))
            refused = _refused(some, partial(_evicting, trial, listed))
            reasons |= refused
            chosen |= {block.name: block for block in some if block.name not in refused}
    blocks = tuple(chosen[c.name] for c in candidates if c.name in chosen)
    stuck = [
        Skipped(c.name, c.channels, f"the block cannot be evicted: {reasons[c.name]}", "block")
        for c in candidates
        if c.name not in chosen
    ]
    return tuple(
        replace(block, inside=block.inside if block.inside in chosen else None) for block in blocks
    ), stuck


def _evicting(trial: Trial, anatomy: Anatomy, blocks: Sequence[Block]) -> str | None:
    return trial.failure(anatomy, [Evict(block.name) for block in blocks])


def _returning(block: Block, returns: dict[str, int]) -> Block:
    way = block.way
    if isinstance(way, Silence):
        return replace(block, way=replace(way, returns=tuple(returns.get(path, 0) for path in way.modules)))
    return block


def _depths(blocks: Sequence[Block]) -> dict[str, int]:
    """How deep each block lies within others; blocks at one depth can be tried together."""
    known = {block.name: block for block in blocks}
    depth = {}
    for block in blocks:
        level, around = 0, block.inside
        while around is not None and around in known:
            level, around = level + 1, known[around].inside
        depth[block.name] = level
    return depth
