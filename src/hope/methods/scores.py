"""The baselines: prune by ascending score over the whole network, never the last neuron of a layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hope.actions import Action, Prune
from hope.errors import UnknownMethod
from hope.methods.method import Method, NetworkStatistics, State
from hope.reasons import Cause, Reason
from hope.statistics.checkpoint import Checkpoint
from hope.structure.sizes import ParameterSavings
from hope.structure.units import Unit


@dataclass(frozen=True)
class ScoreState:
    """A layer's state under a baseline."""

    name: str  # the layer's name
    scores: Tensor  # (neurons,) the lowest is removed first
    release: int  # ΔP of one neuron; reported, not ranked by

    @property
    def neurons(self) -> int:
        """The number of neurons."""
        return len(self.scores)

    @property
    def capacity(self) -> float:
        """All scores together."""
        return float(self.scores.sum())


class ScorePath:
    """A layer's path, by ascending score."""

    def __init__(self, state: ScoreState) -> None:
        self._state = state
        scores = state.scores.tolist()
        self._waiting = sorted(range(len(scores)), key=lambda neuron: (scores[neuron], neuron))
        self.neurons, self.left = state.neurons, state.capacity

    def steps(self) -> Iterator[Action]:
        """All steps down to one neuron."""
        while self.neurons > 1:
            neuron = self._waiting[0]
            cost = self._take(neuron)
            yield Prune(self._state.name, (neuron,), cost=cost, release=self._state.release, left=self.left)

    def follow(self, step: Action) -> None:
        """Apply a step of an earlier run."""
        self._take(*step.removed)

    def _take(self, neuron: int) -> float:
        self._waiting.remove(neuron)
        score = float(self._state.scores[neuron])
        self.neurons -= 1
        self.left -= score
        return score


@dataclass(frozen=True)
class Score(Method):
    """A baseline.

    Attributes:
        by: "l1-in" (incoming weights), "l1-joint" (incoming and outgoing), "bn-scale" (|γ|) or "random". A
            stream's channel has the sum over all its writers and readers.

    >>> Score("l1-in").name
    'l1-in'
    """

    by: str = "l1-in"

    def __post_init__(self) -> None:
        if self.by not in SCORES:
            raise UnknownMethod(f"a score must be one of {', '.join(SCORES)}, got {self.by!r}: give l1-in")

    @property
    def name(self) -> str:
        """The score's name."""
        return self.by

    def state(self, unit: Unit, known: NetworkStatistics) -> ScoreState | Reason:
        """The scores of a unit's neurons."""
        scores = SCORES[self.by](unit, known.numbers)
        if scores is None:
            return Cause.NO_BN.at()
        return ScoreState(unit.name, scores, ParameterSavings(known.anatomy).unit(unit.name))

    @property
    def path(self) -> Callable[[ScoreState], ScorePath]:
        """Prunes in order of score."""
        return ScorePath

    def rank(self, cost: float, release: float) -> float:
        """Raw scores over the whole network."""
        return cost

    def measures(self, known: NetworkStatistics, states: Sequence[State]) -> dict[str, list[float]]:
        """The scores."""
        return {s.name: s.scores.tolist() for s in states if isinstance(s, ScoreState)}


def _sums(layer: Unit, numbers: Checkpoint, role: str) -> Tensor:
    """Sums of absolute weights per neuron over all its positions of one role."""
    total = torch.zeros(layer.neurons, dtype=torch.float64)
    for part in layer.places:
        if part.role == role:
            weight = numbers[part.tensor].double().abs().movedim(part.dim, 0).flatten(1).sum(dim=1)
            total += weight[torch.from_numpy(part.index)].sum(dim=1)
    return total


def l1_in(layer: Unit, numbers: Checkpoint) -> Tensor | None:
    """L1 norm of the incoming weights."""
    return _sums(layer, numbers, "out")


def l1_joint(layer: Unit, numbers: Checkpoint) -> Tensor | None:
    """L1 norm of incoming and outgoing weights."""
    return _sums(layer, numbers, "out") + _sums(layer, numbers, "in")


def bn_scale(layer: Unit, numbers: Checkpoint) -> Tensor | None:
    """|γ| of the BN that the readers see; None for layers without one. Of a stream, the sum over all BNs."""
    ends = ".running_var"
    every = {part.tensor.removesuffix(ends) for part in layer.places if part.tensor.endswith(ends)}
    names = {f"{bn}.weight" for bn in (every if layer.kind == "stream" else {layer.bn})}
    scales = [
        numbers[part.tensor].double().abs()[torch.from_numpy(part.index)].sum(dim=1)
        for part in layer.places
        if part.tensor in names
    ]
    return torch.stack(scales).sum(dim=0) if scales else None


def random(layer: Unit, numbers: Checkpoint) -> Tensor | None:
    """Uniform random numbers, the same for the same layer name and size."""
    seed = int.from_bytes(layer.name.encode()[-6:].rjust(6, b"\0"), "big") ^ layer.neurons
    return torch.rand(layer.neurons, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SCORES: dict[str, Callable[[Unit, Checkpoint], Tensor | None]] = {
    "l1-in": l1_in,
    "l1-joint": l1_joint,
    "bn-scale": bn_scale,
    "random": random,
}
