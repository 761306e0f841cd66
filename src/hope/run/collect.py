"""Take a run's steps until a budget is met, and note them on the way."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

from hope._util.progress import bar
from hope.anatomy.anatomy import Anatomy
from hope.anatomy.steps import Step
from hope.run.align import Groups
from hope.run.budget import Budget
from hope.run.checkpoint import Checkpoint
from hope.run.pace import Pace
from hope.run.trajectory import Trajectory

CHUNK = 256  # steps between two looks at the budget


def collect(
    anatomy: Anatomy,
    more: Iterator[Step],
    budget: Budget,
    begun: list[Step],
    multiples: Sequence[int] = (1,),
    file: Checkpoint | None = None,
    *,
    pace: Pace | None = None,
    groups: Groups = (),
    progress: bool | None = None,
) -> tuple[Trajectory, int]:
    """Take steps until the budget is met, or nothing is left to do; and what widths are multiples of.

    Args:
        more: the steps that follow those that are done.
        begun: what is done already; what is taken is added to it.
        multiples: of what widths may be kept multiples (see `run.align`). Of those with which the budget is
            met first, the one that costs least is taken, of equals the largest.
        file: where to note what is done.
        pace: predicted times, if the run is to know them.
        groups: layers that keep one width.
    """

    def made() -> list[Trajectory]:
        return [Trajectory.of(anatomy, begun, multiple, pace, groups) for multiple in multiples]

    found = made()
    with bar("encoding", 1.0, progress) as show:
        while not any(one.meets(budget) for one in found):
            most = int(budget.value) - len(found[0]) if budget.unit == "steps" else CHUNK
            some = list(islice(more, min(CHUNK, most)))
            begun += some
            found = made()
            show(max(one.progress(budget) for one in found))
            if file is not None:
                file.write(begun)
            if not some:
                break
    if file is not None:
        file.write(begun, now=True)
    best = min(range(len(found)), key=lambda k: (found[k].price(budget), -multiples[k]))
    return found[best], multiples[best]
