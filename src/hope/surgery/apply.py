"""Carry out a list of actions on a copy of a model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from hope._util.calls import duplicate
from hope.anatomy.anatomy import Anatomy, Size
from hope.anatomy.steps import Absorb, Action, Evict, Merge, Prune
from hope.anatomy.units import NeuronLayer
from hope.errors import InvalidAction
from hope.methods.state import View
from hope.surgery import absorb, evict, merge
from hope.surgery import resize as slice


@dataclass(frozen=True)
class Outcome:
    """What a list of actions comes to.

    Attributes:
        removed: layer -> its neurons that go, ascending.
        evicted: block -> the bias it leaves behind, if any; a block within an evicted one is gone with it.
    """

    removed: dict[str, tuple[int, ...]]
    evicted: dict[str, tuple[float, ...] | None]

    def size(self, anatomy: Anatomy) -> Size:
        """The size of the network after the actions."""
        biases = [name for name, bias in self.evicted.items() if bias is not None]
        return anatomy.size({name: len(gone) for name, gone in self.removed.items()}, self.evicted, biases)


def outcome(anatomy: Anatomy, actions: Sequence[Action]) -> Outcome:
    """Check a list of actions against the anatomy and sum it up.

    Raises:
        InvalidAction: an action names what is not there, removes something twice, or empties a layer.
    """
    layers = {layer.name: layer for layer in anatomy.layers}
    blocks = {block.name: block for block in anatomy.blocks}
    gone: dict[str, set[int]] = {}
    evicted: dict[str, tuple[float, ...] | None] = {}
    for action in actions:
        if isinstance(action, Evict):
            block = blocks.get(action.block)
            if block is None:
                raise InvalidAction(f"there is no block {action.block!r} to evict{_known(blocks)}")
            if action.block in evicted:
                raise InvalidAction(f"block {action.block} is evicted twice")
            if action.bias is not None and not block.bias:
                raise InvalidAction(f"block {action.block} cannot leave a bias behind (block.bias is False)")
            if action.bias is not None and len(action.bias) != block.channels:
                raise InvalidAction(
                    f"block {action.block} has {block.channels} channels, its bias {len(action.bias)} numbers"
                )
            evicted[action.block] = action.bias
            continue
        layer = layers.get(action.layer)
        if layer is None:
            raise InvalidAction(f"there is no neuron layer {action.layer!r}{_known(layers)}")
        dead = gone.setdefault(action.layer, set())
        named = action.neurons if isinstance(action, Prune) else (action.keep, action.drop)
        for neuron in named:
            if not 0 <= neuron < layer.neurons:
                raise InvalidAction(f"layer {layer.name} has neurons 0 to {layer.neurons - 1}, not {neuron}")
            if neuron in dead:
                raise InvalidAction(f"neuron {neuron} of layer {layer.name} is already removed")
            if isinstance(action, Prune):
                dead.add(neuron)
        if isinstance(action, Merge):
            if action.keep == action.drop:
                raise InvalidAction(f"layer {layer.name}: neuron {action.keep} cannot be merged with itself")
            dead.add(action.drop)
        if len(dead) == layer.neurons:
            raise InvalidAction(
                f"layer {layer.name} would lose its last neuron; evict its block instead, or keep one"
            )
    whole = {
        name: bias
        for name, bias in evicted.items()
        if not any(blocks[o].removes(blocks[name].place) for o in evicted if o != name)
    }
    return Outcome({name: tuple(sorted(dead)) for name, dead in gone.items() if dead}, whole)


def _known(names: Iterable[str]) -> str:
    known = list(names)
    return (
        f"; there are {', '.join(known[:5])}{', …' if len(known) > 5 else ''}"
        if known
        else "; the anatomy lists none"
    )


def operate(
    model: nn.Module,
    anatomy: Anatomy,
    actions: Sequence[Action],
    *,
    views: Mapping[str, View] | None = None,
    arithmetic: bool = True,
) -> Outcome:
    """Carry out actions on a model in place.

    Args:
        views: moments of what weights read, for absorptions.
        arithmetic: False to change shapes only (merges write nothing), for weights that are loaded
            afterwards.
    """
    done = outcome(anatomy, actions)
    if arithmetic:
        for action in actions:
            if isinstance(action, Merge):
                merge.apply(model, anatomy.layer(action.layer), action)
        absorb.apply(model, _absorbed(anatomy, actions, done), views or {})
    gone = [anatomy.block(name) for name in done.evicted]
    for block in gone:
        evict.apply(model, block, done.evicted[block.name])
    cut: dict[tuple[str, int], set[int]] = {}
    for name, neurons in done.removed.items():
        for part in anatomy.layer(name).slices:
            if not any(block.removes(part.tensor) for block in gone):
                cut.setdefault((part.tensor, part.dim), set()).update(
                    part.index[list(neurons)].ravel().tolist()
                )
    kept = {
        (tensor, dim): torch.from_numpy(np.setdiff1d(np.arange(anatomy.shapes[tensor][dim]), list(places)))
        for (tensor, dim), places in cut.items()
    }
    slice.keep(model, kept)
    return done


def _absorbed(
    anatomy: Anatomy, actions: Sequence[Action], done: Outcome
) -> list[tuple[NeuronLayer, Sequence[int]]]:
    """Layers with their absorbed neurons, those of evicted blocks left out."""
    found: dict[str, list[int]] = {}
    for action in actions:
        if isinstance(action, Absorb):
            found.setdefault(action.layer, []).extend(action.neurons)
    gone = [anatomy.block(name) for name in done.evicted]
    layers = [(anatomy.layer(name), sorted(neurons)) for name, neurons in found.items()]
    return [(one, some) for one, some in layers if not any(block.removes(one.weight) for block in gone)]


def cut(
    model: nn.Module,
    anatomy: Anatomy,
    actions: Sequence[Action],
    *,
    views: Mapping[str, View] | None = None,
) -> nn.Module:
    """A smaller copy of a model. The model itself is not changed.

    The copy is of the same class, with smaller layers inside: it trains, exports, moves and copies as before.
    The state of an optimizer is not carried over: make a new optimizer for the copy's parameters.

    Args:
        model: the model that was inspected.
        anatomy: what `hope.inspect` returned for it.
        actions: what to do, in order.
        views: moments of what weights read; only `Absorb` needs them, and `hope.encode` makes them.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> anatomy = hope.inspect(net, torch.zeros(1, 4))
        >>> hope.cut(net, anatomy, [hope.Prune("0", [5, 6, 7])])
        Sequential(
          (0): Linear(in_features=4, out_features=5, bias=True)
          (1): ReLU()
          (2): Linear(in_features=5, out_features=2, bias=True)
        )
    """
    shapes = {
        name: tuple(tensor.shape) for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    }
    for name, shape in anatomy.shapes.items():
        if shapes.get(name) != shape:
            raise InvalidAction(
                f"the anatomy is not this model's: {name} is {shapes.get(name, 'missing')}, not {shape}; "
                "inspect this model first"
            )
    outcome(anatomy, actions)
    small = duplicate(model)
    operate(small, anatomy, actions, views=views)
    return small
