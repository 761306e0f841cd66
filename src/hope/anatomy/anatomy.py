"""What a network consists of: the result of reading it, and its arithmetic (parameters, MACs) after a cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod

from torch import nn

from hope import ops
from hope._util.calls import Example
from hope.anatomy.flow import Flow
from hope.anatomy.labels import Shape
from hope.anatomy.reasons import Cause
from hope.anatomy.sizes import Size, size_after
from hope.anatomy.units import Skipped, Unit, read
from hope.errors import UnsupportedModel
from hope.graph.blocks import Block, Found, Layout, ending_bn, leaves_bias, preceding_bn, removes
from hope.graph.capture import capture, check_readable, module_path, shape_of
from hope.graph.program import Op, read_program


@dataclass(frozen=True, eq=False, repr=False)
class Anatomy:
    """A network read as neurons. `print(anatomy)` shows it as a table.

    Attributes:
        model: the model's class name.
        units: layers of neurons in order of execution, then streams.
        blocks: residual blocks that can be evicted.
        skipped: everything left alone, with the reason.
        shapes: shapes of all parameters and buffers.
        parameters: the names that count as parameters.
        positions: weight -> how many times the example uses each of its entries (for MACs).
        aliases: parameter -> all the names it goes by, for those with several.
        eps: BN -> its ε.
        program: the order of operations, for surrogates that follow signals; not saved with a run.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> anatomy = hope.inspect(net, torch.zeros(1, 4))
        >>> anatomy.unit("0").neurons, anatomy.size().parameters, anatomy.floor().parameters
        (8, 58, 9)
    """

    model: str
    units: tuple[Unit, ...]
    blocks: tuple[Block, ...]
    skipped: tuple[Skipped, ...]
    shapes: Mapping[str, Shape]
    parameters: frozenset[str]
    positions: Mapping[str, int]
    aliases: Mapping[str, tuple[str, ...]]
    eps: Mapping[str, float]
    program: tuple[Op, ...] = field(default=(), repr=False)

    @cached_property
    def layers(self) -> tuple[Unit, ...]:
        """Units whose neurons can be removed one by one, in order of execution."""
        return tuple(unit for unit in self.units if unit.kind == "layer")

    @cached_property
    def streams(self) -> tuple[Unit, ...]:
        """Channels tied together by adds, with all writers and readers. Not compressed yet."""
        return tuple(unit for unit in self.units if unit.kind == "stream")

    @cached_property
    def _named(self) -> tuple[dict[str, Unit], dict[str, Block]]:
        return {unit.name: unit for unit in self.units}, {block.name: block for block in self.blocks}

    def names(self, tensor: str) -> tuple[str, ...]:
        """All names that a parameter or buffer goes by; it is gone when the last of them is."""
        return self.aliases.get(tensor, (tensor,))

    def unit(self, name: str) -> Unit:
        """The layer or stream of that name."""
        return self._named[0][name]

    def block(self, name: str) -> Block:
        """The block of that name."""
        return self._named[1][name]

    def size(
        self,
        removed: Mapping[str, int] | None = None,
        evicted: Collection[str] = (),
        biases: Collection[str] = (),
    ) -> Size:
        """The size after a cut, without making it.

        Args:
            removed: unit name -> how many of its neurons go.
            evicted: names of evicted blocks.
            biases: those of them that leave a per-channel bias behind.
        """
        return size_after(self, removed or {}, evicted, biases)

    def floor(self) -> Size:
        """The smallest size within reach: every block evicted, one neuron left in every other layer."""
        outer = [block.name for block in self.blocks if block.inside is None]
        return self.size({layer.name: layer.neurons - 1 for layer in self.layers}, outer)

    def __repr__(self) -> str:
        return (
            f"<Anatomy of {self.model}: {len(self.layers)} layers, {len(self.blocks)} blocks, "
            f"{len(self.streams)} streams>"
        )

    def __str__(self) -> str:
        from hope.anatomy.table import render

        return render(self)


@dataclass(frozen=True)
class Candidate:
    """A block of the network, with the ways in which it might be evicted, best first."""

    name: str
    channels: int
    ways: tuple[Block, ...]


def read_model(
    model: nn.Module, example: Example | None, *, progress: bool | None = None
) -> tuple[Anatomy, list[Candidate]]:
    """Read a network: its layers, streams, what is left alone, and the blocks that might be evicted.

    The anatomy lists no blocks yet: whether the model's own code still runs without a branch is for a trial
    to say.
    """
    check_readable(model)
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    parameters = frozenset(name for name, _ in model.named_parameters())
    flow = Flow({name: tuple(tensor.shape) for name, tensor in tensors.items()})
    graph = capture(model, example, progress=progress)
    unused = parameters - flow.walk(graph, ops.apply)
    if unused:  # heads that only training uses read channels too
        with suppress(
            UnsupportedModel
        ):  # then they stay as they are, and the trial run tells whether that holds
            unused -= flow.walk(capture(model, example, training=True, progress=progress), ops.apply)
    shared = _shared(model)
    units, skipped = read(flow, parameters, shared)
    skipped += [
        Skipped(name, _first(flow.shapes[name]), Cause.UNUSED.at(), "parameter") for name in sorted(unused)
    ]
    weights = frozenset(tensor for (tensor, _), role in flow.roles.items() if role in ("out", "through"))
    layout = Layout(graph)
    found = layout.find(weights)
    layers = [unit for unit in units if unit.kind == "layer"]
    candidates = _candidates(layout, found, layers, flow, parameters, shared)
    home = _homes(candidates)
    program = read_program(graph)
    anatomy = Anatomy(
        model=type(model).__name__,
        units=tuple(replace(unit, block=home.get(unit.name)) for unit in units),
        blocks=(),
        skipped=tuple(skipped),
        shapes=flow.shapes,
        parameters=parameters,
        positions=dict(flow.positions),
        aliases=shared,
        eps=_eps(units, program),
        program=program,
    )
    return anatomy, candidates


def _eps(units: Iterable[Unit], program: Iterable[Op]) -> dict[str, float]:
    """BN -> its ε; those that only training uses are met on the way to a reader alone."""
    ways = [step for unit in units for reader in unit.readers for step in reader.path]
    met = {step.name: step.values[0] for step in ways if step.kind == "bn" and step.values}
    return met | {op.tensors[0]: op.values[0] for op in program if op.kind == "bn"}


def _first(shape: Shape) -> int:
    return shape[0] if shape else 1


def _shared(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Parameters that go by several names -> all their names."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {name: tuple(group) for group in names.values() if len(group) > 1 for name in group}


def _candidates(
    layout: Layout,
    found: list[Found],
    layers: Iterable[Unit],
    flow: Flow,
    parameters: frozenset[str],
    shared: Mapping[str, tuple[str, ...]],
) -> list[Candidate]:
    names = _block_names(found)
    candidates = []
    for one in found:
        around = [other for other in found if one.add in other.branch]
        inside = min(around, key=lambda other: len(other.branch), default=None)
        fed = {layout.graph.tensors.get(p.name) for node in one.branch for p in node.all_input_nodes}
        # a branch of depthwise filters only has the channels of the layer that runs through it; they may go
        writes = any(tensor in fed for (tensor, _), role in flow.roles.items() if role == "out")
        shape = shape_of(one.add) or ()
        dim = flow.channel_dim(one.end)
        blocks = tuple(
            Block(
                name=names[one],
                skip="projection" if one.projection else "identity",
                channels=shape[dim],
                channel_dim=dim,
                ndim=len(shape),
                layers=tuple(layer.name for layer in layers if layer.weight in fed),
                release=sum(
                    prod(flow.shapes[tensor])
                    for tensor in parameters
                    if all(removes(way, name) for name in shared.get(tensor, (tensor,)))
                ),
                inside=names[inside] if inside is not None else None,
                way=way,
                bias=writes and leaves_bias(one, way),
                last_bn=ending_bn(one, layout.graph),
                skip_bn=preceding_bn(one, found, layout.graph),
                tensors=tuple(sorted(name for name in fed if name is not None)),
                branch_output=one.end.name,
            )
            for way in layout.ways(one)
        )
        candidates.append(Candidate(names[one], shape[dim], blocks))
    return candidates


def _block_names(found: list[Found]) -> dict[Found, str]:
    """A block goes by the module that does its add; several in one module are numbered."""
    paths = [module_path(one.add) or "model" for one in found]
    seen: Counter[str] = Counter()
    names = {}
    for one, path in zip(found, paths, strict=True):
        seen[path] += 1
        names[one] = f"{path}#{seen[path]}" if paths.count(path) > 1 else path
    return names


def _homes(candidates: list[Candidate]) -> dict[str, str]:
    """Layer -> the innermost block it lies in."""
    inner_first = sorted((c for c in candidates if c.ways), key=lambda c: len(c.ways[0].layers))
    home: dict[str, str] = {}
    for candidate in inner_first:
        for layer in candidate.ways[0].layers:
            home.setdefault(layer, candidate.name)
    return home
