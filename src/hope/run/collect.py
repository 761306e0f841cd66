"""Take a run's steps until a budget is met, and note them on the way."""

from __future__ import annotations

from collections.abc import Iterator
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
    multiple_of: int = 1,
    file: Checkpoint | None = None,
    *,
    pace: Pace | None = None,
    groups: Groups = (),
    progress: bool | None = None,
) -> Trajectory:
    """Take steps until the budget is met, or nothing is left to do.

    Args:
        more: the steps that follow those that are done.
        begun: what is done already; what is taken is added to it.
        multiple_of: see `run.align`.
        file: where to note what is done.
        pace: predicted times, if the run is to know them.
        groups: layers that keep one width.
    """
    trajectory = Trajectory.of(anatomy, begun, multiple_of, pace, groups)
    with bar("encoding", 1.0, progress) as show:
        while not trajectory.meets(budget):
            most = int(budget.value) - len(trajectory) if budget.unit == "steps" else CHUNK
            some = list(islice(more, min(CHUNK, most)))
            begun += some
            trajectory = Trajectory.of(anatomy, begun, multiple_of, pace, groups)
            show(trajectory.progress(budget))
            if file is not None:
                file.write(begun)
            if not some:
                break
    if file is not None:
        file.write(begun, now=True)
    return trajectory
