"""What every action has: its record, what it frees, how it rewrites weights, how it is described.

A kind of action is one file with one subclass of `Action`, registered in `actions.registered`. Everything
else in the package uses what is defined here. Neurons and blocks have the numbers and names of the original
network, whatever happened before. A method fills in what an action costs; for actions made by hand these
fields stay 0.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from hope.errors import InvalidAction
from hope.geometry.rounding import ColumnMoments
from hope.statistics.input_statistics import InputStatistics
from hope.structure.anatomy import Anatomy
from hope.structure.removed import Removed


@dataclass(frozen=True)
class Rewrite:
    """How actions rewrite weights."""

    compensate: bool = True  # absorption rewrites the weights of remaining neurons
    constants: bool = True  # it keeps the constant of removed neurons, if a BN can hold it
    repair: bool = True  # it corrects running variances of BNs
    # a parent's BN parameters are as printed in the paper, γ = s and σ² = max(0, s² − ε), with a zero filter
    # below that; otherwise σ² = s² and γ = √(s² + ε), exact for every s
    clamp: bool = False
    refit: bool = False  # with inputs, weights are refitted to the original's activations
    synthetic: bool = False  # the inputs are synthetic, so their statistics are not those of data


@dataclass(frozen=True)
class RewriteContext:
    """What a list of actions comes to, for those that rewrite weights.

    Attributes:
        anatomy: the original network.
        removed: unit -> its neurons that are removed, by all actions together.
        evicted: block -> the bias it leaves, if any; blocks within evicted ones left out.
        statistics: weight -> its input statistics.
        rewrite: how actions rewrite weights.
    """

    anatomy: Anatomy
    removed: Mapping[str, tuple[int, ...]]
    evicted: Mapping[str, tuple[float, ...] | None]
    statistics: Mapping[str, InputStatistics]
    rewrite: Rewrite

    def kept(self, tensor: str, dim: int) -> Tensor | None:
        """The places of a tensor's dimension that are kept; None if all are."""
        return self._kept.get((tensor, dim))

    @cached_property
    def _kept(self) -> dict[tuple[str, int], Tensor]:
        return kept_places(self.anatomy, self.removed, self.evicted)


def kept_places(
    anatomy: Anatomy, removed: Mapping[str, Sequence[int]], evicted: Iterable[str]
) -> dict[tuple[str, int], Tensor]:
    """(tensor, dimension) -> the places of it that stay, where some go; evicted blocks left out."""
    blocks = [anatomy.block(name) for name in evicted]
    cut: dict[tuple[str, int], set[int]] = {}
    for name, neurons in removed.items():
        for part in anatomy.unit(name).places:
            if not any(block.removes(part.tensor) for block in blocks):
                cut.setdefault((part.tensor, part.dim), set()).update(
                    part.index[list(neurons)].ravel().tolist()
                )
    return {
        (tensor, dim): torch.from_numpy(np.setdiff1d(np.arange(anatomy.shapes[tensor][dim]), list(places)))
        for (tensor, dim), places in cut.items()
    }


class Action(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One change of a network.

    Class attributes:
        kind: the tag of its record, and its verb: "prune".
        letter: one letter for it, different from those of all others.
        done: its participle: "pruned".
        plural: its noun where several are counted: "prunes".
        sentence: what it does, with {name}, {neurons} (those that are removed) and {parent} filled in.
        order: of equal price, the lower one is first.
        colours: of it on a page, light and dark.
        compensates: whether the remaining neurons compensate for the removed ones.

    Attributes:
        name: the unit, or the block that it evicts.
        cost: J.
        release: ΔP by which it was ranked.
        left: what is left of the unit's capacity after it (of its signal, under absorption); 0 for an
            eviction.
    """

    kind: ClassVar[str]
    letter: ClassVar[str]
    done: ClassVar[str]
    plural: ClassVar[str]
    sentence: ClassVar[str]
    colours: ClassVar[tuple[str, str]] = ("#b23a6b", "#ea86b0")
    order: ClassVar[int] = 0
    compensates: ClassVar[bool] = False

    name: str
    cost: float = 0.0
    release: int = 0
    left: float = 0.0

    # ---- what it frees ---------------------------------------------------------------------------

    @property
    def removed(self) -> tuple[int, ...]:
        """The neurons of the unit that are removed."""
        return ()

    @property
    def neurons(self) -> tuple[int, ...]:
        """The neurons that take part."""
        return self.removed

    @property
    def parent(self) -> int | None:
        """The neuron that stands for those that take part, if one does."""
        return None

    @property
    def evicts(self) -> str | None:
        """The block that is evicted, if one is."""
        return None

    @property
    def bias(self) -> Sequence[float] | None:
        """The bias that replaces an evicted block, one number per channel."""
        return None

    @property
    def weight_grid(self) -> tuple[int, int] | None:
        """Bits and group (see `geometry.rounding`) of the grid that its weight is on from now on, if any."""
        return None

    def entry_bits(self, anatomy: Anatomy) -> Mapping[str, float]:
        """Tensor -> how many bits one of its entries is stored in from now on, where that changes."""
        return {}

    def scale_bits(self, anatomy: Anatomy) -> Mapping[str, tuple[float, int]]:
        """Tensor -> bits of a scale, and how many entries of a row share one (0: all), where scales are
        stored in addition.
        """
        return {}

    def check(self, anatomy: Anatomy, removed: Removed, evicted: Collection[str]) -> None:
        """Refuse what cannot be done.

        Args:
            anatomy: the original network.
            removed: what the actions before have removed.
            evicted: blocks that they have evicted, those within others among them.

        Raises:
            InvalidAction: it names what is not there, removes something twice, or empties a layer.
        """
        layers = {layer.name: layer for layer in anatomy.layers}
        if self.name not in layers:
            raise InvalidAction(
                f"a prunable layer must be one of {listed(layers)}, got {self.name!r}: "
                "print(hope.inspect(...)) lists them"
            )
        layer, before = layers[self.name], set(removed.of(self.name))
        for neuron in self.neurons:
            if not 0 <= neuron < layer.neurons:
                raise InvalidAction(
                    f"{layer.name}: neurons must be 0 to {layer.neurons - 1}, got {neuron}: leave it out"
                )
            if neuron in before:
                raise InvalidAction(
                    f"{layer.name}: a neuron must be removed once, got {neuron} again: leave it out"
                )
            if neuron in self.removed:
                before.add(neuron)
        if len(before) == layer.neurons:
            raise InvalidAction(
                f"{layer.name} must keep a neuron, got all {layer.neurons} removed: evict its block instead"
            )

    # ---- how it rewrites weights -----------------------------------------------------------------

    def writes(self, anatomy: Anatomy, statistics: Mapping[str, InputStatistics]) -> set[str] | None:
        """The tensors that it writes into, rather than making new ones of them; None if that is not known."""
        return None

    def rewrite(self, model: nn.Module, context: RewriteContext, before: Removed) -> None:
        """Rewrite weights in place, one action after the other, at the original shapes.

        Args:
            before: what the actions before this one have removed.
        """

    @classmethod
    def rewrite_together(cls, model: nn.Module, context: RewriteContext, actions: Sequence[Self]) -> None:
        """Rewrite weights in place for all actions of this kind at once, at the original shapes."""

    def replace_modules(self, model: nn.Module, context: RewriteContext) -> None:
        """Put other modules in the place of evicted ones, before tensors are cut."""

    @classmethod
    def finish(cls, model: nn.Module, context: RewriteContext, actions: Sequence[Self]) -> None:
        """Rewrite weights in place for all actions of this kind at once, in the smaller network and after
        all other weights were rewritten and fitted.
        """

    def round_fitted(self, weight: Tensor, moments: ColumnMoments) -> Tensor:
        """A weight that was fitted as this action leaves it, under the second moments of what it reads."""
        return weight

    # ---- how it is described ---------------------------------------------------------------------

    def describe(self) -> str:
        """What it does, in a few words."""
        some = self.removed
        neurons = f"neuron {some[0]}" if len(some) == 1 else f"{len(some)} neurons"
        return self.sentence.format(name=self.name, neurons=neurons, parent=self.parent)

    def __repr__(self) -> str:
        which = (
            ", ".join(map(str, self.neurons)) if len(self.neurons) <= 4 else f"{len(self.neurons)} neurons"
        )
        return f"<{type(self).__name__} {f'{which} of ' if which else ''}{self.name}: cost {self.cost:.4g}>"


def listed(names: Iterable[str]) -> str:
    """The first of some names, for a message."""
    known = list(names)
    return ", ".join([*known[:5], *["…"][: len(known) > 5]]) or "those of the anatomy, which has none"
