"""The typed record of a run, `trajectory.json`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, cast

import msgspec

from hope.actions.base import Action
from hope.actions.registered import AnyAction, kinds, stored_type
from hope.latency.timing import Timing
from hope.reasons import Reason
from hope.storage.arrays import Arrays
from hope.storage.codec import Format, Plain, extent
from hope.storage.migrations import run_to_3
from hope.structure.anatomy import Anatomy
from hope.structure.units import Skipped, Unit
from hope.trace.blocks import Block

PLAN = "trajectory.json"
MOST = 1 << 26  # the largest number of positions of all units of a network


@dataclass(frozen=True)
class Details:
    """Details for reports, which replaying does not need. Older runs have none.

    Attributes:
        measures: unit -> the value of each of its neurons in the original network: ‖f_i‖, or a score.
        left_alone: layers and blocks that the method kept, with the reason.
        source: "model", "weights" and "input" of the command line.
        fidelities: (steps, predicted fidelity) that were computed.
        scores: (steps, score by the user's function) that were computed.
        settings: the options of the run (see `schedule.resume`).
    """

    measures: Mapping[str, Sequence[float]] = field(default_factory=dict)
    left_alone: Mapping[str, Reason] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)
    fidelities: Sequence[tuple[int, float]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)
    scores: Sequence[tuple[int, float]] = ()

    def rounded(self) -> Details:
        """The same with numbers in the precision of a picture."""
        return replace(
            self,
            measures={name: [_short(value) for value in some] for name, some in self.measures.items()},
            fidelities=[(steps, _short(value)) for steps, value in self.fidelities],
            scores=[(steps, _short(value)) for steps, value in self.scores],
        )


def _short(value: float) -> float:
    """A number in the precision of a picture.

    >>> _short(0.123456789)
    0.123457
    """
    return float(f"{value:.6g}")


class StoredStatistics(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """An `InputStatistics` without its moments."""

    weight: str
    dim: int
    repeat: int
    bn: str
    bias: str


class Moments(Arrays, frozen=True, kw_only=True):
    """The file of the moments, and their weights."""

    input_statistics: tuple[StoredStatistics, ...] = msgspec.field(name="intakes")


class StoredAnatomy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An `Anatomy` as it is saved: without its program and observation points, which no replay needs."""

    model: str
    units: tuple[Unit, ...]
    blocks: tuple[Block, ...]
    skipped: tuple[Skipped, ...]
    shapes: dict[str, tuple[int, ...]]
    parameters: tuple[str, ...]
    positions: dict[str, int]
    aliases: dict[str, tuple[str, ...]]
    eps: dict[str, float]
    itemsize: dict[str, int] = {}

    @classmethod
    def of(cls, anatomy: Anatomy) -> StoredAnatomy:
        """The saved form; names in order, so that the same run gives the same file."""
        fields = {name: getattr(anatomy, name) for name in cls.__struct_fields__}
        return cls(**{**fields, "parameters": tuple(sorted(anatomy.parameters))})

    def read(self) -> Anatomy:
        """The anatomy."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        return Anatomy(**{**fields, "parameters": frozenset(self.parameters)})


class RunRecord(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The content of `trajectory.json`."""

    original: str  # fingerprint of the checkpoint that was compressed
    weights: Arrays  # the compressed weights
    method: dict[str, Any]  # how the steps were chosen: its name, and its options
    steps: int  # how many of the trajectory's steps the budget took
    trajectory: tuple[AnyAction, ...]  # all steps
    anatomy: StoredAnatomy  # the network that they refer to
    stops: tuple[int, ...] = ()  # after how many steps the run may be ended; empty if after any
    moments: Moments | None = None  # what absorptions need
    details: Details = msgspec.field(default_factory=Details)  # for reports
    # whether the weights were trained on since; then there is no other budget than this one
    trained: bool = False
    # synthetic inputs that weights were fitted on, so that other budgets can be had back
    inputs: Arrays | None = None
    times: tuple[int, ...] = ()  # as `predicted` of a latency was stored
    timing: Timing | None = None  # where predicted times hold, and what was measured
    # resource -> how much before the first and after each step, by the cost model that the run was made with
    predicted: dict[str, tuple[int, ...]] = {}

    def __post_init__(self) -> None:
        for resource, counts in self.predictions().items():
            if len(counts) != len(self.trajectory) + 1:
                need = len(self.trajectory) + 1
                raise ValueError(f"{resource} must be {need}, one more than steps, got {len(counts)}")
        if not isinstance(self.method.get("name"), str):
            raise ValueError(f"the method must have a name, got {self.method.get('name')!r}")
        for count in (self.steps, *self.stops):
            if not 0 <= count <= len(self.trajectory):
                raise ValueError(f"a number of steps must be 0 to {len(self.trajectory)}, got {count}")

    def predictions(self) -> dict[str, tuple[int, ...]]:
        """`predicted`, also of a run that was stored with `times`."""
        return {**({"latency": self.times} if self.times else {}), **self.predicted}


class _Shapes(msgspec.Struct):
    model: str
    shapes: dict[str, tuple[int, ...]]


class AnatomyShapes(msgspec.Struct):
    """The part of a record that is the same in every version."""

    anatomy: _Shapes


class _IndexMapSizes(msgspec.Struct):
    """An `IndexMap` with packed owners."""

    tensor: str
    dim: int
    owner: Any


class _UnitSizes(msgspec.Struct):
    name: str
    neurons: int
    places: tuple[_IndexMapSizes, ...]


class _AnatomySizes(msgspec.Struct):
    units: tuple[_UnitSizes, ...]
    shapes: dict[str, tuple[int, ...]]


class _RunSizes(msgspec.Struct):
    anatomy: _AnatomySizes


def check_index_maps(plan: Plain) -> None:
    """Refuse owners of other sizes than their tensors, or too many, before arrays are made of them."""
    anatomy, total = msgspec.convert(plan, _RunSizes).anatomy, 0
    for unit in anatomy.units:
        widest = 0
        for place in unit.places:
            (size, neurons), shape = extent(place.owner), anatomy.shapes[place.tensor]
            if not 0 <= place.dim < len(shape) or size != shape[place.dim]:
                raise ValueError(
                    f"{place.tensor} must have owners for dimension {place.dim} of {shape}, got {size}"
                )
            if neurons > unit.neurons:
                raise ValueError(
                    f"{place.tensor} must have at most {unit.neurons} neurons of {unit.name}, got {neurons}"
                )
            total, widest = total + size, max(widest, size)
        if unit.neurons > widest:
            raise ValueError(f"{unit.name} must have at most {widest} neurons, got {unit.neurons}")
    if total > MOST:
        raise ValueError(f"units must have at most {MOST:,} places, got {total:,}")


RUN = Format("hope-run", "run", RunRecord, 3, run_to_3, check_index_maps)


def run_format() -> Format[RunRecord]:
    """The format of runs with all kinds of actions that are registered by now."""
    return replace(RUN, record=_record(kinds()))


@cache
def _record(_: tuple[type[Action], ...]) -> type[RunRecord]:
    fields = [("trajectory", tuple[stored_type(), ...])]  # type: ignore[misc]
    how: dict[str, Any] = {"frozen": True, "kw_only": True, "forbid_unknown_fields": True}
    return cast("type[RunRecord]", msgspec.defstruct("RunRecord", fields, bases=(RunRecord,), **how))
