"""Carry out a list of actions on a copy of a model, whatever their kinds."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from hope._util.calls import duplicate
from hope.actions import base
from hope.actions.base import Action, Rewrite, RewriteContext
from hope.errors import InvalidAction
from hope.geometry.rounding import grid_of
from hope.rewrite import config, norms, resize
from hope.statistics.input_statistics import InputStatistics
from hope.structure.anatomy import Anatomy
from hope.structure.removed import Removed
from hope.structure.sizes import Size
from hope.trace.labels import Shape


@dataclass(frozen=True)
class Outcome:
    """What a list of steps comes to.

    Attributes:
        removed: unit -> its removed neurons, ascending.
        evicted: block -> the bias it leaves, if any; blocks within evicted ones left out.
    """

    removed: dict[str, tuple[int, ...]]
    evicted: dict[str, tuple[float, ...] | None]

    def size(self, anatomy: Anatomy) -> Size:
        """The size of the network after the steps."""
        biases = [name for name, bias in self.evicted.items() if bias is not None]
        return anatomy.size({name: len(some) for name, some in self.removed.items()}, self.evicted, biases)

    def config_fields(self, model: nn.Module, anatomy: Anatomy) -> config.Fields | None:
        """What a configuration must say after the steps; None if it cannot express them."""
        removed = {name: len(some) for name, some in self.removed.items()}
        return None if self.evicted else config.fields_after(model, anatomy, removed)


def outcome(anatomy: Anatomy, steps: Sequence[Action]) -> Outcome:
    """Check a list of steps against the anatomy and sum it up.

    Raises:
        InvalidAction: a step names what is not there, removes something twice, or empties a layer.
    """
    blocks = {block.name: block for block in anatomy.blocks}
    removed = Removed(anatomy)
    evicted: dict[str, tuple[float, ...] | None] = {}
    for step in sorted(steps, key=lambda one: one.evicts is not None):  # neurons first, then whole blocks
        step.check(anatomy, removed, evicted)
        block = None if step.evicts is None else blocks[step.evicts]
        within = block is not None and any(blocks[other].contains(block) for other in evicted)
        if block is not None:
            evicted[block.name] = None if step.bias is None else tuple(step.bias)
        if not within:
            removed.take(step)
    whole = {
        name: bias
        for name, bias in evicted.items()
        if not any(blocks[other].contains(blocks[name]) for other in evicted if other != name)
    }
    return Outcome({name: tuple(sorted(some)) for name, some in removed.neurons.items() if some}, whole)


def operate(
    model: nn.Module,
    anatomy: Anatomy,
    steps: Sequence[Action],
    *,
    input_statistics: Mapping[str, InputStatistics] | None = None,
    rewrite: Rewrite | None = None,
) -> Outcome:
    """Carry out actions on a model in place, but for what comes after a fit of the weights (see `finish`).

    Args:
        input_statistics: weight -> its input statistics, for absorptions.
        rewrite: how actions rewrite weights.
    """
    done = outcome(anatomy, steps)
    context = _context(anatomy, done, input_statistics, rewrite)
    before = Removed(anatomy)
    for step in steps:
        step.rewrite(model, context, before)
        before.take(step)
    for kind, some in _by_kind(steps).items():
        kind.rewrite_together(model, context, some)
    kept, absorbed = kept_places(anatomy, done), {step.name for step in steps if step.compensates}
    louder = norms.gains(model, anatomy, kept, absorbed, context.statistics)
    _resize(model, context, steps, kept)
    norms.scale(model, louder)  # on tensors of its own
    return done


def reshape(model: nn.Module, anatomy: Anatomy, steps: Sequence[Action]) -> Outcome:
    """Change modules and shapes only, in place, for weights that are loaded afterwards."""
    done = outcome(anatomy, steps)
    _resize(model, _context(anatomy, done, None, None), steps, kept_places(anatomy, done))
    return done


def _resize(
    model: nn.Module, context: RewriteContext, steps: Sequence[Action], kept: Mapping[tuple[str, int], Tensor]
) -> None:
    for step in steps:
        step.replace_modules(model, context)
    units = [context.anatomy.unit(name) for name in context.removed]
    heads = {(part.tensor, part.dim) for unit in units if unit.attends for part in unit.places}
    resize.keep(model, kept, heads)


def finish(
    model: nn.Module,
    anatomy: Anatomy,
    steps: Sequence[Action],
    *,
    input_statistics: Mapping[str, InputStatistics] | None = None,
    rewrite: Rewrite | None = None,
    ready: Collection[str] = (),
) -> None:
    """Do in place what actions do last, in a network that was made smaller and whose weights are final.

    Args:
        ready: rounded weights that stay as they are.
    """
    context = _context(anatomy, outcome(anatomy, steps), input_statistics, rewrite)
    left = [step for step in steps if step.weight_grid is None or step.name not in ready]
    for kind, some in _by_kind(left).items():
        kind.finish(model, context, some)


def on_grid(model: nn.Module, steps: Sequence[Action]) -> set[str]:
    """The weights that are on the grid that steps leave them on."""
    state = model.state_dict()
    grids = {step.name: step.weight_grid for step in steps if step.weight_grid and step.name in state}
    return {n for n, grid in grids.items() if grid_of(state[n].detach().cpu().flatten(1), *grid) is not None}


def _context(
    anatomy: Anatomy,
    done: Outcome,
    statistics: Mapping[str, InputStatistics] | None,
    rewrite: Rewrite | None,
) -> RewriteContext:
    return RewriteContext(anatomy, done.removed, done.evicted, statistics or {}, rewrite or Rewrite())


def _by_kind(steps: Sequence[Action]) -> dict[type[Action], list[Action]]:
    found: dict[type[Action], list[Action]] = {}
    for step in steps:
        found.setdefault(type(step), []).append(step)
    return found


def kept_places(anatomy: Anatomy, done: Outcome) -> dict[tuple[str, int], Tensor]:
    """(tensor, dimension) -> the places of it that stay, where some go; evicted blocks left out."""
    return base.kept_places(anatomy, done.removed, done.evicted)


def shapes_after(anatomy: Anatomy, steps: Sequence[Action]) -> dict[str, Shape]:
    """The shapes of all parameters and buffers after steps, by all their names, without a model. The biases
    that evicted blocks leave are not among them.
    """
    done = outcome(anatomy, steps)
    evicted = [anatomy.block(name) for name in done.evicted]
    shapes = {tensor: list(shape) for tensor, shape in anatomy.shapes.items()}
    for (tensor, dim), places in kept_places(anatomy, done).items():
        shapes[tensor][dim] = len(places)
    return {
        name: tuple(shape)
        for tensor, shape in shapes.items()
        for name in anatomy.names(tensor)
        if not any(block.removes(name) for block in evicted)
    }


def cut(
    model: nn.Module,
    anatomy: Anatomy,
    steps: Sequence[Action],
    *,
    input_statistics: Mapping[str, InputStatistics] | None = None,
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
        input_statistics: of weights, for absorptions; `encoding.input_statistics` has them.
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
    small = unfitted(model, anatomy, steps, input_statistics=input_statistics, rewrite=rewrite, shared=shared)
    finish(small, anatomy, steps, input_statistics=input_statistics, rewrite=rewrite)
    return small


def unfitted(
    model: nn.Module,
    anatomy: Anatomy,
    steps: Sequence[Action],
    *,
    input_statistics: Mapping[str, InputStatistics] | None = None,
    rewrite: Rewrite | None = None,
    shared: bool = False,
) -> nn.Module:
    """What `cut` returns without what comes after a fit of the weights (see `finish`)."""
    shapes = {
        name: tuple(tensor.shape) for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    }
    for name, shape in anatomy.shapes.items():
        if shapes.get(name) != shape:
            raise InvalidAction(
                f"the anatomy must be this model's, got {name} {shape}, here {shapes.get(name, 'missing')}: "
                "inspect this model first"
            )
    outcome(anatomy, steps)
    own = _written(anatomy, steps, input_statistics or {})
    every = [*model.named_parameters(), *model.named_buffers()]
    same = [tensor for name, tensor in every if own is not None and name not in own]
    small = duplicate(model, same)
    done = operate(small, anatomy, steps, input_statistics=input_statistics, rewrite=rewrite)
    config.rewrite(small, done.config_fields(small, anatomy))
    return small if shared or not same else duplicate(small, _apart(small, model))


def _written(
    anatomy: Anatomy, steps: Sequence[Action], statistics: Mapping[str, InputStatistics]
) -> set[str] | None:
    """The tensors that steps write into, rather than making new ones of them; None if that is not known."""
    found: set[str] = set()
    for step in steps:
        written = step.writes(anatomy, statistics)
        if written is None:
            return None
        found |= written
    return found


def _apart(small: nn.Module, model: nn.Module) -> list[Tensor]:
    """What a smaller copy has for itself."""
    theirs = {id(tensor) for tensor in [*model.parameters(), *model.buffers()]}
    return [tensor for tensor in [*small.parameters(), *small.buffers()] if id(tensor) not in theirs]
