"""What was done, in order, with its cost: the product of a run. Small, replayable, saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from hope.anatomy.anatomy import Anatomy, Size
from hope.anatomy.steps import Action, Evict, Merge, Prune
from hope.errors import InfeasibleBudget

UNITS = ("density", "params", "macs", "steps")


class Step(NamedTuple):
    """One action and the network after it."""

    kind: str
    name: str
    neurons: tuple[int, ...]
    cost: float
    release: int
    ratio: float
    density: float
    params: int
    macs: int


@dataclass(frozen=True)
class Trajectory:
    """The actions of a run, and the size of the network after each of them.

    Attributes:
        actions: in order; replaying the first k of them gives the network after k steps.
        costs: J of each.
        releases: ΔP by which each was ranked.
        sizes: (steps + 1, 3) neurons, parameters and MACs; row 0 is the original.
        left: capacity E of the layer after each step that was taken in it, 0 for an eviction; empty where
            it is not known.
        stops: after how many steps the run may be ended (see `run.align`); empty if after any.
    """

    actions: tuple[Action, ...]
    costs: tuple[float, ...]
    releases: tuple[int, ...]
    sizes: NDArray[np.int64]
    left: tuple[float, ...] = ()
    stops: tuple[int, ...] = ()

    def __len__(self) -> int:
        return len(self.actions)

    def __iter__(self) -> Iterator[Step]:
        return (self[position] for position in range(len(self)))

    def __getitem__(self, position: int) -> Step:
        action = self.actions[position]
        neurons: tuple[int, ...] = ()
        if isinstance(action, Prune):
            neurons = action.neurons
        elif isinstance(action, Merge):
            neurons = (action.keep, action.drop)
        name = action.block if isinstance(action, Evict) else action.layer
        count, params, macs = (int(value) for value in self.sizes[position + 1])
        cost, release = self.costs[position], self.releases[position]
        density = count / int(self.sizes[0, 0]) if self.sizes[0, 0] else 1.0
        kind = type(action).__name__.lower()
        return Step(
            kind, name, neurons, cost, release, cost / release if release else 0.0, density, params, macs
        )

    def size(self, steps: int) -> Size:
        """The network's size after so many steps."""
        return Size(*(int(value) for value in self.sizes[steps]))

    def mix(self, steps: int | None = None) -> dict[str, int]:
        """How many prunes, merges and evictions there are among the first steps.

        >>> Trajectory((Prune("a", 1),), (0.5,), (10,), np.zeros((2, 3), dtype=np.int64)).mix()
        {'prune': 1, 'merge': 0, 'evict': 0}
        """
        counts = Counter(type(action).__name__.lower() for action in self.actions[:steps])
        kinds = ("absorb", "evict") if counts["absorb"] else ("prune", "merge", "evict")
        return {kind: counts[kind] for kind in kinds}

    def steps_to(self, unit: str, budget: float) -> int:
        """How many steps it takes to come down to a budget, the fewest at which the run may be ended.

        Raises:
            InfeasibleBudget: the run did not come so far; the message says how far it came.
        """
        if unit == "steps":
            if not 0 <= budget <= len(self):
                raise InfeasibleBudget(
                    f"this run {self.reach(unit)}, not {budget:g}: encode again with steps={budget:g}"
                )
            return max((stop for stop in self.stops if stop <= budget), default=int(budget))
        column = UNITS.index(unit)
        target = allowed(unit, budget, int(self.sizes[0, column]))
        ends = np.array(self.stops or range(len(self) + 1))
        met = ends[self.sizes[ends, column] <= target]
        if not len(met):
            raise InfeasibleBudget(
                f"this run {self.reach(unit)}, not {budget:g}: encode again with that budget"
            )
        return int(met[0])

    def reach(self, unit: str) -> str:
        """How far the run came, in words."""
        if unit == "steps":
            return f"has {len(self)} steps"
        column = self.sizes[:, UNITS.index(unit)]
        least = int(column[list(self.stops) or slice(None)].min())
        return f"comes down to {unit}={least / max(1, int(column[0])):.4f} ({least:,})"

    def to_frame(self) -> Any:
        """The steps as a pandas DataFrame (pandas must be installed)."""
        import pandas

        return pandas.DataFrame(list(self), columns=Step._fields)


def one_budget(**budgets: float | None) -> tuple[str, float]:
    """The one budget that was given."""
    given = [(unit, value) for unit, value in budgets.items() if value is not None]
    if len(given) != 1:
        found = ", ".join(unit for unit, _ in given) or "none"
        raise InfeasibleBudget(f"give exactly one budget of {', '.join(budgets)} (given: {found})")
    unit, value = given[0]
    if value < 0:
        raise InfeasibleBudget(f"{unit}={value:g} is negative: give a fraction of the original or a count")
    if unit == "fidelity" and value > 1:
        raise InfeasibleBudget(f"fidelity={value:g} cannot be met: 1 is the original itself")
    return unit, value


def allowed(unit: str, budget: float, original: int) -> float:
    """What a budget comes to: fractions of the original up to 1 (a float), absolute counts (an int, or above
    1).

    >>> allowed("params", 0.5, 100), allowed("params", 40, 100)
    (50.0, 40)
    """
    return budget * original if isinstance(budget, float) and budget <= 1 else budget


def sizes(anatomy: Anatomy, actions: Sequence[Action]) -> NDArray[np.int64]:
    """Neurons, parameters and MACs before the first and after each action, all at once.

    A tensor's size after t steps is the product of its dimensions, each shrunk by what its layers have lost
    by then.
    """
    length = len(actions) + 1
    lost: dict[str, NDArray[np.int64]] = {}
    end: dict[str, int] = {}
    biases = np.zeros(length, dtype=np.int64)
    for t, action in enumerate(actions, start=1):
        if isinstance(action, Evict):
            end[action.block] = t
            biases[t:] += anatomy.block(action.block).channels if action.bias is not None else 0
        else:
            count = len(action.neurons) if isinstance(action, Prune) else 1
            lost.setdefault(action.layer, np.zeros(length, dtype=np.int64))[t] += count
    lost = {name: counts.cumsum() for name, counts in lost.items()}
    blocks = [(anatomy.block(name), t) for name, t in end.items()]
    alive_until: dict[str, int] = {}  # a tensor goes with the last of its names
    for tensor in anatomy.shapes:
        times = [min((t for b, t in blocks if b.removes(n)), default=length) for n in anatomy.names(tensor)]
        if max(times) < length:
            alive_until[tensor] = max(times)
    table = np.zeros((length, 3), dtype=np.int64)
    shrink: dict[tuple[str, int], NDArray[np.int64]] = {}
    for layer in anatomy.layers:
        left = layer.neurons - lost.get(layer.name, np.zeros(length, dtype=np.int64))
        left[alive_until.get(layer.weight, length) :] = 0
        table[:, 0] += left
        if layer.name in lost:
            for part in layer.slices:
                key = (part.tensor, part.dim)
                shrink[key] = (
                    shrink.get(key, np.zeros(length, dtype=np.int64)) + lost[layer.name] * part.index.shape[1]
                )
    touched = {tensor for tensor, _ in shrink} | alive_until.keys()
    for tensor, shape in anatomy.shapes.items():
        counted, positions = tensor in anatomy.parameters, anatomy.positions.get(tensor, 0)
        if not counted and not positions:
            continue
        size = np.ones(length if tensor in touched else 1, dtype=np.int64)
        for dim, width in enumerate(shape):
            size = size * (width - shrink[tensor, dim] if (tensor, dim) in shrink else width)
        if tensor in alive_until:
            size[alive_until[tensor] :] = 0
        table[:, 1] += size if counted else 0
        table[:, 2] += size * positions
    table[:, 1] += biases
    return table
