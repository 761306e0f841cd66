"""The tables that a printed encoding has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

from hope._util.numbers import plural
from hope._util.tables import FlexibleTable, grid
from hope.reasons import Reason
from hope.report.serving import serving_table
from hope.schedule.trajectory import Trajectory
from hope.storage.run import Run

SHOWN = 12  # reasons


def summary(run: Run, method: str, lines: Sequence[str], model: nn.Module) -> list[object]:
    """What is printed of a run: sizes, lines, where the model can be served, and what was kept.

    Args:
        method: its name.
        lines: what is known besides the sizes; empty ones are left out.
        model: the compressed one.
    """
    trajectory, steps = run.trajectory, run.steps
    title = f"{run.anatomy.model} by {method}: {plural(steps, 'step')} ({trajectory.counted(steps)})"
    head = [size_table(title, trajectory, steps), *filter(None, lines)]
    rounded = any(step.weight_grid is not None for step in trajectory.steps[:steps])
    return [*head, *serving_table(model, rounded=rounded), *left_alone_table(run.details.left_alone)]


def size_table(title: str, trajectory: Trajectory, steps: int) -> FlexibleTable:
    """What a network has before and after steps of a run; bytes if weights are rounded."""
    table, sizes = grid(title, " ", "before", "after", "kept"), (trajectory.size(0), trajectory.size(steps))
    rows = {name: [getattr(size, name) for size in sizes] for name in ("neurons", "parameters", "macs")}
    if any(step.weight_grid is not None for step in trajectory.steps[:steps]):
        stored = trajectory.counts("size")
        rows["bytes"] = [int(stored[0]), int(stored[steps])]
    for name, (old, new) in rows.items():
        table.add_row(name, f"{old:,}", f"{new:,}", f"{new / old:.1%}" if old else "")
    return table


def left_alone_table(left_alone: Mapping[str, Reason]) -> list[object]:
    """What the method kept, and why; nothing if it kept nothing."""
    if not left_alone:
        return []
    reasons = grid("Left alone by this method", " what", " why")
    for name, reason in list(left_alone.items())[:SHOWN]:
        reasons.add_row(name, str(reason))
    more = len(left_alone) - SHOWN
    return ["", reasons, *([f"and {more} more (encoding.left_alone)"] if more > 0 else [])]
