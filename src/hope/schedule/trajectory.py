"""What was done, in order, with its cost: the product of a run. Small, replayable, saved."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import fsum
from typing import TYPE_CHECKING

import numpy as np

from hope._util.memo import Memo
from hope._util.numbers import plural
from hope.actions import Action, kinds
from hope.errors import InfeasibleBudget
from hope.schedule.bits import Rounding, interleaved, rounded_first
from hope.schedule.budget import Budget, unit_of
from hope.schedule.resources import UNITS
from hope.schedule.width_constraints import Groups, aligned
from hope.structure.anatomy import Anatomy
from hope.structure.sizes import Counts, Size, sizes

if TYPE_CHECKING:
    from hope.schedule.cost_model import CostModel


@dataclass(frozen=True, eq=False, repr=False)
class Trajectory:
    """The steps of a run, and what the network needs after each of them.

    Attributes:
        steps: in order; replaying the first k of them gives the network after k steps.
        anatomy: the network that they refer to.
        stops: after how many steps the run may be ended (see `schedule.width_constraints`); empty if
            after any.
        predicted: resource -> (steps + 1,) counts by the cost model that the run was made with. A latency is
            known from there only.
    """

    steps: tuple[Action, ...]
    anatomy: Anatomy
    stops: tuple[int, ...] = ()
    predicted: Mapping[str, Counts] = field(default_factory=dict)
    _counted: Memo[str, Counts] = field(default_factory=Memo, init=False)

    @classmethod
    def of(
        cls,
        anatomy: Anatomy,
        steps: Sequence[Action],
        multiple_of: int = 1,
        cost: CostModel | None = None,
        groups: Groups = (),
        roundings: Sequence[Rounding] = (),
    ) -> Trajectory:
        """A trajectory, with what a cost model predicts; of the steps, those that keep widths multiples, and
        one width in every group; with roundings of weights where they save bytes at the least cost.
        """
        stops: tuple[int, ...] = ()
        if multiple_of > 1 or groups:
            order, stops = aligned(anatomy, steps, multiple_of, groups)
            steps = [steps[k] for k in order]
        if roundings:
            if cost is not None and unit_of(cost.resource).timed:
                steps, stops = rounded_first(steps, stops, roundings)
            else:
                steps, stops = interleaved(anatomy, steps, stops, roundings)
        predicted = {cost.resource: cost.counts(steps)} if cost is not None else {}
        return cls(tuple(steps), anatomy, stops, predicted)

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Action]:
        return iter(self.steps)

    def __getitem__(self, position: int) -> Action:
        return self.steps[position]

    def __repr__(self) -> str:
        return f"<Trajectory: {plural(len(self), 'step')} ({self.counted()})>"

    @cached_property
    def sizes(self) -> Counts:
        """(steps + 1, 3) neurons, parameters and MACs; row 0 is the original."""
        return sizes(self.anatomy, self.steps)

    def size(self, steps: int) -> Size:
        """The network's size after so many steps."""
        return Size(*(int(value) for value in self.sizes[steps]))

    @property
    def times(self) -> Counts | None:
        """(steps + 1,) predicted nanoseconds on the example; None if the run was not made for them."""
        known = (counts for name, counts in self.predicted.items() if name in UNITS and UNITS[name].timed)
        return next(known, None)

    def counts(self, resource: str) -> Counts:
        """(steps + 1,) how much the network needs of a resource, before the first and after each step.

        Raises:
            InfeasibleBudget: it is not known of this run.
        """
        return self._counted.of(resource, lambda: self._counts(resource))

    def _counts(self, resource: str) -> Counts:
        found, kind = self.predicted.get(resource), Budget(resource, 1).resource
        if found is None and kind is not None:
            found = kind.counts(self.anatomy, self.steps)
        if found is None:
            raise InfeasibleBudget(
                f"{resource} must be the budget that a run was encoded with, got a run that does not "
                f"know its {resource}: encode again with {resource}=, or take another budget"
            )
        return found

    def mix(self, steps: int | None = None) -> dict[str, int]:
        """How many actions of each kind there are among the first steps.

        >>> import torch, hope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> Trajectory((hope.Prune("0", 1),), hope.inspect(net, torch.zeros(1, 4))).mix()
        {'prune': 1, 'merge': 0, 'absorb': 0, 'evict': 0, 'quantise': 0}
        """
        counts = Counter(step.kind for step in self.steps[:steps])
        return {one.kind: counts[one.kind] for one in kinds()}

    def counted(self, steps: int | None = None) -> str:
        """The same in words: "3 prunes, 1 eviction"."""
        mix = self.mix(steps)
        words = [plural(mix[one.kind], one.plural.removesuffix("s")) for one in kinds() if mix[one.kind]]
        return ", ".join(words) or "none"

    def steps_to(self, unit: str, value: float) -> int:
        """How many steps it takes to come down to a budget (see `steps_at`)."""
        return self.steps_at(Budget(unit, value))

    def steps_at(self, budget: Budget) -> int:
        """How many steps it takes to come down to a budget, the fewest at which the run may be ended.

        Raises:
            InfeasibleBudget: the run did not come so far; the message says how far it came.
        """
        unit, value = budget.unit, budget.value
        if budget.kind.counts_steps:
            if not 0 <= value <= len(self):
                raise InfeasibleBudget(
                    f"steps must be those of this run, got {value:g}, and it {self.reach(unit)}: encode "
                    f"again with {budget}"
                )
            return max((stop for stop in self.stops if stop <= value), default=int(value))
        found = self.counts(unit)
        target = budget.allowed(int(found[0]))
        ends = np.array(self.stops or range(len(self) + 1))
        met = ends[found[ends] <= target]
        if not len(met):
            raise InfeasibleBudget(
                f"{budget.unit} must be one that this run reaches, got {str(budget).partition('=')[2]}, and "
                f"it {self.reach(unit)}: encode again with that budget"
            )
        return int(met[0])

    def meets(self, budget: Budget) -> bool:
        """Whether the run has come down to a budget; networks are evaluated when there is nothing left."""
        if budget.kind.searched:
            return False
        try:
            return self.steps_at(budget) <= len(self)
        except InfeasibleBudget:
            return False

    def price(self, budget: Budget) -> float:
        """The sum of the costs of the steps that meet a budget; infinite if they do not."""
        if not self.meets(budget):
            return float("inf")
        return fsum(step.cost for step in self.steps[: self.steps_at(budget)])

    def progress(self, budget: Budget) -> float:
        """How far the run has come, from 0 to 1."""
        if budget.kind.counts_steps:
            return len(self) / max(budget.value, 1)
        limits = budget.resource is not None
        found = self.counts(budget.unit) if limits else self.sizes[:, 0]
        goal = budget.allowed(int(found[0])) if limits else 0
        return float((found[0] - found[-1]) / max(found[0] - goal, 1))

    def reach(self, unit: str) -> str:
        """How far the run came, in words."""
        resource = Budget(unit, 1).resource
        if resource is None:
            return f"has {plural(len(self), 'step')}"
        found = self.counts(unit)
        least = int(found[list(self.stops) or slice(None)].min())
        return f"comes down to {unit}={least / max(1, int(found[0])):.4f} ({resource.format(least)})"


def unreachable(
    budget: Budget, run: Trajectory, advice: str, multiple_of: int, uniform: bool
) -> InfeasibleBudget:
    """The error about a budget that a finished run does not reach: what it reaches, and what to do."""
    less = "fewer steps" if budget.kind.counts_steps else "a larger budget"
    choices = [advice, f"take {less}" if len(run) or not advice else ""]
    widths, way = "", ", or ".join(filter(None, choices))
    if multiple_of > 1:
        widths, way = f" with multiple_of={multiple_of}", f"take a smaller multiple_of, or {less}"
    if uniform:
        widths, way = f"{widths} with uniform=True", f"{way}, or leave uniform out"
    return InfeasibleBudget(f"{budget} cannot be met{widths}: the run {run.reach(budget.unit)}; {way}")
