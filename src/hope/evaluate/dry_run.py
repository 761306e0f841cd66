"""Dry run: cut a copy without data and run it, to check that the model's code accepts the cuts.

A graph does not show whether `forward` takes a width from a tensor or hard-codes it. A copy with fake tensors
(shapes, no data) is cut everywhere at once and run in evaluation and in training mode. If that fails, layers
and blocks are tried in halves. What the code rejects is kept, with its error message as the reason.
"""

from __future__ import annotations

import copy
import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from hope._util.calls import Example, as_call, mode, no_copy
from hope.actions import Action, Evict, Prune, evict
from hope.errors import UnsupportedModel, first_line
from hope.reasons import Cause
from hope.rewrite.apply import reshape
from hope.structure.analyse import UnitCandidate
from hope.structure.anatomy import Anatomy
from hope.structure.units import Skipped, Unit
from hope.trace.blocks import Block, ReplaceByZero
from hope.trace.exporting import way_out

# the code's own message does not help: some shape is wrong
HEADS = " (it takes the width of its heads from the attention's input, or has it written down)"


class _Named(Protocol):
    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=_Named)


@contextmanager
def _quiet() -> Iterator[None]:
    """A failure here is a result, not an event: keep torch from reporting it."""
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    before, logger.disabled = logger.disabled, True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.disabled = before


_SHAPED = ("view", "reshape", "clone", "contiguous", "_unsafe_view", "expand", "alias", "detach", "_to_copy",
           "as_strided", "t", "transpose", "permute", "unsqueeze", "squeeze")  # fmt: skip


class _Numbers(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records which operators run, and every number they compute with: widths must not be among them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seen: list[Any] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        numbers: list[Any] = []
        if torch.Tag.pointwise in func.tags or name in ("full", "new_full", "full_like", "fill_"):
            numbers = [n for n in (*args, *(kwargs or {}).values()) if isinstance(n, (int, float))]
        elif name.startswith("lift_fresh") and isinstance(args[0], Tensor) and args[0].numel() <= 16:
            with _disable_current_modes(), suppress(RuntimeError):  # without data there is no value
                numbers = [args[0].tolist()]
        if func.namespace == "aten" and name not in _SHAPED:
            self.seen.append((name, numbers))
        return func(*args, **(kwargs or {}))


class DryRun:
    """Runs data-free copies of one model."""

    def __init__(self, model: nn.Module, example: Example | None) -> None:
        self.model = model
        self.call = as_call(example)
        self._originals: dict[bool, Any] = {}
        self._numbers: list[Any] = []  # numbers of the last run

    def original(self, training: bool) -> Any:
        """Shapes of the model's own outputs and the numbers it computes with; None if it does not run."""
        if training not in self._originals:
            try:
                self._originals[training] = (self._run(lambda _: None, training), self._numbers)
            except UnsupportedModel:
                raise
            except Exception as error:  # anything that its forward raises
                if not training:
                    raise self._unfit(error) from error
                self._originals[training] = None  # then there is nothing to compare a cut with
        return self._originals[training]

    def _unfit(self, error: Exception) -> UnsupportedModel:
        """The error if the model runs and was captured, but not on tensors without data."""
        way = way_out(self.model, *self.call)
        name = type(self.model).__name__
        return UnsupportedModel(
            f"{name} must run on tensors without data, got an error ({first_line(error)}): {way}"
        )

    def _run(self, change: Callable[[nn.Module], object], training: bool) -> Any:
        """Shapes of all outputs of a changed copy."""
        # as in export, a number that is read out of a tensor is a symbol
        symbols = ShapeEnv(allow_dynamic_output_shape_ops=False)
        fake = FakeTensorMode(allow_non_fake_inputs=True, shape_env=symbols, static_shapes=True)
        tensors = [*self.model.parameters(), *self.model.buffers()]
        memo: dict[int, Any] = {id(tensor): fake.from_tensor(tensor) for tensor in tensors}
        try:
            skeleton = copy.deepcopy(self.model, memo)
        except Exception as error:
            raise no_copy(self.model, error) from error
        with fake, _quiet(), torch.no_grad():
            change(skeleton)
            args, kwargs = pytree.tree_map_only(Tensor, fake.from_tensor, self.call)
            with mode(skeleton, training), _Numbers() as numbers:
                out = skeleton(*args, **kwargs)
            self._numbers = numbers.seen
        shapes = [leaf.shape if isinstance(leaf, Tensor) else () for leaf in pytree.tree_leaves(out)]
        return [tuple(size if isinstance(size, int) else None for size in shape) for shape in shapes]

    def failure(self, anatomy: Anatomy, actions: Sequence[Action]) -> str | None:
        """Why the model does not run after these actions; None if it does."""
        for training in (False, True):
            try:
                shapes = self._run(lambda skeleton: reshape(skeleton, anatomy, actions), training)
            except Exception as error:
                if self.original(training) is not None:
                    return _reason(error)
                continue
            numbers = self._numbers
            if not training and self.original(training) is not None:
                wanted, before = self.original(training)
                if shapes != wanted:
                    return "the outputs change their shapes"
                if numbers != before and all(action.evicts is None for action in actions):
                    return "it computes with its width as a number"
        return None

    def calls(self, paths: Sequence[str]) -> dict[str, Call]:
        """How the model calls each of these modules."""
        seen: dict[str, Call] = {}

        def watch(skeleton: nn.Module) -> None:
            for path in paths:
                skeleton.get_submodule(path).register_forward_hook(partial(note, path), with_kwargs=True)

        def note(path: str, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
            tensors = [leaf for leaf in pytree.tree_leaves([args, kwargs]) if isinstance(leaf, Tensor)]
            plain = path not in seen and len(tensors) == 1 and bool(args) and args[0] is tensors[0]
            seen[path] = Call(len(out) if isinstance(out, tuple) else 0, plain and isinstance(out, Tensor))

        self._run(watch, False)
        return seen


def _reason(error: Exception) -> str:
    """Why a model does not run without a module, in terms of the model.

    >>> _reason(AttributeError("'Empty' object has no attribute 'weight'"))
    'its code reads weight of a removed module'
    """
    found = re.fullmatch(r"'(\w+)' object has no attribute '(\w+)'", first_line(error))
    return (
        f"its code reads {found[2]} of a removed module"
        if found and hasattr(evict, found[1])
        else first_line(error)
    )


class Call(NamedTuple):
    """How a module is called."""

    returns: int  # the length of the tuple it returns, 0 if it returns no tuple
    plain: bool  # it is called once, with one tensor as the first argument, and returns one tensor


def verify(
    model: nn.Module, example: Example | None, anatomy: Anatomy, candidates: Sequence[UnitCandidate]
) -> Anatomy:
    """The anatomy with its blocks, and with a reason for everything that the model's code rejects."""
    dry_run = DryRun(model, example)
    dry_run.original(training=False)
    refused = _refused(anatomy.layers, partial(_narrowing, dry_run, anatomy))
    reasons = {
        name: Cause.FIXED_WIDTH.at(detail=words + HEADS * anatomy.unit(name).attends)
        for name, words in refused.items()
    }
    units = tuple(replace(unit, fixed=reasons.get(unit.name)) for unit in anatomy.units)
    fixed = [Skipped(unit.name, unit.neurons, unit.fixed) for unit in units if unit.fixed is not None]
    anatomy = replace(anatomy, units=units)
    blocks, stuck = _blocks(dry_run, anatomy, candidates)
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

    if not items or failure(items) is None:
        return refused
    search(items[: len(items) // 2])
    search(items[len(items) // 2 :])
    rest = [item for item in items if item.name not in refused]
    reason = failure(rest) if rest else None
    if reason is not None:  # each runs alone, but not all together: keep them all
        refused.update({item.name: reason for item in rest})
    return refused


def _narrowing(dry_run: DryRun, anatomy: Anatomy, layers: Sequence[Unit]) -> str | None:
    """Both extremes of a cut: one neuron less, and one neuron left."""
    one_less = [Prune(layer.name, layer.neurons - 1) for layer in layers]
    one_left = [Prune(layer.name, range(1, layer.neurons)) for layer in layers]
    return dry_run.failure(anatomy, one_less) or dry_run.failure(anatomy, one_left)


def _blocks(
    dry_run: DryRun, anatomy: Anatomy, candidates: Sequence[UnitCandidate]
) -> tuple[tuple[Block, ...], list[Skipped]]:
    """For every candidate the best eviction strategy that the code accepts."""
    calls = dry_run.calls(
        sorted({path for c in candidates for block in c.strategies for path in block.way.paths})
    )
    chosen: dict[str, Block] = {}
    shared = _shared_modules(dry_run.model)
    reasons = {c.name: Cause.INTERWOVEN.at() for c in candidates}
    left = []
    fixed = {unit.name: unit.fixed for unit in anatomy.units if unit.fixed is not None}
    for candidate in candidates:
        held = next(
            (fixed[name] for block in candidate.strategies for name in _cut(block) if name in fixed), None
        )
        if held is not None:
            reasons[candidate.name] = held
            continue
        choices = [
            block for block in candidate.strategies if not any(_within(p, shared) for p in block.way.paths)
        ]
        if len(choices) < len(candidate.strategies):
            reasons[candidate.name] = Cause.SHARED_MODULE.at()
        left.append((candidate.name, [b for b in (_called(block, calls) for block in choices) if b]))
    while left := [(name, choices) for name, choices in left if choices and name not in chosen]:
        tried = [choices.pop(0) for _, choices in left]
        depth = _depths(tried)
        for level in sorted(set(depth.values())):
            for some in _compatible([block for block in tried if depth[block.name] == level]):
                listed = replace(anatomy, blocks=tuple(some))
                refused = _refused(some, partial(_evicting, dry_run, listed))
                reasons |= {name: Cause.NEEDED.at(detail=words) for name, words in refused.items()}
                chosen |= {block.name: block for block in some if block.name not in refused}
    blocks = tuple(chosen[c.name] for c in candidates if c.name in chosen)
    stuck = [
        Skipped(c.name, c.channels, reasons[c.name], "block") for c in candidates if c.name not in chosen
    ]
    return tuple(
        replace(block, inside=block.inside if block.inside in chosen else None) for block in blocks
    ), stuck


def _shared_modules(model: nn.Module) -> set[str]:
    """Paths of modules that are registered in several places."""
    paths: dict[nn.Module, list[str]] = {}
    for path, module in model.named_modules(remove_duplicate=False):
        paths.setdefault(module, []).append(path)
    return {path for several in paths.values() if len(several) > 1 for path in several}


def _within(path: str, modules: set[str]) -> bool:
    """Whether a module is inside one of the given ones: changing it would change it everywhere."""
    parts = path.split(".")
    return any(".".join(parts[:depth]) in modules for depth in range(1, len(parts)))


def _evicting(dry_run: DryRun, anatomy: Anatomy, blocks: Sequence[Block]) -> str | None:
    return dry_run.failure(anatomy, [Evict(block.name) for block in blocks])


def _compatible(blocks: Sequence[Block]) -> Iterator[list[Block]]:
    """The blocks in lists that can be evicted together: one part of each concatenation is kept."""
    left = list(blocks)
    while left:
        some: list[Block] = []
        for block in left:
            names = {one.name for one in some}
            if not any(names.issuperset(others) for others in block.besides):
                some.append(block)
        yield some
        left = [block for block in left if block.name not in {one.name for one in some}]


def _cut(block: Block) -> tuple[str, ...]:
    """The units that an eviction cuts outside the branch."""
    return () if block.residual else (*block.layers, *([block.before] if block.before else []))


def _called(block: Block, calls: dict[str, Call]) -> Block | None:
    """The block with its eviction strategy adapted to how its modules are called; None if that is not
    possible.
    """
    way = block.way
    if isinstance(way, ReplaceByZero):
        if way.gives == "input" and not all(path in calls and calls[path].plain for path in way.modules):
            return None
        returns = tuple(calls[path].returns if path in calls else 0 for path in way.modules)
        return replace(block, way=msgspec.structs.replace(way, returns=returns))
    return block if way.module in calls and calls[way.module].plain else None


def _depths(blocks: Sequence[Block]) -> dict[str, int]:
    """The nesting depth of each block; blocks of one depth can be tried together."""
    known = {block.name: block for block in blocks}
    depth = {}
    for block in blocks:
        level, around = 0, block.inside
        while around is not None and around in known:
            level, around = level + 1, known[around].inside
        depth[block.name] = level
    return depth
