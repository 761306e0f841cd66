"""Replace two neurons by a parent: linear recipes on live weights."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import replace
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor, nn

from hope._util.frozen_bn import NUMBERS, eps_of
from hope._util.tensors import get, owner
from hope.actions.base import Action, RewriteContext
from hope.errors import InvalidAction
from hope.structure.anatomy import Anatomy
from hope.structure.removed import Removed
from hope.structure.units import Unit


class Merge(Action, frozen=True, array_like=True, tag="merge"):
    """Replace two neurons of a unit by one parent, a linear recipe over both as they are at that moment.

    In effective coordinates (BN folded into the filter, `y = w·x + b`) the parent's input side is
    `rows[0]·(w, b)_keep + rows[1]·(w, b)_drop`, and its outgoing weights are `outs[0]·out_keep +
    outs[1]·out_drop`. With a BN, the mean of the parent's signal follows by the same recipe, and `spread` is
    its deviation; the parent's BN numbers are then σ² = spread², γ = √(spread² + ε), so that any spread ≥ 0
    gives exactly the signal asked for.

    Attributes:
        name: the unit's name.
        keep: the neuron whose place the parent takes.
        drop: the neuron that is removed.
        rows: how the parent's input side is made of both.
        outs: how the parent's outgoing weights are made of both.
        spread: deviation of the parent's signal before the activation; needed with a BN, ignored without.
        distortion: δ, how far the parent is from what it stands for.

    >>> Merge("layer1.0.conv1", keep=1, drop=3, rows=(0.5, 0.5), outs=(1.0, 1.0), spread=0.9).removed
    (3,)
    """

    kind: ClassVar[str] = "merge"
    letter: ClassVar[str] = "m"
    done: ClassVar[str] = "merged"
    plural: ClassVar[str] = "merges"
    sentence: ClassVar[str] = "merge {neurons} into {parent} in {name}"
    colours: ClassVar[tuple[str, str]] = ("#2f6fc4", "#74aaf2")
    order: ClassVar[int] = 1

    name: str
    keep: int
    drop: int
    rows: tuple[float, float]
    outs: tuple[float, float]
    spread: float | None = None
    distortion: float = 0.0

    @property
    def removed(self) -> tuple[int, ...]:
        """The neuron that is removed."""
        return (self.drop,)

    @property
    def neurons(self) -> tuple[int, ...]:
        """The neuron that is kept as the parent, and the one that is removed."""
        return (self.keep, self.drop)

    @property
    def parent(self) -> int | None:
        """The neuron whose place the parent takes."""
        return self.keep

    def check(self, anatomy: Anatomy, removed: Removed, evicted: Collection[str]) -> None:
        """Refuse what cannot be done."""
        if self.keep == self.drop and any(layer.name == self.name for layer in anatomy.layers):
            raise InvalidAction(f"{self.name}: merged neurons must be two, got {self.keep} twice: prune one")
        super().check(anatomy, removed, evicted)

    def rewrite(self, model: nn.Module, context: RewriteContext, before: Removed) -> None:
        """Write the parent, of the two as they are now."""
        layer = _now(context.anatomy, before, self.name)
        write_parent(model, layer, self, clamp=context.rewrite.clamp)


def _now(anatomy: Anatomy, removed: Removed, name: str) -> Unit:
    """A unit with the readers that it has by now: those of an evicted segment that read it."""
    unit, tied = anatomy.unit(name), removed.tied(name)
    if len(tied) == 1:
        return unit
    own = [part for part in unit.places if part.role != "in"]
    read = [part for part in anatomy.unit(tied[-1]).places if part.role == "in"]
    return replace(unit, places=(*own, *read))


def check(action: Merge, layer: Unit, model: nn.Module) -> None:
    """Refuse merges that no parent could stand for."""
    where = f"{layer.name}: neurons {action.keep} and {action.drop} cannot be merged"
    if layer.along or layer.channels != 1:
        raise InvalidAction(
            f"{where}: a merged neuron must be on its own, got "
            f"{', '.join(layer.along) or 'several channels'} that would merge too: prune one"
        )
    paths = [consumer.path for consumer in layer.readers]
    norms = {step.name for path in paths for step in path if step.kind in ("bn", "norm")}
    if len(norms) > 1 or any(step.kind == "norm" for path in paths for step in path):
        raise InvalidAction(
            f"{where}: its readers must read it through one BN or none, got {len(norms)} norms: prune one"
        )
    if layer.bn is not None:
        if any(path[0].kind != "bn" for path in paths):
            raise InvalidAction(
                f"{where}: {layer.bn} must follow the filter directly, got something between them: prune one"
            )
        norm = model.get_submodule(layer.bn)
        if getattr(norm, "weight", None) is None or getattr(norm, "running_var", None) is None:
            raise InvalidAction(
                f"{where}: {layer.bn} must have a scale and statistics to write the parent into, got none: "
                "prune one"
            )
        if action.spread is None or action.spread < 0:
            raise InvalidAction(
                f"{where}: spread must be at least 0 before a BN ({layer.bn}), got {action.spread}: give 0"
            )
    for part in layer.places:
        module, _ = owner(model, part.tensor)
        if isinstance(module, nn.PReLU):
            slopes = get(model, part.tensor)[torch.from_numpy(part.index[[action.keep, action.drop], 0])]
            if slopes[0] != slopes[1]:
                raise InvalidAction(
                    f"{where}: their slopes in {part.tensor} must be equal, got different ones: prune one"
                )


@torch.no_grad()
def write_parent(model: nn.Module, layer: Unit, action: Merge, *, clamp: bool = False) -> None:
    """Write the parent into the place of `keep`, in place. `drop` is left for the slicing to remove.

    Args:
        clamp: give it the BN numbers that the paper prints (see `Rewrite.clamp`).
    """
    check(action, layer, model)
    i, j = action.keep, action.drop
    own = next(part for part in layer.places if part.role == "out")
    weight = get(model, own.tensor)
    at = [int(own.index[n, 0]) for n in (i, j)]
    rows = [weight.select(own.dim, place).double() for place in at]
    module, attribute = owner(model, own.tensor)
    bias = getattr(module, "bias", None) if attribute == "weight" else None
    shifts = [
        bias[place].double() if isinstance(bias, Tensor) else weight.new_zeros((), dtype=torch.float64)
        for place in at
    ]
    if layer.bn is None:
        _write(weight, own.dim, at[0], _mix(action.rows, rows))
        shift = _mix(action.rows, shifts)
        if isinstance(bias, Tensor):
            bias[at[0]] = shift.to(bias.dtype)
    else:
        _through_bn(
            model.get_submodule(layer.bn),
            action,
            rows,
            shifts,
            [int(_bn_places(layer)[n]) for n in (i, j)],
            partial(_write, weight, own.dim, at[0]),
            clamp,
        )
        if isinstance(bias, Tensor):
            bias[at[0]] = 0
    for part in layer.places:
        if part.role == "in":
            tensor = get(model, part.tensor)
            outs = [
                tensor.index_select(part.dim, torch.from_numpy(part.index[n]).to(tensor.device)).double()
                for n in (i, j)
            ]
            tensor.index_copy_(
                part.dim,
                torch.from_numpy(part.index[i]).to(tensor.device),
                _mix(action.outs, outs).to(tensor.dtype),
            )


def _bn_places(layer: Unit) -> Tensor:
    part = next(part for part in layer.places if part.tensor == f"{layer.bn}.running_var")
    return torch.from_numpy(part.index[:, 0])


def _through_bn(
    bn: nn.Module,
    action: Merge,
    rows: list[Tensor],
    shifts: list[Tensor],
    places: list[int],
    write: Callable[[Tensor], None],
    clamp: bool,
) -> None:
    """The parent's filter and BN numbers, so that its signal has the mean β and the deviation s asked for.

    w_raw = w_eff, σ² = s², γ = √(s² + ε), μ = β − b. As the paper prints them (`clamp`): γ = s,
    σ² = max(0, s² − ε), and below the clamp no filter at all: the signal is then the constant β.
    """
    eps, numbers = eps_of(bn), [getattr(bn, name) for name in NUMBERS]
    weight, bias, mean, variance = (one for one in numbers if isinstance(one, Tensor))
    gain = [weight[p].double() / torch.sqrt(variance[p].double() + eps) for p in places]
    means = [bias[p].double() for p in places]
    effective = [g * row for g, row in zip(gain, rows, strict=True)]
    offsets = [b - g * (mean[p].double() - s) for b, g, p, s in zip(means, gain, places, shifts, strict=True)]
    beta, b = _mix(action.rows, means), _mix(action.rows, offsets)
    square = float(action.spread or 0.0) ** 2
    still = clamp and square < eps
    filters = _mix(action.rows, effective)
    write(torch.zeros_like(filters) if still else filters)
    p = places[0]
    variance[p] = max(0.0, square - eps) if clamp else square
    weight[p] = square**0.5 if clamp else (square + eps) ** 0.5
    bias[p] = beta.to(bias.dtype)
    mean[p] = 0.0 if still else (beta - b).to(mean.dtype)


def _mix(recipe: tuple[float, float], both: list[Tensor]) -> Tensor:
    return recipe[0] * both[0] + recipe[1] * both[1]


def _write(tensor: Tensor, dim: int, place: int, value: Tensor) -> None:
    tensor.select(dim, place).copy_(value.to(tensor.dtype))
