"""Remove a block's branch from the modules, leaving its skip and, on request, a bias per channel; without a
skip nothing, or an identity.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, ClassVar

import torch
from msgspec.structs import force_setattr
from torch import Tensor, nn

from hope._util.calls import tensors_in
from hope.actions.base import Action, RewriteContext, listed
from hope.errors import InvalidAction
from hope.structure.anatomy import Anatomy
from hope.structure.removed import Removed
from hope.trace.blocks import Block, Replace, ReplaceByZero


class Evict(Action, frozen=True, array_like=True, tag="evict"):
    """Remove the branch of a block, leaving its skip and, if given, a bias per channel; of a concatenation
    the other parts, of a chain an identity.

    Attributes:
        name: the block's name.
        bias: what replaces the branch, one number per channel.

    >>> Evict("layer1.0", [0, 0.5]).bias
    (0.0, 0.5)
    """

    kind: ClassVar[str] = "evict"
    letter: ClassVar[str] = "e"
    done: ClassVar[str] = "evicted"
    plural: ClassVar[str] = "evictions"
    sentence: ClassVar[str] = "evict block {name}"
    colours: ClassVar[tuple[str, str]] = ("#8c6700", "#e0bb55")
    order: ClassVar[int] = 2

    name: str
    bias: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.bias is not None:
            force_setattr(self, "bias", tuple(float(number) for number in self.bias))

    @property
    def evicts(self) -> str | None:
        """The block."""
        return self.name

    def check(self, anatomy: Anatomy, removed: Removed, evicted: Collection[str]) -> None:
        """Refuse what cannot be done."""
        blocks = {block.name: block for block in anatomy.blocks}
        block = blocks.get(self.name)
        if block is None:
            raise InvalidAction(
                f"a block must be one of {listed(blocks)}, got {self.name!r}: print(hope.inspect(...)) "
                "lists them"
            )
        if self.name in evicted:
            raise InvalidAction(f"block {self.name} must be evicted once, got it twice: leave one out")
        if self.bias is not None and not block.bias:
            raise InvalidAction(
                f"block {self.name} must be evicted without a bias, got one: block.bias is False"
            )
        if self.bias is not None and len(self.bias) != block.channels:
            raise InvalidAction(
                f"the bias of block {self.name} must have {block.channels} numbers, got {len(self.bias)}: "
                "give one for each channel"
            )
        within = any(blocks[other].contains(block) for other in evicted)
        why = "" if within else removed.refuses(self.name)
        if why:
            raise InvalidAction(f"block {self.name} cannot be evicted: {why}")

    def replace_modules(self, model: nn.Module, context: RewriteContext) -> None:
        """Remove the branch, unless a block around it is evicted."""
        if self.name in context.evicted:
            block = context.anatomy.block(self.name)
            bias = context.evicted[self.name]
            remove_branch(model, block, bias_left(context.anatomy, block, bias, context.removed))


def bias_left(
    anatomy: Anatomy,
    block: Block,
    bias: Sequence[float] | None,
    removed: Mapping[str, Collection[int]],
) -> tuple[float, ...] | None:
    """What is left of the bias of an evicted block once channels of its stream are removed."""
    if bias is None:
        return None
    lost = lost_places(anatomy, block, removed)
    return tuple(number for place, number in enumerate(bias) if place not in lost)


def lost_places(anatomy: Anatomy, block: Block, removed: Mapping[str, Collection[int]]) -> set[int]:
    """The places of what a block's branch writes that are removed with channels of its stream."""
    lost: set[int] = set()
    for stream, part in anatomy.ends(block).items():
        lost.update(part.index[list(removed.get(stream, ()))].ravel().tolist())
    return lost


class Skip(nn.Module):
    """What is left of an evicted block: its skip, a bias if asked for, and the activation after the add.

    The children keep the names they had in the block, so that their weights keep their names in the
    `state_dict`.
    """

    def __init__(self, block: nn.Module, way: Replace, bias: Tensor | None) -> None:
        super().__init__()
        self._skip = way.skip
        self._after = () if way.positive and bias is None else way.after
        children = dict(block.named_children())
        for name in (*self._skip, *self._after):
            child = children[name] if name in children else getattr(nn, name)()
            if name in self._after and getattr(child, "inplace", False):
                child.inplace = False  # without an add in front, it would overwrite the block's input
            self.add_module(name, child)
        self.bias = nn.Parameter(bias) if bias is not None else None
        self.train(block.training)

    def forward(self, x: Tensor, *_: Any, **__: Any) -> Tensor:
        """The skip, the bias, the activation; further arguments that the block took are ignored."""
        for name in self._skip:
            x = self.get_submodule(name)(x)
        if self.bias is not None:
            x = x + self.bias
        for name in self._after:
            x = self.get_submodule(name)(x)
        return x


class ZeroOutput(nn.Module):
    """Stands for a module of an evicted branch: hands on a single zero instead of computing anything.

    Args:
        full: keep the input's shape, for code that adds to it in place.
        returns: 0 to return a tensor, n to return a tuple of n things, the first of them the tensor.
        bias: the bias that replaces the branch, shaped to broadcast; only on the last module of a branch.
        layer: of an attention, its place in a model's cache: how many tokens are past is asked of the first.
    """

    def __init__(
        self, *, full: bool, returns: int, bias: Tensor | None = None, layer: int | None = None
    ) -> None:
        super().__init__()
        self.full = full
        self.returns = returns
        self.layer = layer
        self.bias = nn.Parameter(bias) if bias is not None else None

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Zero, or the bias, whatever the input."""
        x = tensors_in((args, list(kwargs.values())))[0]
        out = torch.zeros_like(x) if self.full else x.new_zeros((1,) * x.ndim)
        if self.layer is not None and kwargs.get("key_value_states") is None:
            caches = (one for one in (*args, *kwargs.values()) if hasattr(one, "get_seq_length"))
            for cache in (getattr(one, "self_attention_cache", one) for one in caches):
                if all(hasattr(one, "update") for one in cache.layers[self.layer : self.layer + 1]):
                    none = x.new_zeros((len(x), 1, x.shape[-2], 1))
                    cache.update(none, none, self.layer)
        if self.bias is not None:
            out = out + self.bias
        return (out, *[None] * (self.returns - 1)) if self.returns else out

    def extra_repr(self) -> str:
        """For printing."""
        return "evicted"


class Empty(nn.Module):
    """Stands for a module of an evicted part of a concatenation: hands on a tensor without an entry, which
    `torch.cat` passes over.

    Args:
        returns: as for `ZeroOutput`.
    """

    def __init__(self, *, returns: int) -> None:
        super().__init__()
        self.returns = returns

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Nothing, of the type and on the device of what comes in."""
        out = tensors_in((args, kwargs))[0].new_empty(0)
        return (out, *[None] * (self.returns - 1)) if self.returns else out

    def extra_repr(self) -> str:
        """For printing."""
        return "evicted"


def remove_branch(model: nn.Module, block: Block, bias: tuple[float, ...] | None) -> None:
    """Evict a block in place."""
    way = block.way
    shaped = None
    if bias is not None:
        like = next(model.parameters())
        shape = [1] * block.ndim
        shape[block.channel_dim] = len(bias)
        shaped = torch.tensor(bias, dtype=like.dtype, device=like.device).reshape(shape)
    if isinstance(way, Replace):
        model.set_submodule(way.module, Skip(model.get_submodule(way.module), way, shaped))
        return
    assert isinstance(way, ReplaceByZero)
    returns = way.returns or (0,) * len(way.modules)
    places = [_place(model.get_submodule(module)) for module in way.modules]
    full = way.full or any(place is not None for place in places)  # a cache counts tokens
    for module, count, place in zip(way.modules, returns, places, strict=True):
        replacement: nn.Module
        if way.gives == "zero":
            last = module == way.modules[-1]
            replacement = ZeroOutput(full=full, returns=count, bias=shaped if last else None, layer=place)
        else:
            replacement = Empty(returns=count) if way.gives == "nothing" else nn.Identity()
        model.set_submodule(module, replacement.train(model.get_submodule(module).training))


def _place(module: nn.Module) -> int | None:
    """Where an attention stands in the cache of a model of transformers; None for other modules."""
    found = (getattr(one, "layer_idx", None) for one in module.modules())
    return next((place for place in found if isinstance(place, int)), None)
