"""What is refused before any work is done, with the way out."""

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
PERCENTILE = 20.0
MERGES: dict[bool | str, str | None] = {True: "sum", "sum": "sum", "pair": "pair", False: None}


def check_options(
    percentile: float | None, fidelity: float | None, example: object, by: str, merge: bool | str
) -> float:
    """A number from 0 to 100, or a fidelity that can be asked for; a partition and a merge that there are.

    Returns:
        The percentile.
    """
    if percentile is not None and fidelity is not None:
        raise InvalidPartition("percentile= and fidelity= are two ways to say how much is slack: give one")
    percentile = PERCENTILE if percentile is None else percentile
    if isinstance(percentile, bool) or not isinstance(percentile, Real) or not 0 <= percentile <= 100:
        raise InvalidPartition(f"percentile={percentile!r} is none: give a number from 0 to 100")
    if fidelity is not None:
        if isinstance(fidelity, bool) or not isinstance(fidelity, Real) or not 0 < fidelity <= 1:
            raise InvalidPartition(f"fidelity={fidelity!r} is none: give a number above 0, at most 1")
        if example is None:
            raise InvalidPartition(
                f"fidelity={fidelity!r} needs an example, for inputs of its shape: give one"
            )
    if by not in BY:
        raise InvalidPartition(f"there is no partition by {by!r}: choose from {', '.join(BY)}")
    if merge not in MERGES:
        raise InvalidPartition(f"there is no merge {merge!r}: choose True, 'sum', 'pair' or False")
    return percentile


def check_sever(sever: str) -> str:
    """A way to sever that there is."""
    if sever not in SEVER:
        raise InvalidPartition(f"there is no sever={sever!r}: choose from {', '.join(SEVER)}")
    return sever


def check_same(anatomy: Anatomy, tensors: Mapping[str, Tensor]) -> None:
    """An anatomy of this model and of no other."""
    for name in sorted(anatomy.shapes.keys() | tensors.keys()):
        there = tuple(anatomy.shapes[name]) if name in anatomy.shapes else "not there"
        here = tuple(tensors[name].shape) if name in tensors else "not there"
        if there != here:
            raise CheckpointMismatch(
                f"anatomy= is that of another model ({name} is {there} in it and {here} in this one): "
                "leave it out, or call hope.inspect on this model"
            )


def check_patterns(anatomy: Anatomy, patterns: Sequence[str]) -> None:
    """Patterns that fit something."""
    names = [name for unit in find_units(anatomy) for name in unit.modules]
    names += [one.name for one in anatomy.skipped if one.kind != "block"]
    names += [name for stream in anatomy.streams for name in stream.writers]
    for pattern in patterns:
        if not matches(names, [pattern]):
            some = ", ".join(dict.fromkeys(names[:5]))
            raise InvalidPartition(
                f"core={pattern!r} fits no layer or stream of {anatomy.model}: they are called {some}, …; "
                "print(hope.inspect(...)) lists them"
            )


def check_weights(model: nn.Module, original: str) -> None:
    """The model that was partitioned, by its fingerprint."""
    if fingerprint(model) != original:
        raise CheckpointMismatch(
            f"the partition was made for other weights than this {type(model).__name__} has: "
            "call hope.deft.partition on this model"
        )
