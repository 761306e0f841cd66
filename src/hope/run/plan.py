"""What a method has to work with: states of units, prices of blocks, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Executor
from fnmatch import fnmatchcase

from torch import nn

from hope._util.calls import Example
from hope.anatomy.anatomy import Anatomy
from hope.anatomy.sizes import Releases, Size
from hope.anatomy.steps import Step
from hope.anatomy.units import Unit
from hope.graph.blocks import Block
from hope.methods.base import Branch, Method, State
from hope.reasons import Cause, Reason
from hope.run.budget import Budget
from hope.run.merge import Merger


class Plan:
    """States and prices for one run.

    Attributes:
        method: whose.
        known: what the method knows of the network.
        states: of the units that it can work on.
        branches: the blocks that it may evict, with their prices.
        left_alone: name -> why, of units and blocks that the method could not price.
    """

    def __init__(
        self,
        model: nn.Module,
        example: Example | None,
        anatomy: Anatomy,
        method: Method,
        *,
        evict: bool = True,
        exclude: Sequence[str] = (),
        progress: bool | None = None,
    ) -> None:
        self.anatomy, self.method = anatomy, method
        self.known = method.study(model, example, anatomy, progress=progress)
        self.states: list[State] = []
        self.branches: list[Branch] = []
        self.left_alone: dict[str, Reason] = {}
        for unit in anatomy.layers:
            state = _excluded(unit, exclude) or method.state(unit, self.known)
            if isinstance(state, Reason):
                self.left_alone[unit.name] = state
            else:
                self.states.append(state)
        for block in anatomy.blocks if evict and method.evictions != "none" else ():
            branch = self._excludes(block, exclude) or method.branch(block, self.known, self.states)
            if isinstance(branch, Reason):
                self.left_alone[block.name] = branch
            else:
                self.branches.append(branch)

    def _excludes(self, block: Block, patterns: Sequence[str]) -> Reason | None:
        modules = {name.rpartition(".")[0] for name in self.known.numbers.tensors if block.removes(name)}
        return _matching(modules, patterns)

    @property
    def judged(self) -> bool:
        """Whether the judge has to decide about evictions."""
        return bool(self.branches) and self.method.evictions == "judged"

    def steps(self, *, executor: Executor | None = None, done: Sequence[Step] = ()) -> Iterator[Step]:
        """The method's steps, one at a time; evictions that the judge decides about are not among them.

        Args:
            done: what an interrupted run has done already; the rest follows.
        """
        return iter(
            Merger(
                self.states,
                () if self.judged else self.branches,
                walk=self.method.path,
                rank=self.method.rank,
                executor=executor,
                live=Releases(self.anatomy) if self.method.live else None,
                done=done,
            )
        )

    def floor(self) -> Size:
        """The smallest size within reach."""
        removed = {state.name: state.neurons - 1 for state in self.states}
        return self.anatomy.size(removed, [branch.name for branch in self.branches])

    def check(self, budget: Budget) -> None:
        """Say before the work starts whether a budget can be met."""
        budget.check(self.floor(), self.anatomy.size())


def _excluded(unit: Unit, patterns: Sequence[str]) -> Reason | None:
    return _matching({*unit.modules, *(reader.module for reader in unit.readers)}, patterns)


def _matching(names: set[str], patterns: Sequence[str]) -> Reason | None:
    fits = (pattern for pattern in patterns for name in names if fnmatchcase(name, pattern))
    return next((Cause.EXCLUDED.at(pattern) for pattern in fits), None)
