"""The operators of a network that take time: those with weights, whose times depend on their widths, and the
rest, which is counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

from hope.ops.elementwise import Identity
from hope.ops.join import Item, Split
from hope.ops.norm import BatchNorm
from hope.ops.registry import find
from hope.ops.shape import Cut, Expand, Permute, Select, View
from hope.ops.weight import Convolution, Linear, Transposed, Transposing, Weighted
from hope.structure.anatomy import Anatomy
from hope.trace.program import Operation, Ref, references

Key: TypeAlias = tuple[str, int]  # a tensor and one of its dimensions
FREE = (Cut, Expand, Item, Identity, Permute, Select, Split, View)  # they return their input
FUSED = ("relu", "hardtanh", "clamp", "sigmoid", "tanh", "leaky_relu")  # fused into a preceding convolution


@dataclass(frozen=True)
class TimedOperator:
    """What is done, but for its widths: what a measured time is filed under."""

    kind: str  # "conv", "transposed" or "linear"
    over: tuple[int, ...]  # batch and space that it reads; of a linear layer all rows
    kernel: tuple[int, ...] = ()  # kernel, stride, padding, dilation, extra: of a convolution
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] | str = ()
    dilation: tuple[int, ...] = ()
    extra: tuple[int, ...] = ()
    # channels that a group reads and writes; () where there are no groups. Groups go whole, so there is one
    # width, that of the weight's first dimension
    group: tuple[int, int] | tuple[()] = ()
    bias: bool = False  # whether it adds one

    @property
    def name(self) -> str:
        """Its name in a table.

        >>> TimedOperator("conv", (1, 8, 8), (3, 3), (1, 1), (1, 1), (1, 1)).name
        'conv 1x8x8 kernel 3x3 stride 1x1 padding 1x1 dilation 1x1'
        """
        words = [self.kind, _by(self.over)]
        for what in ("kernel", "stride", "padding", "dilation", "extra", "group"):
            value = getattr(self, what)
            if value:
                words += [what, value if isinstance(value, str) else _by(value)]
        return " ".join([*words, *(["bias"] if self.bias else [])])

    def channels(self, width: tuple[int, int]) -> tuple[int, int, int]:
        """Inputs, outputs and groups at widths."""
        if not self.group:
            return (*width, 1)
        reads, writes = self.group
        groups = max(1, width[0] // (reads if self.kind == "transposed" else writes))
        return reads * groups, writes * groups, groups


def _by(numbers: tuple[int, ...]) -> str:
    return "x".join(map(str, numbers))


@dataclass(frozen=True)
class Site:
    """An operator in its place."""

    operator: TimedOperator  # what it does
    weight: str  # its weight
    # reads, writes: the dimensions of the weight that its two widths stand in; one where it has groups
    reads: int
    writes: int
    full: tuple[int, int]  # the widths in the original
    places: tuple[int, int]  # how many entries of what it reads and of what it writes stand for each channel


@dataclass(frozen=True)
class WeightlessOps:
    """Operations without weights of one width: how many there are, and how many entries they write."""

    sources: tuple[Key, ...]  # the tensors that wrote the channels and have their width
    blocks: tuple[str, ...]  # the blocks that they go with
    count: int
    entries: int


@dataclass(frozen=True)
class TimedNetwork:
    """Everything that takes time in a network."""

    sites: tuple[Site, ...]
    rests: tuple[WeightlessOps, ...]


def read_layout(anatomy: Anatomy, batch: int, engine: str) -> TimedNetwork:
    """Everything that takes time in a network, for a batch of another size than the example's."""
    program = anatomy.program
    given = next((op.output[0] for op in program if op.operator == "input" and op.output), 1)

    def scaled(shape: tuple[int, ...]) -> tuple[int, ...]:
        if not shape or shape[0] % given:
            return shape
        return (shape[0] // given * batch, *shape[1:])

    sites: list[Site] = []
    sources: list[tuple[Key, ...]] = []
    counts: dict[tuple[tuple[Key, ...], tuple[str, ...]], list[int]] = defaultdict(lambda: [0, 0])
    melting: set[int] = set()  # results that onnxruntime computes together with a convolution
    for operation in program:
        known = [sources[position] for position in operation.inputs if sources[position]]
        own = known[0] if known else ()
        if operation.operator == "cat":
            own = tuple(key for some in known for key in some)
        site = _site(operation, anatomy, scaled)
        if site is not None:
            sites.append(site)
            own = ((site.weight, site.writes),)
            melting.add(operation.position)
        elif _takes_time(operation):
            if engine == "onnxruntime" and _melts(operation, melting):
                melting.add(operation.position)
            else:
                blocks = tuple(one.name for one in anatomy.blocks if one.removes(operation.module))
                slot = counts[own, blocks]
                slot[0] += 1
                slot[1] += sum(prod(scaled(shape)) for shape in operation.shapes if shape)
        sources.append(own)
    rests = (WeightlessOps(own, blocks, *some) for (own, blocks), some in counts.items())
    return TimedNetwork(tuple(sites), tuple(rests))


def _takes_time(operation: Operation) -> bool:
    idle = ("input", "tensor", "attribute", "output")
    return operation.operator not in idle and not isinstance(find(operation), FREE) and bool(operation.inputs)


def _melts(operation: Operation, melting: set[int]) -> bool:
    reads = next(references(operation.first), None) if isinstance(operation.first, Ref) else None
    return reads in melting and (isinstance(find(operation), BatchNorm) or operation.operator in FUSED)


def _site(operation: Operation, anatomy: Anatomy, scaled: Any) -> Site | None:
    """An operation with a weight as a measurable operator; None if it is of another kind."""
    entry = find(operation)
    if not isinstance(entry, Weighted):
        return None
    weight = operation.tensors.get(entry.names[1])
    shape = anatomy.shapes.get(weight or "", ())
    reading = next(references(operation.arguments.get(entry.names[0])), None)
    if weight is None or reading is None or len(shape) < 2:
        return None
    reads, writes = scaled(anatomy.program[reading].output), scaled(operation.output)
    bias = operation.arguments.get(entry.names[2]) is not None
    if isinstance(entry, Linear) and len(shape) == 2:
        sides = (0, 1) if isinstance(entry, Transposing) else (1, 0)
        rows, full = prod(writes[:-1]), (shape[sides[0]], shape[sides[1]])
        return Site(TimedOperator("linear", (rows,), bias=bias), weight, *sides, full, (rows, rows))
    if not isinstance(entry, Convolution):
        return None
    arguments, space = operation.arguments, len(shape) - 2
    transposed, groups = isinstance(entry, Transposed), int(arguments["groups"])
    if len(reads) != space + 2:
        return None

    def pair(name: str) -> Any:
        value = arguments.get(name, 0)
        if isinstance(value, str):
            return value
        values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
        return tuple(int(one) for one in (values * space if len(values) == 1 else values))

    sides = (0, 1) if transposed else (1, 0)
    group: tuple[int, int] | tuple[()] = ()
    full = (shape[sides[0]], shape[sides[1]])
    if groups > 1:
        group = (shape[0] // groups, shape[1]) if transposed else (shape[1], shape[0] // groups)
        sides, full = (0, 0), (shape[0], shape[0])
    operator = TimedOperator(
        "transposed" if transposed else "conv",
        (reads[0], *reads[2:]),
        tuple(shape[2:]),
        pair("stride"),
        pair("padding"),
        pair("dilation"),
        pair("output_padding") if transposed else (),
        group,
        bias,
    )
    places = (prod(reads) // reads[1], prod(writes) // writes[1])
    return Site(operator, weight, *sides, full, places)


def movable(anatomy: Anatomy) -> Iterator[Key]:
    """Dimensions that removals reduce."""
    return ((part.tensor, part.dim) for unit in anatomy.layers for part in unit.places)
