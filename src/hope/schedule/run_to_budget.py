"""Take a run's steps until a budget is met, and note them on the way."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from hope._util.progress import RANK, bar
from hope.actions import Action
from hope.schedule.bits import Rounding
from hope.schedule.budget import Budget, unit_of
from hope.schedule.cost_model import CostModel
from hope.schedule.resume import RunCheckpoint
from hope.schedule.trajectory import Trajectory
from hope.schedule.width_constraints import Group, Groups
from hope.structure.anatomy import Anatomy

CHUNK = 256  # steps between two checks of the budget, at least
PART = 16  # of the steps that are there, in a long run: a check counts all of them


@dataclass(frozen=True)
class Collected:
    """The actions that meet a budget.

    Attributes:
        trajectory: them, with sizes.
        multiple_of: what its widths are multiples of.
        steps: all that the scheduler gave, in its order, also those that width constraints left out.
    """

    trajectory: Trajectory
    multiple_of: int
    steps: tuple[Action, ...]


def run_to_budget(  # noqa: PLR0913
    anatomy: Anatomy,
    more: Iterator[Action],
    budget: Budget,
    done: Sequence[Action],
    multiples: Sequence[int] = (1,),
    file: RunCheckpoint | None = None,
    *,
    cost: CostModel | None = None,
    groups: Groups = (),
    roundings: Sequence[Rounding] = (),
    progress: bool | None = None,
) -> Collected:
    """Take steps until the budget is met, or nothing is left to do.

    Args:
        more: the steps that follow those that are done.
        done: what is done already.
        multiples: of what widths may be kept multiples (see `schedule.width_constraints`). Of those with
            which the budget is met first, the one that costs least is taken, of equals the largest.
        file: where to note what is done.
        cost: what it predicts is noted in the trajectory.
        groups: layers that keep one width.
        roundings: what rounding weights costs (see `Trajectory.of`).
    """

    timed = cost is not None and unit_of(cost.resource).timed
    taken = [*done, *more] if roundings and not timed else list(done)

    def made() -> list[Trajectory]:
        return [Trajectory.of(anatomy, taken, multiple, cost, groups, roundings) for multiple in multiples]

    found = made()
    with bar(RANK, 1.0, progress) as show:
        while not any(one.meets(budget) for one in found):
            chunk = max(CHUNK, len(taken) // PART)
            most = int(budget.value) - len(found[0]) if budget.kind.counts_steps else chunk
            some = list(islice(more, min(chunk, most)))
            taken += some
            found = made()
            show(max(one.progress(budget) for one in found))
            if file is not None:
                file.write(taken)
            if not some:
                break
    if file is not None:
        file.write(taken, now=True)
    best = min(range(len(found)), key=lambda k: (found[k].price(budget), -multiples[k]))
    if not groups or budget.resource is None:
        return Collected(found[best], multiples[best], tuple(taken))

    def tried(steps: Sequence[Action]) -> Trajectory:
        return Trajectory.of(anatomy, steps, multiples[best], cost, groups, roundings)

    nearer = _nearer(found[best], taken, more, budget, groups, tried)
    return Collected(nearer, multiples[best], tuple(taken))


def _nearer(
    found: Trajectory,
    taken: list[Action],
    more: Iterator[Action],
    budget: Budget,
    groups: Groups,
    tried: Callable[[Sequence[Action]], Trajectory],
) -> Trajectory:
    """A run whose last steps are not larger than they need be: a head of every layer at once can go far
    beyond a budget that some neurons would meet. For the group that is last there are two alternatives:
    others continue in its place, or it comes earlier, and others lose less. The cheapest is taken.

    Args:
        tried: the run of some of the steps.
    """
    left = set(groups)
    while found.meets(budget):
        end = found.steps_at(budget)
        group = next((one for one in left if end and found[end - 1].name in one.names), None)
        if group is None:
            break
        left.discard(group)
        options = [found, _earlier(found, end, group, taken, budget, tried)]
        before = max((stop for stop in found.stops if stop < end), default=0)
        kept = set(found.steps[:before])
        while not (held := tried([s for s in taken if s.name not in group.names or s in kept])).meets(budget):
            some = list(islice(more, CHUNK))
            taken += some
            if not some:
                break
        found = min([*options, held], key=lambda option: option.price(budget))
    return found


def _earlier(
    found: Trajectory,
    end: int,
    group: Group,
    taken: Sequence[Action],
    budget: Budget,
    tried: Callable[[Sequence[Action]], Trajectory],
) -> Trajectory:
    """The run in which a group's steps up to the end come as early as the budget is met by them."""

    def first(stop: int) -> list[Action]:
        return [s for at, s in enumerate(found.steps[:end]) if at < stop or s.name in group.names]

    stops = [stop for stop in found.stops if stop < end]
    place = bisect_left(stops, True, key=lambda stop: tried(first(stop)).meets(budget))
    if place == len(stops):
        return found
    steps = first(stops[place])
    there = set(steps)
    return tried([*steps, *(step for step in taken if step not in there)])
