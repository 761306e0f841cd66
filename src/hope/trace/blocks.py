"""Blocks: branches of layers that can go as a whole, and what an eviction does with them.

A *residual* block is an add that joins a branch with a skip; the branch is everything between the fork and
the add, found by dominance in the program, whatever the code looks like. Without a skip (found in
`hope.structure.skipless`), a block is one part of a *concatenation* with all that is computed for it alone,
or a segment of a *chain* that gives back the shape it is given. How a block can be taken out of the *modules*
is a separate question with two answers (found in `hope.structure.eviction_strategies`):

- `Replace`: one module computes exactly the block, from its input to the add and the activation after it. It
  is replaced by its own skip: nothing of the branch is left at run time.
- `ReplaceByZero`: the block is a part of a larger module's code. The branch's modules are replaced so that
  the code still runs and adds nothing (or a bias), joins nothing, or hands on what it is given.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec
import networkx

from hope.trace.program import Operation, Program, Ref


class Replace(msgspec.Struct, frozen=True, tag="replace", tag_field="kind", forbid_unknown_fields=True):
    """Replace one module by its skip.

    Attributes:
        module: path of the module that computes the block.
        skip: children (by name, in order) that make up the skip; none for an identity.
        after: what follows the add: a child's name, or the class name of a parameter-free `torch.nn`
            activation.
        positive: what enters is the output of a ReLU and a ReLU is all that follows: without a bias it does
            nothing.
    """

    module: str
    skip: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    positive: bool = False

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the modules that are replaced."""
        return (self.module,)


class ReplaceByZero(msgspec.Struct, frozen=True, tag="silence", tag_field="kind", forbid_unknown_fields=True):
    """Replace the modules of the branch by ones that cost nothing.

    Attributes:
        modules: paths in order of execution; the first cuts the branch off, the last hands out zero (or the
            bias).
        full: the add works in place on the branch, so the zero must have the full shape.
        returns: per module, how many things it returns as a tuple; 0 for a plain tensor.
        gives: what each hands on: "zero", a single one or as many as `full` says; "nothing", an empty tensor,
            which a concatenation passes over; "input", what it was given.
    """

    modules: tuple[str, ...]
    full: bool = False
    returns: tuple[int, ...] = ()
    gives: Literal["zero", "nothing", "input"] = "zero"

    @property
    def paths(self) -> tuple[str, ...]:
        """Paths of the modules that are replaced."""
        return self.modules


@dataclass(frozen=True, repr=False)
class Block:
    """A branch of layers which can be evicted."""

    # path of the module whose code does the add (with the add's number if it does several); without a skip,
    # of the modules that go ("first:last" if they are several)
    name: str
    # "identity" (no parameters on it) or "projection"; without a skip "concatenation" (it is one part of one)
    # or "chain" (its output has the shape of its input, and it is replaced by an identity)
    skip: str
    channels: int  # channels of the branch's output
    channel_dim: int  # the dimension they stand in
    ndim: int  # how many dimensions the branch's output has
    # neuron layers inside the branch. Those of a part of a concatenation lose all their neurons: who reads
    # them, however far away, is cut as for pruned ones
    layers: tuple[str, ...]
    release: int  # parameters that an eviction releases
    inside: str | None  # the innermost other block whose branch contains this one
    way: Replace | ReplaceByZero  # how it is taken out of the modules
    bias: bool  # whether a per-channel bias can be left
    last_bn: str | None  # the BN in front of the add, if the branch ends in one
    skip_bn: str | None  # the last BN that wrote into the signal of the skip, if there is one
    tensors: tuple[str, ...]  # parameters and buffers that the branch uses
    branch_output: str  # name of the graph node that ends the branch
    # a BN that reads the signal of the skip, as the first of a pre-activation branch does
    read_bn: str | None = None
    # of a part of a concatenation: the other parts of each concatenation that could go as well; one of each
    # must stay
    besides: tuple[tuple[str, ...], ...] = ()
    # of a segment of a chain: the unit in front of it. Once the segment is removed, neuron k of that unit is
    # read by whoever read neuron k of the segment; it is there as long as both were
    before: str | None = None

    @property
    def residual(self) -> bool:
        """Whether there is a skip."""
        return self.skip in ("identity", "projection")

    @property
    def place(self) -> str:
        """Path of the (first) module that an eviction replaces."""
        return self.way.paths[0]

    def removes(self, name: str) -> bool:
        """Whether evicting this block removes the module, parameter or buffer of that name."""
        return removes(self.way, name)

    def contains(self, other: Block) -> bool:
        """Whether evicting this block takes another one's modules along."""
        return all(self.removes(path) for path in other.way.paths)

    def __repr__(self) -> str:
        where = f"with {self.skip} skip" if self.residual else f"in a {self.skip}"
        return f"<Block {self.name}: {len(self.layers)} layers {where}, {self.channels} channels>"


def removes(way: Replace | ReplaceByZero, name: str) -> bool:
    """Whether taking a block out in this way removes the module, parameter or buffer of that name."""
    if isinstance(way, ReplaceByZero):
        return any(under(name, module) for module in way.modules)
    kept = [f"{way.module}.{child}" for child in (*way.skip, *way.after)]
    return under(name, way.module) and not any(under(name, child) for child in kept)


def under(name: str, module: str) -> bool:
    """Whether a name is that of a module or of something inside it."""
    return name == module or name.startswith(module + ".")


@dataclass(frozen=True)
class BlockMatch:
    """A block as positions in the program."""

    kind: str  # "identity", "projection", "concatenation" or "chain" (see `Block.skip`)
    # add, fork: where branch and skip meet, and where they part. Without a skip: what reads the branch (one
    # of several), and what it reads (-1 if that is not one operation)
    add: int
    fork: int
    end: int  # the branch's last operation
    branch: frozenset[int]  # branch, skip: the operations in between
    skip: frozenset[int] = frozenset()
    others: tuple[frozenset[int], ...] = ()  # what ends the other parts of each concatenation
    before: str | None = None  # the unit in front of a segment of a chain

    @property
    def residual(self) -> bool:
        """Whether there is a skip."""
        return self.kind in ("identity", "projection")


class DominatorTree:
    """A program seen as what runs on the model's inputs and counts for its outputs.

    Attributes:
        program: all of it.
        above: operation -> those before it that it reads.
        below: operation -> those that read it.
        ran: module -> the operations that ran while it did.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.above: dict[int, list[int]] = {}
        self.below: dict[int, list[int]] = {}
        self.ran: dict[str, set[int]] = {}
        live = _live(program)
        for operation in program:
            position = operation.position
            reads = [other for other in operation.inputs if other in self.above]
            fed = reads and operation.operator != "output"
            if position in live and (operation.operator == "input" or fed):
                self.above[position], self.below[position] = reads, []
                for other in reads:
                    self.below[other].append(position)
                for module in operation.modules:
                    self.ran.setdefault(module, set()).add(position)

    def find(self, weights: frozenset[str]) -> list[BlockMatch]:
        """Every add that joins a branch and a skip, the branch having more of the given weights than the
        skip.
        """
        start = -1
        edges = [(other, position) for position, reads in self.above.items() for other in reads or [start]]
        dominator = networkx.immediate_dominators(networkx.DiGraph(edges), start) if edges else {}
        program = self.program
        mixing = {position for position in self.above if self.tensors([position]) & weights}
        found = (
            self._block(program[position], dominator[position], mixing)
            for position in self.above
            if program[position].operator == "add" and dominator[position] != start
        )
        return [one for one in found if one is not None]

    def _block(self, add: Operation, fork: int, mixing: set[int]) -> BlockMatch | None:
        a, b = add.arguments.get("self"), add.arguments.get("other")
        if not isinstance(a, Ref) or not isinstance(b, Ref) or a == b or add.arguments.get("alpha") != 1:
            return None
        ends = (a.position, b.position)
        if any(end not in self.above or self.program[end].shape != add.shape for end in ends):
            return None
        over = [self._between(end, fork) for end in ends]
        heavy = [len(mixing & one) for one in over]
        if heavy[0] == heavy[1] or over[0] & over[1]:
            return None
        k = 0 if heavy[0] > heavy[1] else 1
        branch, skip = over[k], over[1 - k]
        readers = {user for position in branch for user in self.below[position]}
        if not readers <= branch | {add.position}:
            return None
        kind = "projection" if min(heavy) > 0 else "identity"
        return BlockMatch(kind, add.position, fork, ends[k], frozenset(branch), frozenset(skip))

    def _between(self, end: int, fork: int) -> set[int]:
        """The operations from the fork (not included) to the end (included)."""
        seen: set[int] = set()
        stack = [end]
        while stack:
            position = stack.pop()
            if position != fork and position not in seen:
                seen.add(position)
                stack += self.above[position]
        return seen

    @cached_property
    def _after(self) -> dict[int, int]:
        """Operation -> the next one that all that is made of it passes (a post-dominator), -1 at the end."""
        read = {p for operation in self.program if operation.operator == "output" for p in operation.inputs}
        edges = [(-1, position) for position in self.above if position in read or not self.below[position]]
        edges += [(user, position) for position, users in self.below.items() for user in users]
        return networkx.immediate_dominators(networkx.DiGraph(edges), -1) if edges else {}

    def only_for(self, end: int) -> set[int]:
        """The operations that are there for this one alone, with itself."""
        found = {end}
        for position in sorted(self.above, reverse=True):
            if self._after.get(position) in found and position != end:
                found.add(position)
        return found

    def outermost(self, positions: frozenset[int], home: str = "") -> tuple[str, ...]:
        """Outermost modules below `home` whose every operation is among the given ones, in order of
        execution.
        """
        names: dict[str, None] = {}
        for position in sorted(positions):
            for module in self.program[position].modules:
                below = module and module != home and (not home or under(module, home))
                if below and self.ran.get(module, set()) <= positions:
                    names[module] = None
                    break
        return tuple(names)

    def tensors(self, positions: Collection[int]) -> set[str]:
        """The parameters and buffers that these operations read."""
        return {name for position in positions for name in self.program[position].tensors.values()}


def _live(program: Program) -> set[int]:
    """What an output depends on: not the checks that export leaves, nor writes into masks and the
    like.
    """
    live = {operation.position for operation in program if operation.operator == "output"}
    for operation in reversed(program):
        if operation.position in live:
            live.update(operation.inputs)
    return live
