"""Checks of arguments before any work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real

from torch import Tensor, nn

from hope.deft.separable import find_units, matches
from hope.errors import CheckpointMismatch, InvalidPartition
from hope.storage.run import fingerprint
from hope.structure.anatomy import Anatomy

BY = ("prune-cost", "capacity")
SEVER = ("refit", "mask", "absorb")
FRESH = ("refit", "grow")
PERCENTILE, FIDELITY = 20.0, 0.95
MERGES: dict[bool | str, str | None] = {True: "sum", "sum": "sum", "pair": "pair", False: None}


@dataclass(frozen=True)
class Request:
    """How much is to be slack, and how it is found.

    Attributes:
        free: the share of slack of a refitted core, or by which the network grows.
        percentile: of costs or capacities, otherwise.
        fidelity: decides instead of both, if it is given.
        fallback: whether nothing may be merged if merging costs more than the fidelity allows.
    """

    sever: str
    by: str
    merge: str | None
    percentile: float = PERCENTILE
    free: float = 0.0
    fidelity: float | None = None
    fallback: bool = False

    @property
    def refits(self) -> bool:
        """Whether the core is refitted."""
        return self.sever == "refit"

    @classmethod
    def of(
        cls,
        example: object,
        free: float | None,
        fidelity: float | None,
        percentile: float | None,
        by: str,
        merge: bool | str | None,
        sever: str | None,
        grow: float | None = None,
    ) -> Request:
        """Check the arguments of `hope.deft.partition`, and fill in what is not given."""
        given = {"grow": grow, "free": free, "fidelity": fidelity, "percentile": percentile}
        names = [name for name, value in given.items() if value is not None]
        if len(names) > 1:
            raise InvalidPartition(f"{names[0]}= and {names[1]}= cannot be combined: give one of them")
        if by not in BY:
            raise InvalidPartition(f"by must be one of {', '.join(BY)}, got {by!r}: give {BY[0]!r}")
        if merge is not None and merge not in MERGES:
            raise InvalidPartition(
                f"merge must be True, 'sum', 'pair' or False, got {merge!r}: leave it out for True"
            )
        by_paper = percentile is not None or merge is not None or by != BY[0]
        if grow is not None:
            return cls._grown(grow, example, by_paper, sever)
        if sever is None:
            sever = "mask" if by_paper or example is None else "refit"
        check_sever(sever)
        if free is not None and sever != "refit":
            raise InvalidPartition(f"free= must go with sever='refit', got {sever!r}: use percentile=")
        if by_paper and sever == "refit":
            raise InvalidPartition(
                "percentile=, by= and merge= must go with sever='mask' or 'absorb', got 'refit': use free="
            )
        chooses = not names and example is not None and by == BY[0]
        if chooses:
            fidelity = FIDELITY
        percentile = PERCENTILE if percentile is None else _number("percentile", percentile, 0, 100)
        if free is not None:
            free = _number("free", free, 0, 1)
        if fidelity is not None:
            fidelity = _number("fidelity", fidelity, 0, 1, above=True)
        if example is None and (fidelity is not None or sever == "refit"):
            what = "sever='refit'" if fidelity is None else f"fidelity={fidelity!r}"
            raise InvalidPartition(f"{what} must have an example input, got none: pass example=")
        mode = None if sever == "refit" else MERGES[True if merge is None else merge]
        return cls(sever, by, mode, percentile, free or 0.0, fidelity, chooses)

    @classmethod
    def _grown(cls, grow: float, example: object, by_paper: bool, sever: str | None) -> Request:
        if by_paper or sever is not None:
            raise InvalidPartition(
                "grow= cannot be combined with sever=, by= or merge=, since it severs nothing: omit them"
            )
        if example is None:
            raise InvalidPartition("grow= must have an example input, got none: pass example=")
        return cls("grow", BY[0], None, free=_number("grow", grow, 0, 4, above=True))


def _number(name: str, value: object, least: float, most: float, *, above: bool = False) -> float:
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not real or not least <= float(value) <= most or (above and value == least):  # type: ignore[arg-type]
        words = f"above {least:g} and at most" if above else f"between {least:g} and"
        raise InvalidPartition(f"{name} must be {words} {most:g}, got {value!r}: give a number in that range")
    return float(value)  # type: ignore[arg-type]


def check_sever(sever: str) -> str:
    """Check the way of severing."""
    if sever not in SEVER:
        raise InvalidPartition(f"sever must be one of {', '.join(SEVER)}, got {sever!r}: give {SEVER[0]!r}")
    return sever


def check_same(anatomy: Anatomy, tensors: Mapping[str, Tensor]) -> None:
    """Check that an anatomy belongs to this model."""
    for name in sorted(anatomy.shapes.keys() | tensors.keys()):
        there = tuple(anatomy.shapes[name]) if name in anatomy.shapes else "not there"
        here = tuple(tensors[name].shape) if name in tensors else "not there"
        if there != here:
            raise CheckpointMismatch(
                f"the anatomy must be this model's, got {name} {there} in it and {here} in the model: omit "
                "anatomy=, or call hope.inspect on this model"
            )


def check_patterns(anatomy: Anatomy, patterns: Sequence[str]) -> None:
    """Check that every pattern matches something."""
    names = [name for unit in find_units(anatomy) for name in unit.modules]
    names += [one.name for one in anatomy.skipped if one.kind != "block"]
    names += [name for stream in anatomy.streams for name in stream.writers]
    for pattern in patterns:
        if not matches(names, [pattern]):
            some = ", ".join(dict.fromkeys(names[:5]))
            raise InvalidPartition(
                f"core must be patterns of layers or streams of {anatomy.model} ({some}, …), got "
                f"{pattern!r}: print(hope.inspect(...)) lists them"
            )


def check_weights(model: nn.Module, original: str) -> None:
    """Check by its fingerprint that this is the partitioned model."""
    if fingerprint(model) != original:
        raise CheckpointMismatch(
            f"the partition must be of this {type(model).__name__}, got one of other weights: call "
            "hope.deft.partition on this model"
        )
