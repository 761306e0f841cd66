"""The units with an elasticity: neurons of layers and channels of streams, with all their positions.

A channel of a residual stream is written and read by many weights. It has one elasticity over all of them, so
that identity paths never join core and slack (the paper's assumption of bipartite separability).
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from hope import ops
from hope.deft.heads import FROZEN
from hope.errors import NotSeparable
from hope.ops.weight import is_weight
from hope.reasons import Cause
from hope.structure.anatomy import Anatomy
from hope.structure.units import Skipped, Unit

HARMLESS = (Cause.OUTPUT, Cause.SINGLE, Cause.UNREAD)


def find_units(anatomy: Anatomy) -> list[Unit]:
    """All layers and streams that some weight reads, in order of execution as the anatomy lists them."""
    return [unit for unit in anatomy.units if unit.readers]


def matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Whether any of the names matches any of the patterns (`*`, `?`)."""
    return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def find_head(anatomy: Anatomy, name: str | None) -> str:
    """The module whose outputs are the model's: a new task replaces it. "" if both tasks share it."""
    if name == FROZEN:
        return ""
    modules = {tensor.rpartition(".")[0] for tensor in anatomy.parameters}
    found = [one.name for one in anatomy.skipped if one.kind == "layer" and one.reason.cause is Cause.OUTPUT]
    tied = _tied(anatomy)
    if tied and not found and (name is None or name not in modules):
        raise NotSeparable(
            f"the head of {anatomy.model} shares the weight {tied} with the embedding, which cannot be "
            f"trained for one task alone: share it with head={FROZEN!r}"
        )
    if name is not None:
        if name not in modules:
            raise NotSeparable(
                f"head must name a module with parameters, got {name!r}: see model.named_modules()"
            )
        reader = _reader(anatomy, name)
        if reader:
            raise NotSeparable(
                f"{name} cannot be the head, because {reader} reads its output: name the last layer of the "
                "model with head="
            )
        return name
    if not found:
        raise NotSeparable(
            f"a layer of {anatomy.model} must write its outputs directly, got none (a softmax after the "
            "head is one reason): name the head with head="
        )
    if len(found) > 1:
        raise NotSeparable(
            f"one layer of {anatomy.model} must write its outputs, got {len(found)} ({', '.join(found)}): "
            "name the head with head="
        )
    return found[0]


def _tied(anatomy: Anatomy) -> str:
    """The weight that is both an embedding and a layer; "" if there is none."""
    looked_up = {one.tensors.get("weight") for one in anatomy.program if one.operator == "embedding"}
    layers = (one.tensors.get("weight") for one in anatomy.program if one.operator == "linear")
    return next((name for name in layers if name is not None and name in looked_up), "")


def _reader(anatomy: Anatomy, module: str) -> str:
    """A weight that reads a module's output, directly or indirectly; "" if there is none."""
    after: set[int] = set()
    for form in ops.forms(anatomy.program):
        if form is None:
            continue
        tensors = form.operation.tensors
        own = any(f"{tensor}.".startswith(f"{module}.") for tensor in tensors.values())
        fed = not after.isdisjoint(form.inputs)
        if fed and not own and is_weight(form):
            return tensors["weight"]
        if fed or own:
            after.add(form.operation.position)
    return ""


def check_separable(anatomy: Anatomy, units: Sequence[Unit], head: str, core: Sequence[str]) -> list[Skipped]:
    """Refuse networks in which slack would reach core other than through a weight that can be severed.

    Everything that is not prunable is completely core. That is right if it reads no slack, and for further
    outputs; in the middle of the network it would separate all slack before it from the head.

    Returns:
        The units that are completely core for this reason.
    """
    for stream in anatomy.streams:
        if stream.mixed and not matches(stream.writers, core):
            raise NotSeparable(
                f"the stream of {stream.name} cannot be split into core and slack: {stream.mixed}, so slack "
                f"would reach core; freeze the whole stream with core=[{stream.name!r}] (slack then writes "
                "into it, except in source())"
            )
    inside = {module for unit in units for module in unit.modules}
    inside |= {unit.name for unit in anatomy.units if unit.fixed is not None}  # nothing is cut here
    left = [one for one in anatomy.skipped if one.name not in inside and one.name != head]
    left = [one for one in left if one.kind != "block"]  # nor evicted
    tied = _tied(anatomy)
    reading = {p.tensor.rpartition(".")[0] for unit in units for p in unit.places if p.role == "in"}
    for one in left:
        if one.kind != "layer" or one.reason.cause in HARMLESS or one.name not in reading:
            continue
        if not head and f"{one.name}.weight" == tied:
            continue  # a frozen head: it writes the outputs
        if not matches([one.name], core):
            raise NotSeparable(
                f"{one.name} cannot be split into core and slack: {one.reason}; "
                f"freeze it completely with core=[{one.name!r}]"
            )
    return left
