"""Read a model: capture it, follow its channels, find its units and the blocks that might be evicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import prod

from torch import nn

from hope import ops
from hope._util.calls import Example
from hope.anatomy.anatomy import Anatomy
from hope.anatomy.flow import Flow
from hope.anatomy.grouping import read
from hope.anatomy.labels import Shape
from hope.anatomy.reasons import Cause
from hope.anatomy.units import Skipped, Unit
from hope.errors import UnsupportedModel
from hope.graph.blocks import Block, Found, Layout, ending_bn, leaves_bias, preceding_bn, removes
from hope.graph.capture import capture, check_readable, module_path, shape_of
from hope.graph.program import read_program


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
        eps={op.tensors[0]: op.values[0] for op in program if op.kind == "bn"},
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
