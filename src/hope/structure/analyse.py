"""Analyse a model: capture it, trace its channels, find its units and the candidates for eviction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count

from torch import nn

from hope._util.calls import Example
from hope.errors import UnsupportedModel
from hope.ops.norm import epsilons
from hope.ops.registry import SETTINGS
from hope.reasons import Cause
from hope.structure.anatomy import Anatomy
from hope.structure.channel_tracer import ChannelTracer
from hope.structure.eviction_strategies import ending_bn, leaves_bias, preceding_bn, reading_bn, strategies
from hope.structure.grouping import read
from hope.structure.observation_points import find_taps
from hope.structure.roundable import roundable
from hope.structure.sizes import USUAL, released_by
from hope.structure.skipless import skipless
from hope.structure.units import Skipped, Unit
from hope.trace.blocks import Block, BlockMatch, DominatorTree, Replace, ReplaceByZero
from hope.trace.capture import capture, check_readable
from hope.trace.labels import Shape
from hope.trace.program import Program, read_program
from hope.trace.trace import Trace

SIMPLE = (int, float, str, tuple)


@dataclass(frozen=True)
class UnitCandidate:
    """A block of the network with its possible eviction strategies, best first."""

    name: str
    channels: int
    strategies: tuple[Block, ...]


def read_model(
    model: nn.Module, example: Example | None, *, streams: bool = False, progress: bool | None = None
) -> tuple[Anatomy, list[UnitCandidate]]:
    """Analyse a network: layers, streams, everything that is kept, and candidates for eviction.

    The anatomy has no blocks yet: a dry run decides whether the model's code runs without a branch.
    """
    check_readable(model)
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    parameters = frozenset(name for name, _ in model.named_parameters())
    flow = ChannelTracer({name: tuple(tensor.shape) for name, tensor in tensors.items()}, streams=streams)
    trace = Trace()
    program = trace.captured(model, example, progress=progress).program
    unused = parameters - flow.walk(program)
    if unused:  # heads used in training only read channels, too
        with suppress(UnsupportedModel):  # then they are kept, and the dry run checks that
            trained = capture(model, example, training=True, progress=progress)
            unused -= flow.walk(read_program(trained), training=True)
    shared = _shared(model)
    units, skipped = read(flow, parameters, shared, streams=streams)
    skipped += [
        Skipped(name, _first(flow.shapes[name]), Cause.UNUSED.at(), "parameter") for name in sorted(unused)
    ]
    weights = frozenset(tensor for (tensor, _), role in flow.roles.items() if role in ("out", "through"))
    layout = DominatorTree(program)
    residual = layout.find(weights)
    layers = [unit for unit in units if unit.kind == "layer"]
    anatomy = Anatomy(
        model=type(model).__name__,
        units=tuple(units),
        blocks=(),
        skipped=tuple(skipped),
        shapes=flow.shapes,
        parameters=parameters,
        positions=dict(flow.positions),
        aliases=shared,
        eps=_eps(units, program),
        itemsize={name: one.itemsize for name, one in tensors.items() if one.itemsize != USUAL},
        program=program,
        taps=find_taps(flow, program, units),
        thins=streams,
        made=made_of(model),
        trace=trace,
        roundable=roundable(program, flow.shapes, parameters, shared),
    )
    found = sorted([*residual, *skipless(layout, flow, layers, residual)], key=lambda one: one.add)
    candidates = _candidates(layout, found, anatomy, flow)
    home = _homes(candidates)
    anatomy = replace(anatomy, units=tuple(replace(unit, block=home.get(unit.name)) for unit in units))
    return anatomy, candidates


def made_of(model: nn.Module) -> dict[str, str]:
    """Modules -> their kinds and settings that affect the computation."""
    found = {}
    for name, module in model.named_modules():
        known = ((setting, getattr(module, setting, None)) for setting in SETTINGS)
        settings = [f"{setting}={value}" for setting, value in known if isinstance(value, SIMPLE)]
        found[name] = f"{type(module).__name__}({', '.join(settings)})"
    return found


def _eps(units: Iterable[Unit], program: Program) -> dict[str, float]:
    """BN -> its ε. BNs used in training only are found on the path to a reader."""
    links = [link for unit in units for reader in unit.readers for link in reader.path]
    met = {link.name: link.values[0] for link in links if link.kind == "bn" and link.values}
    return met | epsilons(program)


def _first(shape: Shape) -> int:
    return shape[0] if shape else 1


def _shared(model: nn.Module) -> dict[str, tuple[str, ...]]:
    """Parameters with several names -> all their names."""
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return {name: tuple(group) for group in names.values() if len(group) > 1 for name in group}


def _candidates(
    layout: DominatorTree, found: list[BlockMatch], anatomy: Anatomy, flow: ChannelTracer
) -> list[UnitCandidate]:
    residual = [one for one in found if one.residual]
    options = {one: strategies(layout, one) for one in found}
    found = [one for one in found if one.residual or options[one]]
    names = _block_names(layout, found, options, {unit.name for unit in anatomy.units})
    ends = {one.end: names[one] for one in found if one.kind == "concatenation"}
    candidates = []
    for one in found:
        around = [other for other in found if one.branch < other.branch]
        inside = min(around, key=lambda other: len(other.branch), default=None)
        fed = layout.tensors(one.branch)
        # a branch of depthwise filters only has the channels of the layer that passes through it; they are
        # prunable
        writes = any(tensor in fed for (tensor, _), role in flow.roles.items() if role == "out")
        end = layout.program[one.end]
        shape, dim = end.shape or (), flow.channel_dim(end)
        blocks = tuple(
            Block(
                name=names[one],
                skip=one.kind,
                channels=shape[dim],
                channel_dim=dim,
                ndim=len(shape),
                layers=tuple(one.name for one in anatomy.layers if one.kind == "layer" and one.weight in fed),
                release=0,
                inside=names[inside] if inside is not None else None,
                way=way,
                bias=one.residual and writes and leaves_bias(layout, one, way),
                last_bn=ending_bn(layout, one) if one.residual else None,
                skip_bn=preceding_bn(layout, one, residual) if one.residual else None,
                tensors=tuple(sorted(fed)),
                branch_output=end.name,
                besides=tuple(
                    tuple(ends[other] for other in sorted(others))
                    for others in one.others
                    if others <= ends.keys()
                ),
                before=one.before,
                read_bn=reading_bn(layout, one) if one.residual else None,
            )
            for way in options[one]
        )
        candidates.append(UnitCandidate(names[one], shape[dim], tuple(_counted(b, anatomy) for b in blocks)))
    return candidates


def _counted(block: Block, anatomy: Anatomy) -> Block:
    """The block with the parameters that its eviction saves."""
    return replace(block, release=released_by(replace(anatomy, blocks=(block,)), block.name))


def _block_names(
    layout: DominatorTree,
    found: list[BlockMatch],
    options: Mapping[BlockMatch, tuple[Replace | ReplaceByZero, ...]],
    taken: Collection[str],
) -> dict[BlockMatch, str]:
    """A residual block is named after the module of its add; several in one module are numbered. A block
    without a skip is named after its modules.
    """
    adds = [one for one in found if one.residual]
    paths = [layout.program[one.add].module or "model" for one in adds]
    seen: Counter[str] = Counter()
    names = {}
    for one, path in zip(adds, paths, strict=True):
        seen[path] += 1
        names[one] = f"{path}#{seen[path]}" if paths.count(path) > 1 else path
    for one in found:
        if not one.residual:
            first, last = options[one][0].paths[0], options[one][0].paths[-1]
            path = first if first == last else f"{first}:{last.removeprefix(first.rpartition('.')[0] + '.')}"
            known = {*taken, *names.values()}
            again = (f"{path}#{number}" for number in count(1))
            names[one] = path if path not in known else next(name for name in again if name not in known)
    return names


def _homes(candidates: list[UnitCandidate]) -> dict[str, str]:
    """Layer -> the innermost residual block that contains it."""
    residual = [c for c in candidates if c.strategies and c.strategies[0].residual]
    inner_first = sorted(residual, key=lambda c: len(c.strategies[0].layers))
    home: dict[str, str] = {}
    for candidate in inner_first:
        for layer in candidate.strategies[0].layers:
            home.setdefault(layer, candidate.name)
    return home
