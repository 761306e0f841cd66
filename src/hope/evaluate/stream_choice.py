"""Whether residual streams are thinned at a budget: the judge compares the run with one that leaves them.

What a stream loses is lost for all its readers at once, and adds up in another way than what neurons lose, so
their costs compare badly. Both networks are made and looked at instead. The run without the streams' steps is
a run of its own: the paths of units do not depend on one another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import nn

from hope.evaluate.eviction_search import network
from hope.schedule.budget import Budget
from hope.schedule.plan import Plan
from hope.schedule.trajectory import Trajectory
from hope.structure.steps import Step

Run = tuple[Trajectory, int]  # and what its widths are multiples of


def without_streams(plan: Plan, steps: Iterable[Step]) -> Iterator[Step]:
    """The steps of all other units."""
    names = {unit.name for unit in plan.anatomy.streams}
    return (step for step in steps if step.name not in names)


def better(
    model: nn.Module,
    plan: Plan,
    budget: Budget,
    thinned: Run,
    other: Callable[[], Run],
    judge: Callable[[nn.Module], float],
) -> tuple[Run, tuple[str, ...]]:
    """The run whose network keeps more of the original's answers at a budget, and a note if streams stay.

    Args:
        thinned: with steps of streams.
        other: makes the same run without them.
        judge: a network -> its fidelity.
    """
    steps = _upto(thinned, budget)
    if len(list(without_streams(plan, steps))) == len(steps):
        return thinned, ()
    whole = other()
    if not whole[0].meets(budget):
        return thinned, ()
    cut, kept = (judge(network(model, plan, some)) for some in (steps, _upto(whole, budget)))
    if cut >= kept:
        return thinned, ()
    return whole, (f"streams stay: at {budget} the network keeps more of its answers with all of them",)


def _upto(run: Run, budget: Budget) -> Sequence[Step]:
    """Its steps down to a budget; none if it is not met."""
    found = run[0]
    return found.steps[: found.steps_to(budget.unit, budget.value)] if found.meets(budget) else ()
