"""What a network consists of: the result of reading it, and its arithmetic (parameters, MACs) after a cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

from torch import nn

from hope._util.calls import Example
from hope.anatomy.flow import Flow
from hope.anatomy.labels import Shape
from hope.anatomy.reasons import Cause
from hope.anatomy.units import NeuronLayer, Skipped, Stream, read
from hope.anatomy.ways import ending_bn, leaves_bias, preceding_bn, ways
from hope.errors import UnsupportedModel
from hope.graph.blocks import Block, Found, Layout, removes
from hope.graph.capture import capture, check_readable
from hope.graph.program import Program, read_program


@dataclass(frozen=True)
class Size:
    """How large a network is.

    Attributes:
        neurons: neurons in compressible layers.
        parameters: `nn.Parameter` entries (buffers are not parameters).
        macs: multiply-accumulates of convolutions and linear layers on the example.
    """

    neurons: int
    parameters: int
    macs: int


@dataclass(frozen=True, eq=False)
class Anatomy:
    """A network read as neurons. `print(anatomy)` shows it as a table.

    Attributes:
        model: the model's class name.
        layers: neuron layers, in order of execution.
        blocks: residual blocks that can be evicted.
        streams: channels tied together by adds, with all writers and readers.
        skipped: everything left alone, with the reason.
        shapes: shapes of all parameters and buffers.
        parameters: the names that count as parameters.
        positions: weight -> how many times the example uses each of its entries (for MACs).
        aliases: parameter -> all the names it goes by, for those with several.
        program: its operations in order; a saved anatomy has none.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> anatomy = hope.inspect(net, torch.zeros(1, 4))
        >>> anatomy.layer("0").neurons, anatomy.size().parameters, anatomy.floor().parameters
        (8, 58, 9)
    """

    model: str
    layers: tuple[NeuronLayer, ...]
    blocks: tuple[Block, ...]
    streams: tuple[Stream, ...]
    skipped: tuple[Skipped, ...]
    shapes: Mapping[str, Shape]
    parameters: frozenset[str]
    positions: Mapping[str, int]
    aliases: Mapping[str, tuple[str, ...]]
    program: Program = ()

    def names(self, tensor: str) -> tuple[str, ...]:
        """All names that a parameter or buffer goes by; it is gone when the last of them is."""
        return self.aliases.get(tensor, (tensor,))

    def layer(self, name: str) -> NeuronLayer:
        """The neuron layer of that name."""
        return next(layer for layer in self.layers if layer.name == name)

    def block(self, name: str) -> Block:
        """The block of that name."""
        return next(block for block in self.blocks if block.name == name)

    def size(
        self,
        removed: Mapping[str, int] | None = None,
        evicted: Collection[str] = (),
        biases: Collection[str] = (),
    ) -> Size:
        """The size after a cut, without making it.

        Args:
            removed: layer name -> how many of its neurons go.
            evicted: names of evicted blocks.
            biases: those of them that leave a per-channel bias behind.
        """
        removed = removed or {}
        gone = [self.block(name) for name in evicted]
        shapes = {name: list(shape) for name, shape in self.shapes.items()}
        neurons = 0
        for layer in self.layers:
            if any(block.removes(layer.weight) for block in gone):
                continue
            count = removed.get(layer.name, 0)
            neurons += layer.neurons - count
            for part in layer.slices:
                shapes[part.tensor][part.dim] -= count * part.index.shape[1]
        left = {
            tensor: prod(shape)
            for tensor, shape in shapes.items()
            if not all(any(block.removes(name) for block in gone) for name in self.names(tensor))
        }
        return Size(
            neurons=neurons,
            parameters=sum(size for name, size in left.items() if name in self.parameters)
            + sum(block.channels for block in gone if block.name in biases),
            macs=sum(self.positions.get(name, 0) * size for name, size in left.items()),
        )

    def floor(self) -> Size:
        """The smallest size within reach: every block evicted, one neuron left in every other layer."""
        outer = [block.name for block in self.blocks if block.inside is None]
        return self.size({layer.name: layer.neurons - 1 for layer in self.layers}, outer)

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
    program = read_program(capture(model, example, progress=progress))
    unused = parameters - flow.walk(program)
    if unused:  # heads that only training uses read channels too
        with suppress(
            UnsupportedModel
        ):  # then they stay as they are, and the trial run tells whether that holds
            trained = capture(model, example, training=True, progress=progress)
            unused -= flow.walk(read_program(trained), training=True)
    shared = _shared(model)
    reading = read(flow, parameters, shared)
    skipped = [
        Skipped(name, _first(flow.shapes[name]), Cause.UNUSED.at(), "parameter") for name in sorted(unused)
    ]
    weights = frozenset(tensor for (tensor, _), role in flow.roles.items() if role in ("out", "through"))
    layout = Layout(program)
    found = layout.find(weights)
    candidates = _candidates(layout, found, reading.layers, flow, parameters, shared)
    home = _homes(candidates)
    anatomy = Anatomy(
        model=type(model).__name__,
        layers=tuple(replace(layer, block=home.get(layer.name)) for layer in reading.layers),
        blocks=(),
        streams=reading.streams,
        skipped=(*reading.skipped, *skipped),
        shapes=flow.shapes,
        parameters=parameters,
        positions=dict(flow.positions),
        aliases=shared,
        program=program,
    )
    return anatomy, candidates


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
    layers: Iterable[NeuronLayer],
    flow: Flow,
    parameters: frozenset[str],
    shared: Mapping[str, tuple[str, ...]],
) -> list[Candidate]:
    names = _block_names(layout, found)
    candidates = []
    for one in found:
        around = [other for other in found if one.add in other.branch]
        inside = min(around, key=lambda other: len(other.branch), default=None)
        fed = layout.tensors(one.branch)
        # a branch of depthwise filters only has the channels of the layer that runs through it; they may go
        writes = any(tensor in fed for (tensor, _), role in flow.roles.items() if role == "out")
        shape, end = layout.program[one.add].shape or (), layout.program[one.end]
        dim = flow.channel_dim(end)
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
                bias=writes and leaves_bias(layout, one, way),
                last_bn=ending_bn(layout, one),
                skip_bn=preceding_bn(layout, one, found),
                tensors=tuple(sorted(fed)),
                branch_output=end.name,
            )
            for way in ways(layout, one)
        )
        candidates.append(Candidate(names[one], shape[dim], blocks))
    return candidates


def _block_names(layout: Layout, found: list[Found]) -> dict[Found, str]:
    """A block goes by the module that does its add; several in one module are numbered."""
    paths = [layout.program[one.add].module or "model" for one in found]
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
