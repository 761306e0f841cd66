"""Whether to prune residual streams at a budget: by the fidelity of the run with and without them.

A stream channel is lost for all its readers at once, so its cost is hard to compare with that of neurons.
HOPE builds and compares both networks instead. The run without stream steps needs no new paths: the paths of
units do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from torch import nn

from hope.actions import Action
from hope.evaluate.eviction_search import network
from hope.schedule.budget import Budget
from hope.schedule.run_to_budget import Collected
from hope.schedule.search_space import SearchSpace


def without_streams(space: SearchSpace, steps: Iterable[Action]) -> Iterator[Action]:
    """The steps of all other units."""
    names = {unit.name for unit in space.anatomy.streams}
    return (step for step in steps if step.name not in names)


def choose_streams(
    model: nn.Module,
    space: SearchSpace,
    budget: Budget,
    narrow: Collected,
    other: Callable[[], Collected],
    fidelity: Callable[[nn.Module], float],
) -> tuple[Collected, tuple[str, ...]]:
    """The run whose network has the higher fidelity at a budget, and a note if streams are kept.

    Args:
        fidelity: a network -> its fidelity.
    """
    steps = _upto(narrow, budget)
    if len(list(without_streams(space, steps))) == len(steps):
        return narrow, ()
    whole = other()
    if not whole.trajectory.meets(budget):
        return narrow, ()
    cut, kept = (fidelity(network(model, space, some)) for some in (steps, _upto(whole, budget)))
    if cut >= kept:
        return narrow, ()
    return whole, (f"streams stay: at {budget} the network keeps more of its answers with all of them",)


def _upto(run: Collected, budget: Budget) -> Sequence[Action]:
    """The steps that reach a budget; none if it cannot be reached."""
    found = run.trajectory
    return found.steps[: found.steps_at(budget)] if found.meets(budget) else ()
