"""Which branches go under absorption, and when: whole plans are compared by the judge.

An additive price misleads here: giving up a late branch costs much of a stream's variance and little of what
the network says. So at each of a few sizes the program tries to evict one more block, absorbing less
elsewhere to come to the same size, and keeps what the judge finds better. What is decided does not depend on
the budget that was asked for: it is woven into the one trajectory that answers all budgets.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress
from torch import nn

from hope.encoder.loop import Choice
from hope.encoder.trajectory import sizes
from hope.planner.judge import Judge
from hope.planner.plan import Plan
from hope.surgery.operate import duplicate, operate

LEVELS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)  # of the parameters, where plans are compared
TRIED = 3  # blocks that are tried at a level, the most promising first


def decide(
    model: nn.Module, plan: Plan, sequence: Sequence[Choice], judge: Judge, *, progress: bool | None = None
) -> list[Choice]:
    """The absorptions of a run with evictions woven in.

    At most (1 + TRIED) networks are looked at per level, and TRIED more after each eviction.

    Args:
        sequence: the run's absorptions in order, without evictions.
    """
    choice = _Weaver(plan, sequence)
    evicted: list[tuple[int, int]] = []  # (position in the sequence, block)
    start = 0
    floor = _least(plan)
    levels = [level for level in LEVELS if level > floor]
    console = Console(stderr=True)
    show = console.is_terminal if progress is None else progress
    with Progress(console=console, transient=True, disable=not show) as bar:
        task = bar.add_task("which blocks to evict", total=len(levels))
        for level in levels:
            woven = choice.weave(evicted)
            reached = choice.reach(woven, level)
            if reached is None:
                break
            best = judge(choice.network(model, woven[:reached]))
            while True:
                found = None
                for block in choice.candidates(evicted, woven[:reached])[:TRIED]:
                    trial = [*evicted, (start, block)]
                    other = choice.weave(trial)
                    there = choice.reach(other, level)
                    if there is None:
                        continue
                    score = judge(choice.network(model, other[:there]))
                    if score > best:
                        best, found = score, (trial, other, there)
                if found is None:
                    break
                evicted, woven, reached = found
            start = choice.position(woven[:reached])
            bar.advance(task)
    return choice.weave(evicted)


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
        price = -math.log(max(1e-6, 1 - (state.price or 0.0)))
        woven.append(Choice("evict", block, price, state.release, None))
        return set(state.layers)

    def reach(self, woven: Sequence[Choice], level: float) -> int | None:
        """How many steps come down to a share of the parameters; None if all do not."""
        table = sizes(self.plan.anatomy, [self.plan.action(choice) for choice in woven])[:, 1]
        met = (table <= level * table[0]).nonzero()[0]
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
                ranked.append(((state.price or 0.0) / freed, number))
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
