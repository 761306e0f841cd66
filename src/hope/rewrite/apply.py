"""Carry out a list of steps on a copy of a model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from hope._util.calls import duplicate
from hope.errors import InvalidAction
from hope.methods.base import Rewrite
from hope.rewrite import absorb, config, evict, merge, norms, resize
from hope.statistics.input_statistics import InputStatistics
from hope.structure.anatomy import Anatomy
from hope.structure.removed import Removed
from hope.structure.sizes import Size
from hope.structure.steps import Absorption, Evict, Merge, Prune, Step
from hope.structure.units import Unit
from hope.trace.blocks import Block
from hope.trace.labels import Shape


@dataclass(frozen=True)
class Outcome:
    """What a list of steps comes to.

    Attributes:
        removed: unit -> its neurons that go, ascending.
        evicted: block -> the bias it leaves behind, if any; a block within an evicted one is gone with it.
    """

    removed: dict[str, tuple[int, ...]]
    evicted: dict[str, tuple[float, ...] | None]

    def size(self, anatomy: Anatomy) -> Size:
        """The size of the network after the steps."""
        biases = [name for name, bias in self.evicted.items() if bias is not None]
        return anatomy.size({name: len(gone) for name, gone in self.removed.items()}, self.evicted, biases)

    def config_fields(self, model: nn.Module, anatomy: Anatomy) -> config.Fields | None:
        """What a configuration must say after the steps; None if it cannot tell them."""
        removed = {name: len(gone) for name, gone in self.removed.items()}
        return None if self.evicted else config.fields_after(model, anatomy, removed)


def outcome(anatomy: Anatomy, steps: Sequence[Step]) -> Outcome:
    """Check a list of steps against the anatomy and sum it up.

    Raises:
        InvalidAction: a step names what is not there, removes something twice, or empties a layer.
    """
    layers = {layer.name: layer for layer in anatomy.layers}
    blocks = {block.name: block for block in anatomy.blocks}
    gone = Removed(anatomy)
    evicted: dict[str, tuple[float, ...] | None] = {}
    for step in steps:
        if not isinstance(step, Evict):
            if step.name not in layers:
                raise InvalidAction(f"there is no neuron layer {step.name!r}{_known(layers)}")
            _remove(step, layers[step.name], gone.of(step.name))
    for step in steps:
        if isinstance(step, Evict):
            _check_eviction(step, blocks, evicted)
            within = any(blocks[other].contains(blocks[step.name]) for other in evicted)
            why = "" if within else gone.refuses(step.name)
            if why:
                raise InvalidAction(f"block {step.name} cannot be evicted: {why}")
            evicted[step.name] = None if step.bias is None else tuple(step.bias)
            if not within:
                gone.take(step)
    whole = {
        name: bias
        for name, bias in evicted.items()
        if not any(blocks[other].contains(blocks[name]) for other in evicted if other != name)
    }
    return Outcome({name: tuple(sorted(dead)) for name, dead in gone.neurons.items() if dead}, whole)


def _check_eviction(step: Evict, blocks: Mapping[str, Block], evicted: Iterable[str]) -> None:
    block = blocks.get(step.name)
    if block is None:
        raise InvalidAction(f"there is no block {step.name!r} to evict{_known(blocks)}")
    if step.name in evicted:
        raise InvalidAction(f"block {step.name} is evicted twice")
    if step.bias is not None and not block.bias:
        raise InvalidAction(f"block {step.name} cannot leave a bias behind (block.bias is False)")
    if step.bias is not None and len(step.bias) != block.channels:
        raise InvalidAction(
            f"block {step.name} has {block.channels} channels, its bias {len(step.bias)} numbers"
        )


def _remove(step: Step, layer: Unit, dead: set[int]) -> None:
    """Note the neurons of a layer that a step removes."""
    if isinstance(step, Merge) and step.keep == step.drop:
        raise InvalidAction(f"layer {layer.name}: neuron {step.keep} cannot be merged with itself")
    for neuron in step.neurons:
        if not 0 <= neuron < layer.neurons:
            raise InvalidAction(f"layer {layer.name} has neurons 0 to {layer.neurons - 1}, not {neuron}")
        if neuron in dead:
            raise InvalidAction(f"neuron {neuron} of layer {layer.name} is already removed")
        if neuron in step.gone:
            dead.add(neuron)
    if len(dead) == layer.neurons:
        raise InvalidAction(
            f"layer {layer.name} would lose its last neuron; evict its block instead, or keep one"
        )


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
    steps: Sequence[Step],
    *,
    intakes: Mapping[str, InputStatistics] | None = None,
    rewrite: Rewrite | None = None,
    arithmetic: bool = True,
) -> Outcome:
    """Carry out steps on a model in place.

    Args:
        intakes: moments of what weights read, for absorptions.
        rewrite: how steps rewrite weights.
        arithmetic: False to change shapes only (merges write nothing), for weights that are loaded
            afterwards.
    """
    done, how = outcome(anatomy, steps), rewrite or Rewrite()
    if arithmetic:
        before = Removed(anatomy)
        for step in steps:
            if isinstance(step, Merge):
                merge.write_parent(model, _now(anatomy, before, step.name), step, clamp=how.clamp)
            before.take(step)
        absorb.hand_over(model, anatomy, _absorbed(anatomy, steps, done), intakes or {}, how)
    kept = kept_places(anatomy, done)
    absorbed = {step.name for step in steps if isinstance(step, Absorption)}
    louder = norms.gains(model, anatomy, kept, absorbed, intakes or {}) if arithmetic else {}
    gone = [anatomy.block(name) for name in done.evicted]
    for block in gone:
        evict.take_out(model, block, bias_left(anatomy, block, done.evicted[block.name], done.removed))
    units = [anatomy.unit(name) for name in done.removed]
    heads = {(part.tensor, part.dim) for unit in units if unit.attends for part in unit.places}
    resize.keep(model, kept, heads)
    norms.scale(model, louder)  # on tensors of its own
    return done


def bias_left(
    anatomy: Anatomy,
    block: Block,
    bias: Sequence[float] | None,
    removed: Mapping[str, Collection[int]],
) -> tuple[float, ...] | None:
    """What is left of the bias of an evicted block once channels of its stream are gone."""
    if bias is None:
        return None
    lost = lost_places(anatomy, block, removed)
    return tuple(number for place, number in enumerate(bias) if place not in lost)


def lost_places(anatomy: Anatomy, block: Block, removed: Mapping[str, Collection[int]]) -> set[int]:
    """The places of what a block's branch writes that are gone with channels of its stream."""
    lost: set[int] = set()
    for stream, part in anatomy.ends(block).items():
        lost.update(part.index[list(removed.get(stream, ()))].ravel().tolist())
    return lost


def _now(anatomy: Anatomy, gone: Removed, name: str) -> Unit:
    """A unit with the readers that it has by now: those of an evicted segment that read it."""
    unit, tied = anatomy.unit(name), gone.tied(name)
    if len(tied) == 1:
        return unit
    own = [part for part in unit.places if part.role != "in"]
    read = [part for part in anatomy.unit(tied[-1]).places if part.role == "in"]
    return replace(unit, places=(*own, *read))


def kept_places(anatomy: Anatomy, done: Outcome) -> dict[tuple[str, int], Tensor]:
    """(tensor, dimension) -> the places of it that stay, where some go; evicted blocks left out."""
    gone = [anatomy.block(name) for name in done.evicted]
    cut: dict[tuple[str, int], set[int]] = {}
    for name, neurons in done.removed.items():
        for part in anatomy.unit(name).places:
            if not any(block.removes(part.tensor) for block in gone):
                cut.setdefault((part.tensor, part.dim), set()).update(
                    part.index[list(neurons)].ravel().tolist()
                )
    return {
        (tensor, dim): torch.from_numpy(np.setdiff1d(np.arange(anatomy.shapes[tensor][dim]), list(places)))
        for (tensor, dim), places in cut.items()
    }


def shapes_after(anatomy: Anatomy, steps: Sequence[Step]) -> dict[str, Shape]:
    """The shapes of all parameters and buffers after steps, by all their names, without a model. The biases
    that evicted blocks leave are not among them.
    """
    done = outcome(anatomy, steps)
    gone = [anatomy.block(name) for name in done.evicted]
    shapes = {tensor: list(shape) for tensor, shape in anatomy.shapes.items()}
    for (tensor, dim), places in kept_places(anatomy, done).items():
        shapes[tensor][dim] = len(places)
    return {
        name: tuple(shape)
        for tensor, shape in shapes.items()
        for name in anatomy.names(tensor)
        if not any(block.removes(name) for block in gone)
    }


def _absorbed(anatomy: Anatomy, steps: Sequence[Step], done: Outcome) -> list[tuple[Unit, Sequence[int]]]:
    """Layers with their absorbed neurons, those of evicted blocks left out."""
    found: dict[str, list[int]] = {}
    for step in steps:
        if isinstance(step, Absorption):
            found.setdefault(step.name, []).extend(step.gone)
    gone = [anatomy.block(name) for name in done.evicted]
    layers = [(anatomy.unit(name), sorted(neurons)) for name, neurons in found.items()]
    return [
        (one, some)
        for one, some in layers
        if not all(any(block.removes(weight) for block in gone) for weight in one.written)
    ]


def cut(
    model: nn.Module,
    anatomy: Anatomy,
    steps: Sequence[Step],
    *,
    intakes: Mapping[str, InputStatistics] | None = None,
    rewrite: Rewrite | None = None,
    shared: bool = False,
) -> nn.Module:
    """A smaller copy of a model. The model itself is not changed.

    The copy is of the same class, with smaller layers inside: it trains, exports, moves and copies as before.
    The state of an optimizer is not carried over: make a new optimizer for the copy's parameters.

    Args:
        model: the model that was inspected.
        anatomy: what `hope.inspect` returned for it.
        steps: what to do, in order: `hope.Prune`, `hope.Merge`, `hope.Evict`.
        intakes: moments of what weights read; only absorptions need them, and `hope.encode` makes them.
        rewrite: how steps rewrite weights.
        shared: leave tensors that stay as they are in common with the model, for a copy that is only run.

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
    outcome(anatomy, steps)
    own = _written(anatomy, steps, intakes or {})
    every = [*model.named_parameters(), *model.named_buffers()]
    same = [tensor for name, tensor in every if own is not None and name not in own]
    small = duplicate(model, same)
    done = operate(small, anatomy, steps, intakes=intakes, rewrite=rewrite)
    config.rewrite(small, done.config_fields(small, anatomy))
    return small if shared or not same else duplicate(small, _apart(small, model))


def _written(
    anatomy: Anatomy, steps: Sequence[Step], intakes: Mapping[str, InputStatistics]
) -> set[str] | None:
    """The tensors that steps write into, rather than making new ones of them; None if that is not known."""
    found: set[str] = set()
    for step in steps:
        if not isinstance(step, (Absorption, Prune)):
            return None
        for reader in anatomy.unit(step.name).readers if isinstance(step, Absorption) else ():
            intake = intakes.get(reader.weight)
            if intake is None or intake.bn:
                return None
            names = [intake.weight, *([intake.bias] if intake.bias else [])]
            found.update(name for one in names for name in anatomy.names(one))
    return found


def _apart(small: nn.Module, model: nn.Module) -> list[Tensor]:
    """What a smaller copy has for itself."""
    theirs = {id(tensor) for tensor in [*model.parameters(), *model.buffers()]}
    return [tensor for tensor in [*small.parameters(), *small.buffers()] if id(tensor) not in theirs]
