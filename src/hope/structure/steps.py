"""What is done to a network, step by step: the one record of a removal, from a method's path to the page.

Neurons and blocks go by their numbers and names in the original, whatever happened before. A method fills in
what a step costs; for steps made by hand these fields stay 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar, cast

import msgspec
from msgspec.structs import force_setattr


class Step(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """One removal.

    Attributes:
        cost: J.
        release: ΔP by which it was ranked.
        left: what is left of the unit's capacity after it (of its signal, under absorption); 0 for an
            eviction.
    """

    kind: ClassVar[str]
    name: str
    cost: float = 0.0
    release: int = 0
    left: float = 0.0

    @property
    def gone(self) -> tuple[int, ...]:
        """The neurons of the unit that go."""
        return ()

    @property
    def neurons(self) -> tuple[int, ...]:
        """The neurons that take part."""
        return self.gone

    def __repr__(self) -> str:
        which = (
            ", ".join(map(str, self.neurons)) if len(self.neurons) <= 4 else f"{len(self.neurons)} neurons"
        )
        return f"<{type(self).__name__} {f'{which} of ' if which else ''}{self.name}: cost {self.cost:.4g}>"


class Prune(Step, frozen=True, array_like=True, tag="prune"):
    """Remove neurons of a unit.

    Attributes:
        name: the unit's name.
        removed: the neurons that go.

    >>> Prune("layer1.0.conv1", [3, 1]).gone
    (3, 1)
    """

    kind: ClassVar[str] = "prune"
    name: str
    removed: Sequence[int] | int

    def __post_init__(self) -> None:
        some: Iterable[int] = self.removed if isinstance(self.removed, Iterable) else (self.removed,)
        force_setattr(self, "removed", tuple(int(neuron) for neuron in some))

    @property
    def gone(self) -> tuple[int, ...]:
        """The neurons that go."""
        return cast("tuple[int, ...]", self.removed)


class Absorption(Prune, frozen=True, array_like=True, tag="absorb"):
    """Remove neurons of a unit and let the survivors and a constant take over what they did.

    How much each survivor takes over follows from the moments of what the readers read (`InputStatistics`),
    which go with the trajectory.
    """

    kind: ClassVar[str] = "absorb"


class Merge(Step, frozen=True, array_like=True, tag="merge"):
    """Replace two neurons of a unit by one parent, a linear recipe over both as they are at that moment.

    In effective coordinates (BN folded into the filter, `y = w·x + b`) the parent's input side is
    `rows[0]·(w, b)_keep + rows[1]·(w, b)_drop`, and its outgoing weights are `outs[0]·out_keep +
    outs[1]·out_drop`. With a BN, the mean of the parent's signal follows by the same recipe, and `spread` is
    its deviation; the parent's BN numbers are then σ² = spread², γ = √(spread² + ε), so that any spread ≥ 0
    gives exactly the signal asked for.

    Attributes:
        name: the unit's name.
        keep: the neuron whose place the parent takes.
        drop: the neuron that goes.
        rows: how the parent's input side is made of both.
        outs: how the parent's outgoing weights are made of both.
        spread: deviation of the parent's signal before the activation; needed with a BN, ignored without.
        distortion: δ, how far the parent is from what it stands for.

    >>> Merge("layer1.0.conv1", keep=1, drop=3, rows=(0.5, 0.5), outs=(1.0, 1.0), spread=0.9).gone
    (3,)
    """

    kind: ClassVar[str] = "merge"
    name: str
    keep: int
    drop: int
    rows: tuple[float, float]
    outs: tuple[float, float]
    spread: float | None = None
    distortion: float = 0.0

    @property
    def gone(self) -> tuple[int, ...]:
        """The neuron that goes."""
        return (self.drop,)

    @property
    def neurons(self) -> tuple[int, ...]:
        """The neuron that stays as the parent, and the one that goes."""
        return (self.keep, self.drop)


class Evict(Step, frozen=True, array_like=True, tag="evict"):
    """Remove the branch of a block, leaving its skip and, if given, a bias per channel; of a concatenation
    the other parts, of a chain an identity.

    Attributes:
        name: the block's name.
        bias: what stays behind in place of the branch, one number per channel.

    >>> Evict("layer1.0", [0, 0.5]).bias
    (0.0, 0.5)
    """

    kind: ClassVar[str] = "evict"
    name: str
    bias: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.bias is not None:
            force_setattr(self, "bias", tuple(float(number) for number in self.bias))


AnyStep = Prune | Absorption | Merge | Evict
