"""Round a weight to a few bits: its entries stay in the model's type, on a grid that is stored packed."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from hope._util.tensors import get
from hope.actions.base import Action, RewriteContext, listed
from hope.errors import InvalidAction
from hope.geometry.rounding import (
    BITS,
    SIGNIFICANT,
    ColumnMoments,
    nearest,
    scales,
    significant_bits,
    with_feedback,
)
from hope.statistics.input_statistics import InputStatistics
from hope.structure.anatomy import Anatomy
from hope.structure.removed import Removed
from hope.structure.sizes import USUAL


class Quantise(Action, frozen=True, array_like=True, tag="quantise"):
    """Round a weight to a grid of a few bits, symmetric, one scale per output or per group of inputs.

    Rounding errors are fed back under the input statistics of the weight, and the bias or the BN after it
    compensates for the mean of what remains. It comes last: pruned and refitted weights are rounded.

    Attributes:
        name: the weight.
        bits: 2, 3, 4, 5, 6 or 8.
        group: inputs that share a scale; 0 for all of an output.
        rounding: "feedback", or "nearest".

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> anatomy = hope.inspect(net, torch.zeros(1, 4))
        >>> small = hope.cut(net, anatomy, [hope.Quantise("0.weight", 2)])
        >>> [len(row.unique()) <= 3 for row in small[0].weight[:2]]
        [True, True]
    """

    kind: ClassVar[str] = "quantise"
    letter: ClassVar[str] = "q"
    done: ClassVar[str] = "quantised"
    plural: ClassVar[str] = "quantisations"
    sentence: ClassVar[str] = "round {name} to {bits} bits"
    colours: ClassVar[tuple[str, str]] = ("#2d7d9a", "#7cc4de")
    order: ClassVar[int] = 3

    name: str
    bits: int
    group: int = 0
    rounding: str = "feedback"

    @property
    def weight_grid(self) -> tuple[int, int] | None:
        """Its bits and group."""
        return self.bits, self.group

    def entry_bits(self, anatomy: Anatomy) -> Mapping[str, float]:
        """Its bits."""
        return {self.name: self.bits}

    def scale_bits(self, anatomy: Anatomy) -> Mapping[str, tuple[float, int]]:
        """A scale for each group of an output, in the model's own type."""
        return {self.name: (8 * anatomy.itemsize.get(self.name, USUAL), self.group)}

    def check(self, anatomy: Anatomy, removed: Removed, evicted: Collection[str]) -> None:
        """Refuse what cannot be rounded."""
        shape = anatomy.shapes.get(self.name)
        if shape is None or self.name not in anatomy.parameters:
            raise InvalidAction(
                f"a weight must be one of {listed(sorted(anatomy.parameters))}, got {self.name!r}: "
                "print(hope.inspect(...)) lists them"
            )
        if len(shape) < 2:
            raise InvalidAction(
                f"{self.name} must have two dimensions or more, got {len(shape)}: leave it as it is"
            )
        if (reason := anatomy.roundable.get(self.name)) is not None:
            raise InvalidAction(f"{self.name} cannot be rounded, {reason}: leave it as it is")
        if self.bits not in BITS:
            choices = ", ".join(map(str, BITS))
            raise InvalidAction(f"bits of {self.name} must be one of {choices}, got {self.bits}: give 8 or 4")
        if self.group < 0:
            raise InvalidAction(
                f"group of {self.name} must be at least 0, got {self.group}: give 0 for one scale per output"
            )
        columns = math.prod(shape[1:])
        if self.group and columns % self.group:
            raise InvalidAction(
                f"group of {self.name} must divide its {columns} inputs, got {self.group}: give 0 for one "
                "scale per output"
            )
        if self.rounding not in ("feedback", "nearest"):
            raise InvalidAction(
                f"rounding must be feedback or nearest, got {self.rounding!r}: give one of them"
            )

    def writes(self, anatomy: Anatomy, statistics: Mapping[str, InputStatistics]) -> set[str] | None:
        """The weight and its bias; not known where a BN follows."""
        known = statistics.get(self.name)
        if known is not None and known.bn:
            return None
        return {*anatomy.names(self.name), *(anatomy.names(known.bias) if known and known.bias else ())}

    @classmethod
    @torch.no_grad()
    def finish(cls, model: nn.Module, context: RewriteContext, actions: Sequence[Self]) -> None:
        """Round every weight once, to the fewest bits that it comes to."""
        evicted = [context.anatomy.block(name) for name in context.evicted]
        last = {action.name: action for action in actions}
        for name, action in last.items():
            if not any(block.removes(name) for block in evicted):
                action.round(model, context)

    def round(self, model: nn.Module, context: RewriteContext) -> None:
        """Round the weight in place, and let the bias or the BN after it compensate for the mean error."""
        tensor = get(model, self.name)
        flat = tensor.detach().cpu().double().flatten(1)
        known = context.statistics.get(self.name)
        kept = context.kept(self.name, 1) if known is not None else None
        moments = moments_of(known, kept) if known is not None else None
        plain = moments is not None and len(moments.diagonal) == flat.shape[1]
        if moments is None or not plain:
            moments = ColumnMoments.identity(flat.shape[1])
        tensor.copy_(self.round_fitted(tensor, moments))
        rounded = tensor.detach().cpu().double().flatten(1)
        if known is None:
            return
        if single(known):  # a depthwise weight: each output reads one channel
            rows = context.kept(self.name, 0)
            mean = known.mean if rows is None else known.mean[rows]
            _shift(model, known, (rounded - flat).sum(dim=1) * mean.double())
        elif plain:
            mean = known.mean.double() if kept is None else known.mean.double()[channels_kept(known, kept)]
            _shift(model, known, (rounded - flat).reshape(len(flat), len(mean), -1).sum(dim=2) @ mean)
        elif (
            kept is None and known.dim == 1 and len(known.mean) % tensor.shape[1] == 0 and known.repeat == 1
        ):  # in groups
            groups = len(known.mean) // tensor.shape[1]
            parts = (rounded - flat).reshape(groups, len(flat) // groups, tensor.shape[1], -1)
            mean = known.mean.double().reshape(groups, 1, -1)
            _shift(model, known, (parts.sum(dim=3) * mean).sum(dim=2).flatten())

    def round_fitted(self, weight: Tensor, moments: ColumnMoments) -> Tensor:
        """A weight on its grid, in its own type."""
        flat = weight.detach().cpu().double().flatten(1)
        rounded = self.rounded(flat, moments, significant_bits(weight.dtype, self.bits))
        return rounded.reshape(weight.shape).to(weight)

    def rounded(self, weight: Tensor, moments: ColumnMoments, precision: int = SIGNIFICANT) -> Tensor:
        """(rows, columns) of a weight on its grid.

        Args:
            precision: significant bits of its scales.
        """
        scale = scales(weight, self.bits, moments.diagonal, self.group, precision)
        if self.rounding == "nearest":
            return nearest(weight, scale, self.bits, self.group)
        return with_feedback(weight, scale, self.bits, moments, self.group)

    def describe(self) -> str:
        """What it does, in a few words."""
        return self.sentence.format(name=self.name, bits=self.bits)

    def __repr__(self) -> str:
        return f"<Quantise {self.name} to {self.bits} bits: cost {self.cost:.4g}>"


def single(known: InputStatistics) -> bool:
    """Whether each output of a weight reads one channel, whose mean is all that is known."""
    return len(known.covariance) != len(known.mean)


def channels_kept(known: InputStatistics, kept: Tensor) -> Tensor:
    """The channels of a signal whose columns are kept."""
    return kept if known.repeat == 1 else torch.unique(kept // known.repeat)


def moments_of(known: InputStatistics, kept: Tensor | None = None) -> ColumnMoments | None:
    """The second moments of a weight's columns, of the kept ones only; None where rows do not read all
    columns, or read another dimension.
    """
    if known.dim != 1 or single(known):
        return None
    channels = known.moments
    if kept is not None:
        which = channels_kept(known, kept)
        channels = channels[which][:, which]
    return ColumnMoments(channels, known.taps.double())


def _shift(model: nn.Module, known: InputStatistics, change: Tensor) -> None:
    """Compensate for a change of an output's mean."""
    if known.bn:
        mean = get(model, f"{known.bn}.running_mean")
        mean.copy_((mean.double().cpu() + change).to(mean))
    elif known.bias:
        bias = get(model, known.bias)
        bias.copy_((bias.double().cpu() - change).to(bias))
