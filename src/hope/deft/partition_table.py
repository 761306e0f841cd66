"""Text and HTML tables of a partition."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hope._util.tables import grid, text

if TYPE_CHECKING:
    from hope.deft.partition import Partition


def render(partition: Partition) -> str:
    """The tables as text."""
    return text(*parts_of(partition))


def parts_of(partition: Partition) -> list[object]:
    """One row per layer and stream with its bounds, and a list of what is completely core."""
    counts, bounds = partition.counts(), partition.bounds
    total = [sum(column) for column in zip((0, 0, 0), *counts.values(), strict=True)]
    threshold = f"threshold {partition.threshold:.4g}"
    if partition.by == "prune-cost":
        threshold += f" ({partition.lock.reason})"
    bounded = not partition.fresh
    freed = f", {total[2]} freed by merging" if bounded else ""
    table = grid(
        f"{partition.anatomy.model}: {total[0]} core, {total[1]} slack{freed} "
        f"(by {partition.by}, {partition.amount}, {threshold})",
        " layer or stream", "neurons", "core", "slack",
        *(("freed", "severed", "shock ≤", "merging δ", "share") if bounded else ()),
    )  # fmt: skip
    known = {bound.name: bound for bound in bounds.units}
    for name, some in counts.items():
        numbers = [str(some[2]), "", "", "", ""] if bounded else []
        if name in known:
            bound = known[name]
            numbers[1:] = [f"{v:.3g}" for v in (bound.severed, bound.directed, bound.merging, bound.share)]
        table.add_row(name, *map(str, (sum(some), *some[:2])), *numbers)
    words = "" if bounds.proven else " (not a bound: pair merges lose more than their δ)"
    parts: list[object] = [table, f"unified cumulative bound {bounds.cumulative:.4g}{words}"]
    if not bounded:
        what = "the core is refitted" if partition.refitted is not None else "nothing is severed"
        parts = [table, f"{what}, so the bounds of severing do not apply: see tuning.cost"]
    if bounds.left_out:
        names = ", ".join(bounds.left_out)
        parts.append(f"not included, because the capacity of their readers is unknown: {names}")
    parts.append(f"head: {partition.head or 'frozen, shared by both tasks'}")
    if partition.left_alone:
        whole = list(partition.left_alone)
        more = f" and {len(whole) - 5} more" if len(whole) > 5 else ""
        parts.append(f"completely core: {', '.join(whole[:5])}{more}")
    return parts
