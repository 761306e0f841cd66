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
from hope.schedule.run_to_budget import Collected
from hope.schedule.search_space import SearchSpace
from hope.structure.steps import Step


def without_streams(space: SearchSpace, steps: Iterable[Step]) -> Iterator[Step]:
    """The steps of all other units."""
    names = {unit.name for unit in space.anatomy.streams}
    return (step for step in steps if step.name not in names)


def choose_streams(
    model: nn.Module,
    space: SearchSpace,
    budget: Budget,
    thinned: Collected,
    other: Callable[[], Collected],
    judge: Callable[[nn.Module], float],
) -> tuple[Collected, tuple[str, ...]]:
    """The run whose network keeps more of the original's answers at a budget, and a note if streams stay.

    Args:
        thinned: with steps of streams.
        other: makes the same run without them.
        judge: a network -> its fidelity.
    """
    steps = _upto(thinned, budget)
    if len(list(without_streams(space, steps))) == len(steps):
        return thinned, ()
    whole = other()
    if not whole.trajectory.meets(budget):
        return thinned, ()
    cut, kept = (judge(network(model, space, some)) for some in (steps, _upto(whole, budget)))
    if cut >= kept:
        return thinned, ()
    return whole, (f"streams stay: at {budget} the network keeps more of its answers with all of them",)


def _upto(run: Collected, budget: Budget) -> Sequence[Step]:
    """Its steps down to a budget; none if it is not met."""
    found = run.trajectory
    return found.steps[: found.steps_to(budget.unit, budget.value)] if found.meets(budget) else ()
