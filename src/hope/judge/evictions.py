"""Which branches go under absorption, and when: whole plans are compared by the judge.

An additive price misleads here: giving up a late branch costs much of a stream's variance and little of what
the network says. So at each of a few sizes the program tries to evict one more block and looks at the network
that is left. Going on with absorption instead would pass through all sizes in between, so the eviction must
be better than what absorption has on average over that gap. What is decided does not depend on the budget
that was asked for: it is woven into the one trajectory that answers all budgets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress
from torch import nn

from hope._util.calls import duplicate
from hope.judge.fidelity import Judge
from hope.methods.plan import Plan
from hope.run.merge import Choice
from hope.run.trajectory import sizes
from hope.surgery.apply import operate

LEVELS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # of the parameters, where plans are compared
TRIED = 3  # blocks that are tried at a level, the most promising first
MARGIN = 0.85  # the judge is kind to evictions: one must leave less than this of the loss of fidelity


def decide(
    model: nn.Module, plan: Plan, sequence: Sequence[Choice], judge: Judge, *, progress: bool | None = None
) -> list[Choice]:
    """The absorptions of a run with evictions woven in.

    At most 1 + 2·TRIED networks are looked at per level, and as many more after each eviction.

    Args:
        sequence: the run's absorptions in order, without evictions.
    """
    weaver = _Weaver(plan, sequence)
    evicted: list[tuple[int, int]] = []  # (position in the sequence, block)
    woven = weaver.weave(evicted)
    floor = _least(plan)
    levels = [level for level in LEVELS if level > floor]
    console = Console(stderr=True)
    show = console.is_terminal if progress is None else progress

    def loss(steps: Sequence[Choice]) -> float:
        return 1 - judge(weaver.network(model, steps))

    with Progress(console=console, transient=True, disable=not show) as bar:
        task = bar.add_task("which blocks to evict", total=len(levels))
        for level in levels:
            reached = weaver.reach(woven, level)
            while reached is not None:
                here = weaver.position(woven[:reached])
                before, found, least = loss(woven[:reached]), None, math.inf
                for block in weaver.candidates(evicted, woven[:reached])[:TRIED]:
                    trial = [*evicted, (here, block)]
                    other = weaver.weave(trial)
                    same = weaver.same_size(other[: reached + 1], woven)
                    if same is None:
                        continue
                    after = loss(other[: reached + 1])
                    gap = (before + loss(woven[:same])) / 2
                    if after < MARGIN * gap and after / gap < least:
                        least, found = after / gap, (trial, other)
                if found is None:
                    break
                (evicted, woven), reached = found, reached + 1
            bar.advance(task)
    return woven


class _Weaver:
    """Absorptions and evictions as one sequence."""

    def __init__(self, plan: Plan, sequence: Sequence[Choice]) -> None:
        self.plan, self.sequence = plan, sequence
        self._order = {id(choice): position for position, choice in enumerate(sequence)}

    def weave(self, evicted: Sequence[tuple[int, int]]) -> list[Choice]:
        """The sequence with blocks evicted at given positions; what they contain is not absorbed after."""
        woven: list[Choice] = []
        gone: set[int] = set()
        waiting = sorted(evicted)
        for position, choice in enumerate(self.sequence):
            while waiting and waiting[0][0] <= position:
                gone |= self._evict(waiting.pop(0)[1], woven)
            if choice.target not in gone:
                woven.append(choice)
        for _, block in waiting:
            gone |= self._evict(block, woven)
        return woven

    def _evict(self, block: int, woven: list[Choice]) -> set[int]:
        state = self.plan.blocks[block]
        price = -math.log(max(1e-6, 1 - state.share))
        woven.append(Choice("evict", block, price, state.release, None))
        return set(state.layers)

    def reach(self, woven: Sequence[Choice], level: float) -> int | None:
        """How many steps come down to a share of the parameters; None if all do not."""
        table = sizes(self.plan.anatomy, [self.plan.action(choice) for choice in woven])[:, 1]
        met = (table <= level * table[0]).nonzero()[0]
        return int(met[0]) if len(met) else None

    def same_size(self, steps: Sequence[Choice], woven: Sequence[Choice]) -> int | None:
        """How many steps of a run come to the size of another network; None if it never gets there."""
        size = int(sizes(self.plan.anatomy, [self.plan.action(choice) for choice in steps])[-1, 1])
        table = sizes(self.plan.anatomy, [self.plan.action(choice) for choice in woven])[:, 1]
        met = (table <= size).nonzero()[0]
        return int(met[0]) if len(met) else None

    def position(self, woven: Sequence[Choice]) -> int:
        """Where in the sequence of absorptions a woven run has come to."""
        return max((self._order[id(choice)] + 1 for choice in woven if choice.move is not None), default=0)

    def candidates(self, evicted: Sequence[tuple[int, int]], woven: Sequence[Choice]) -> list[int]:
        """Blocks that are still there, by the share of the stream that they write per parameter they hold."""
        gone = {block for _, block in evicted}
        removed: dict[str, int] = {}
        for choice in woven:
            if choice.move is not None:
                name = self.plan.layers[choice.target].name
                removed[name] = removed.get(name, 0) + 1
        now = self.plan.anatomy.size(removed, [self.plan.blocks[b].name for b in gone]).parameters
        ranked = []
        for number, state in enumerate(self.plan.blocks):
            if number in gone:
                continue
            names = [self.plan.blocks[b].name for b in gone] + [state.name]
            freed = now - self.plan.anatomy.size(removed, names).parameters
            if freed > 0:
                ranked.append((state.share / freed, number))
        return [number for _, number in sorted(ranked)]

    def network(self, model: nn.Module, woven: Sequence[Choice]) -> nn.Module:
        """The network after these steps."""
        small = duplicate(model)
        actions = [self.plan.action(choice) for choice in woven]
        operate(small, self.plan.anatomy, actions, views=self.plan.views)
        return small


def _least(plan: Plan) -> float:
    """The smallest share of parameters within reach."""
    anatomy = plan.anatomy
    removed = {state.name: state.neurons - 1 for state in plan.layers}
    least = anatomy.size(removed, [state.name for state in plan.blocks]).parameters
    return least / max(1, anatomy.size().parameters)
