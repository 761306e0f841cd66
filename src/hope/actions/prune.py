"""Remove neurons."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, ClassVar

from msgspec.structs import force_setattr

from hope.actions.base import Action
from hope.statistics.input_statistics import InputStatistics
from hope.structure.anatomy import Anatomy


class Prune(Action, frozen=True, array_like=True, tag="prune"):
    """Remove neurons of a unit.

    Attributes:
        name: the unit's name.
        removed: the neurons that are removed.

    >>> Prune("layer1.0.conv1", [3, 1]).removed
    (3, 1)
    """

    kind: ClassVar[str] = "prune"
    letter: ClassVar[str] = "p"
    done: ClassVar[str] = "pruned"
    plural: ClassVar[str] = "prunes"
    sentence: ClassVar[str] = "prune {neurons} in {name}"
    colours: ClassVar[tuple[str, str]] = ("#b34e14", "#ef8d55")

    name: str
    if TYPE_CHECKING:  # one number or any sequence is accepted, a tuple is kept
        removed: tuple[int, ...]

        def __init__(
            self,
            name: str,
            removed: Sequence[int] | int,
            *,
            cost: float = 0.0,
            release: int = 0,
            left: float = 0.0,
        ) -> None: ...
    else:
        removed: Sequence[int] | int

    def __post_init__(self) -> None:
        some = self.removed if isinstance(self.removed, Iterable) else (self.removed,)
        force_setattr(self, "removed", tuple(int(neuron) for neuron in some))

    def writes(self, anatomy: Anatomy, statistics: Mapping[str, InputStatistics]) -> set[str] | None:
        """Nothing: tensors are cut."""
        return set()
