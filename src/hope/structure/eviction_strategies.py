"""Eviction strategies: how to remove a block from the modules, and which BNs write a residual
block's skip.
"""

from __future__ import annotations

from hope import ops
from hope.ops.activation import Activation
from hope.ops.elementwise import Identity
from hope.ops.join import Item
from hope.ops.norm import BatchNorm
from hope.ops.pool import Pool
from hope.trace.blocks import BlockMatch, DominatorTree, Replace, ReplaceByZero, under
from hope.trace.program import Operation


def strategies(layout: DominatorTree, found: BlockMatch) -> tuple[Replace | ReplaceByZero, ...]:
    """The eviction strategies of a block, best first. The dry run decides whether the code accepts one."""
    kinds = (_replace, _replace_by_zero) if found.residual else (_without,)
    known = (way for way in (kind(layout, found) for kind in kinds) if way is not None)
    return tuple(way for way in known if not (found.residual and _said_elsewhere(layout, found, way)))


def _said_elsewhere(layout: DominatorTree, found: BlockMatch, way: Replace | ReplaceByZero) -> bool:
    """Whether other parts of the network read what the modules compute outside the branch, such as a table of
    positions that later layers share: it would be removed with them.
    """
    modules, program = way.paths, layout.program
    own = {
        operation.position
        for operation in program
        if operation.tensor is None
        and any(under(path, name) for path in operation.modules for name in modules)
    }
    passes = found.branch | found.skip | {found.add, *(own if isinstance(way, Replace) else ())}
    ends = {max(own & layout.above.keys(), default=-1)} if isinstance(way, Replace) else {found.end}
    return any(
        position in own and position not in ends
        for reader in program
        if reader.position not in own | passes
        for position in reader.inputs
    )


def _without(layout: DominatorTree, found: BlockMatch) -> ReplaceByZero | None:
    """A strategy without a skip: the modules with all of the branch's parameters return nothing, or their
    input.
    """
    modules = layout.outermost(found.branch)
    if not all(any(under(name, module) for module in modules) for name in layout.tensors(found.branch)):
        return None
    return ReplaceByZero(modules, gives="nothing" if found.kind == "concatenation" else "input")


def _replace(layout: DominatorTree, found: BlockMatch) -> Replace | None:
    program = layout.program
    inner = _home(layout, found)
    if inner is None:
        return None
    module, inside = inner
    outside = {p for position in inside for p in layout.above[position] if p not in inside}
    skip = _children(layout, found.skip, module)
    after = _after(layout, found, module)
    if outside != {found.fork} or skip is None or after is None:
        return None
    names = tuple(name for name, _ in after)
    if len({*skip, *names}) < len(skip) + len(names):
        return None  # a child that is called twice
    last = max(inside)
    relus = program[found.fork].operator == "relu" and program[last].operator == "relu"
    positive = relus and not skip and last != found.add and len(after) == 1
    return Replace(module, skip, names, positive)


def _home(layout: DominatorTree, found: BlockMatch) -> tuple[str, set[int]] | None:
    """The innermost module that runs all of the block and nothing before it, and what it runs."""
    for module in reversed(layout.program[found.add].modules):
        inside = layout.ran.get(module, set())
        if not module or found.fork in inside:
            return None  # the module does more than the block, and so do the modules around it
        if found.branch <= inside and found.skip <= inside:
            return module, inside
    return None


def _after(layout: DominatorTree, found: BlockMatch, module: str) -> list[tuple[str, str]] | None:
    """What a module does after the add: its children, or classes of `torch.nn`, each with its call."""
    rest = layout.ran[module] - found.branch - found.skip - {found.add}
    after: list[tuple[str, str]] = []
    position = found.add
    while rest:
        users = layout.below[position]
        if len(users) != 1 or users[0] not in rest:
            return None
        position = users[0]
        rest.discard(position)
        operation = layout.program[position]
        call = _child(operation, module) or (_functional(operation), operation.name)
        if not call[0]:
            return None
        if call not in after:
            after.append(call)
    return after


def _functional(operation: Operation) -> str:
    """The torch.nn class of a functional activation with default parameters, "" if there is none."""
    entry = ops.find(operation)
    return entry.plain(operation) if isinstance(entry, Activation) else ""


def _child(operation: Operation, module: str) -> tuple[str, str] | None:
    """The name of the module's direct child that ran the operation, and which call it was; None if its own
    code did.
    """
    paths = operation.modules
    depth = paths.index(module) + 1 if module in paths else len(paths)
    return (paths[depth][len(module) + 1 :], operation.calls[depth][1]) if depth < len(paths) else None


def _children(layout: DominatorTree, positions: frozenset[int], module: str) -> tuple[str, ...] | None:
    """Direct children that do exactly these operations, in order; None if the module's own code does some."""
    calls = dict.fromkeys(_child(layout.program[position], module) for position in sorted(positions))
    names = tuple(call[0] for call in calls if call is not None)
    others = (_child(layout.program[position], module) for position in layout.ran[module] - positions)
    taken = {call[0] for call in others if call is not None}
    return None if None in calls or taken & set(names) else names


def _replace_by_zero(layout: DominatorTree, found: BlockMatch) -> ReplaceByZero | None:
    program = layout.program
    inside = layout.outermost(found.branch, program[found.add].module)
    if not inside:
        return None
    last = max(layout.ran[inside[-1]])
    rest = [program[position] for position in found.branch if position > last]
    if any(operation.operator != "mul" and not _does_nothing(operation) for operation in rest):
        return None
    entered = {position for position in found.branch if found.fork in layout.above[position]}
    full = program[found.add].in_place and program[found.add].inputs[0] == found.end
    same = program[found.end].shape == program[found.fork].shape
    if not entered <= layout.ran[inside[0]] or (full and not same):
        return None
    return ReplaceByZero(inside, full)


def leaves_bias(layout: DominatorTree, found: BlockMatch, way: Replace | ReplaceByZero) -> bool:
    """Whether a per-channel bias can remain: if the block is replaced, or its last module ends the branch."""
    return isinstance(way, Replace) or way.modules[-1] in layout.program[found.end].modules


def ending_bn(layout: DominatorTree, found: BlockMatch) -> str | None:
    """The BN whose output is the branch's output."""
    position = found.end
    while _does_nothing(layout.program[position]):
        position = layout.program[position].inputs[0]
    return _bn(layout.program[position])


def preceding_bn(layout: DominatorTree, found: BlockMatch, everything: list[BlockMatch]) -> str | None:
    """The last BN that wrote into the skip's tensor: the previous block's, or the stem's."""
    branch_ends = {other.add: other.end for other in everything}
    position: int | None = found.fork
    while position is not None and _bn(layout.program[position]) is None:
        operation = layout.program[position]
        fed = [p for p in operation.inputs if layout.program[p].tensor is None]
        onwards = fed[0] if len(fed) == 1 and _channelwise(operation) else None
        position = branch_ends.get(position, onwards)
    return _bn(layout.program[position]) if position is not None else None


def reading_bn(layout: DominatorTree, found: BlockMatch) -> str | None:
    """A BN that reads the skip's tensor and stores its mean and variance."""
    open_ = [found.fork]
    while open_:
        readers = layout.below[open_.pop(0)]
        for position in readers:
            if (name := _bn(layout.program[position])) is not None:
                return name
        open_ += [position for position in readers if _does_nothing(layout.program[position])]
    return None


def _bn(operation: Operation) -> str | None:
    names = list(operation.tensors.values())
    return names[0].rpartition(".")[0] if names and isinstance(ops.find(operation), BatchNorm) else None


def _does_nothing(operation: Operation) -> bool:
    return isinstance(ops.find(operation), (Identity, Item))


def _channelwise(operation: Operation) -> bool:
    """Whether channels are unchanged except by an activation without parameters, or a pool."""
    entry = ops.find(operation)
    return isinstance(entry, (Identity, Item, Pool)) or (isinstance(entry, Activation) and bool(entry.module))
