"""Take a run's steps until a budget is met, and note them on the way."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from hope.methods.plan import Plan
from hope.run.align import aligned
from hope.run.checkpoint import Begun, Checkpoint
from hope.run.merge import Choice
from hope.run.trajectory import UNITS, Trajectory, allowed, sizes

CHUNK = 256  # steps between two looks at the budget


def collect(
    plan: Plan,
    stream: Iterator[Choice],
    unit: str,
    budget: float,
    begun: Begun,
    multiple_of: int = 1,
    file: Checkpoint | None = None,
    *,
    progress: bool | None = None,
) -> Trajectory:
    """Take steps until the budget is met, or nothing is left to do.

    Args:
        begun: what an interrupted run has done already.
        multiple_of: see `run.align`.
        file: where to note what is done.
    """
    actions, costs, releases, left = begun
    console = Console(stderr=True)
    show = console.is_terminal if progress is None else progress
    columns = (TextColumn("encoding"), BarColumn(), TextColumn("{task.percentage:.0f}%"), TimeElapsedColumn())
    trajectory = _trajectory(plan, begun, multiple_of)
    with Progress(*columns, console=console, transient=True, disable=not show) as bar:
        task = bar.add_task("encoding", total=1.0)
        while not _met(trajectory, unit, budget):
            most = int(budget) - len(trajectory) if unit == "steps" else CHUNK
            some = list(islice(stream, min(CHUNK, most)))
            actions += [plan.action(choice) for choice in some]
            costs += [choice.cost for choice in some]
            releases += [choice.release for choice in some]
            left += [choice.move.capacity if choice.move else 0.0 for choice in some]
            trajectory = _trajectory(plan, begun, multiple_of)
            bar.update(task, completed=_progress(trajectory, unit, budget))
            if file is not None:
                file.write(*begun)
            if not some:
                break
    return trajectory


def _trajectory(plan: Plan, done: Begun, multiple_of: int) -> Trajectory:
    actions, costs, releases, left = done
    order: tuple[int, ...] = tuple(range(len(actions)))
    stops: tuple[int, ...] = ()
    if multiple_of > 1:
        order, stops = aligned(plan.anatomy, actions, multiple_of)
    taken = tuple(actions[k] for k in order)
    return Trajectory(
        taken,
        tuple(costs[k] for k in order),
        tuple(releases[k] for k in order),
        sizes(plan.anatomy, taken),
        tuple(left[k] for k in order),
        stops,
    )


def _met(trajectory: Trajectory, unit: str, budget: float) -> bool:
    if unit == "steps":
        return len(trajectory) >= budget
    if unit == "fidelity":
        return False
    last = trajectory.stops[-1] if trajectory.stops else -1
    column = UNITS.index(unit)
    return bool(trajectory.sizes[last, column] <= allowed(unit, budget, int(trajectory.sizes[0, column])))


def _progress(trajectory: Trajectory, unit: str, budget: float) -> float:
    if unit == "steps":
        return len(trajectory) / max(budget, 1)
    if unit == "fidelity":
        return 1 - int(trajectory.sizes[-1, 0]) / max(1, int(trajectory.sizes[0, 0]))
    column = trajectory.sizes[:, UNITS.index(unit)]
    goal = allowed(unit, budget, int(column[0]))
    return float((column[0] - column[-1]) / max(column[0] - goal, 1))
