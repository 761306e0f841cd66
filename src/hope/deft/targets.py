"""The units of a network that are split into core and slack."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hope.deft.checks import check_patterns
from hope.deft.separable import check_separable, find_head, find_units, matches
from hope.errors import InvalidPartition
from hope.reasons import Cause, Reason
from hope.structure.anatomy import Anatomy
from hope.structure.units import Unit


@dataclass(frozen=True, eq=False)
class Targets:
    """What is to be split."""

    head: str  # the module that a new task replaces
    units: list[Unit]  # all that have an elasticity
    free: list[Unit]  # those that may have slack
    left_alone: dict[str, Reason]  # what is core as a whole, with the reason

    def masks(self, locks: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Unit -> (neurons,) True if core, including units that are completely core."""
        return {
            unit.name: locks.get(unit.name, torch.ones(unit.neurons, dtype=torch.bool)) for unit in self.units
        }


def find_targets(
    anatomy: Anatomy, head: str | None, patterns: Sequence[str], able: Callable[[Unit], bool] | None = None
) -> Targets:
    """The units of a network, those that may have slack, and why the others may not.

    Args:
        able: whether a unit may have slack; by default all.
    """
    check_patterns(anatomy, patterns)
    if able is not None:
        whole = [unit for unit in anatomy.units if not able(unit)]
        patterns = [*patterns, *(module for unit in whole for module in unit.modules)]
    found = find_head(anatomy, head)
    units = [unit for unit in find_units(anatomy) if found not in unit.modules]
    left = check_separable(anatomy, units, found, patterns)
    locked = {unit.name for unit in units if matches(unit.modules, patterns)}
    free = [unit for unit in units if unit.name not in locked]
    if not free:
        raise InvalidPartition(
            f"{anatomy.model} must have units that can be split into core and slack, got none: "
            "print(hope.inspect(...)) lists the reasons"
        )
    asked = dict.fromkeys(sorted(locked), Cause.ASKED.at())
    return Targets(found, units, free, {**asked, **{one.name: one.reason for one in left}})
