"""Checks of arguments before any work."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from numbers import Real

from torch import Tensor, nn

from hope.deft.separable import find_units, matches
from hope.errors import CheckpointMismatch, InvalidPartition
from hope.storage.run import fingerprint
from hope.structure.anatomy import Anatomy

BY = ("prune-cost", "capacity")
SEVER = ("mask", "absorb")
PERCENTILE, FIDELITY = 20.0, 0.95
MERGES: dict[bool | str, str | None] = {True: "sum", "sum": "sum", "pair": "pair", False: None}


def check_options(
    percentile: float | None, fidelity: float | None, example: object, by: str, merge: bool | str
) -> tuple[float, float | None]:
    """Check percentile or fidelity, the kind of partition and the kind of merge.

    Returns:
        The percentile, and the fidelity that decides instead of it, if any.
    """
    if percentile is not None and fidelity is not None:
        raise InvalidPartition("give either percentile= or fidelity=, not both")
    if percentile is None and fidelity is None and by == BY[0] and example is not None:
        fidelity = FIDELITY
    percentile = PERCENTILE if percentile is None else percentile
    if isinstance(percentile, bool) or not isinstance(percentile, Real) or not 0 <= percentile <= 100:
        raise InvalidPartition(f"percentile must be between 0 and 100, got {percentile!r}")
    if fidelity is not None:
        if isinstance(fidelity, bool) or not isinstance(fidelity, Real) or not 0 < fidelity <= 1:
            raise InvalidPartition(f"fidelity must be above 0 and at most 1, got {fidelity!r}")
        if example is None:
            raise InvalidPartition(f"fidelity={fidelity!r} needs an example input: pass example=")
    if by not in BY:
        raise InvalidPartition(f"by must be one of {', '.join(BY)}, got {by!r}")
    if merge not in MERGES:
        raise InvalidPartition(f"merge must be True, 'sum', 'pair' or False, got {merge!r}")
    return percentile, fidelity


def check_sever(sever: str) -> str:
    """Check the way of severing."""
    if sever not in SEVER:
        raise InvalidPartition(f"sever must be one of {', '.join(SEVER)}, got {sever!r}")
    return sever


def check_same(anatomy: Anatomy, tensors: Mapping[str, Tensor]) -> None:
    """Check that an anatomy belongs to this model."""
    for name in sorted(anatomy.shapes.keys() | tensors.keys()):
        there = tuple(anatomy.shapes[name]) if name in anatomy.shapes else "not there"
        here = tuple(tensors[name].shape) if name in tensors else "not there"
        if there != here:
            raise CheckpointMismatch(
                f"anatomy= belongs to another model ({name} is {there} there and {here} in this one): "
                "omit it, or call hope.inspect on this model"
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
                f"core={pattern!r} matches no layer or stream of {anatomy.model} ({some}, …): "
                "print(hope.inspect(...)) lists them"
            )


def check_weights(model: nn.Module, original: str) -> None:
    """Check by its fingerprint that this is the partitioned model."""
    if fingerprint(model) != original:
        raise CheckpointMismatch(
            f"the partition was made for other weights than those of this {type(model).__name__}: "
            "call hope.deft.partition on this model"
        )
