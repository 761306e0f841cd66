"""The eviction search: which branches absorption evicts, and when, by the fidelity of whole networks.

An additive price misleads here: evicting a late branch loses much of a stream's variance and little of the
network's outputs. So at each of a few sizes the search evicts one more block and measures the fidelity.
Absorption alone would pass through all sizes in between, so the eviction must be better than absorption on
average over that gap. Absorption's loss is measured once per level and interpolated linearly; the network at
a level is built once, and each block is removed from a copy. If absorption alone does not reach a level, the
block with the smallest loss is evicted, unless calibration would make more neurons prunable. Decisions do not
depend on the budget: they are interleaved with the one trajectory that covers all budgets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from functools import partial

from torch import nn

from hope._util.calls import duplicate
from hope._util.disk_cache import cached_number
from hope._util.progress import BLOCKS, RANK, bar
from hope.actions import Action, Evict
from hope.actions.evict import bias_left, remove_branch
from hope.actions.registered import digest_of_steps
from hope.rewrite.apply import finish, operate
from hope.schedule.resume import EvictionProgress, Resume, RunCheckpoint
from hope.schedule.search_space import SearchSpace, waiting
from hope.structure.sizes import Counts

# shares of the parameters, or of the time, at which networks are compared
LEVELS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
NOTED = 64  # steps between two checks of the time
NOTHING = EvictionProgress(0)
TRIED = 3  # blocks tried per level, the most promising first


def decide(
    model: nn.Module,
    space: SearchSpace,
    sequence: Sequence[Action],
    fidelity: Callable[[nn.Module], float],
    *,
    done: EvictionProgress = NOTHING,
    note: Callable[[EvictionProgress], object] = lambda _: None,
    progress: bool | None = None,
) -> list[Action]:
    """The steps of a run with interleaved evictions.

    At most 2 + TRIED networks are evaluated per level, and as many more after each eviction.

    Args:
        sequence: the run's steps in order, without evictions.
        fidelity: a network -> its fidelity.
        done: what an interrupted search has decided.
        note: called with what is decided so far.
    """
    search = _EvictionSearch(space, sequence, _EvictionLosses(model, space, fidelity))
    if done.evicted:
        search.evicted = list(done.evicted)
        search.steps = search.interleave(search.evicted)
    floor = space.bare / max(1, space.amount({}, ()))
    levels = [level for level in LEVELS if level > floor]
    must = not waiting(space.anatomy, space.left_alone)  # otherwise calibration helps more
    last = 0  # steps that reach the previous level
    with bar(BLOCKS, len(levels), progress) as show:
        for number, level in enumerate(levels, start=1):
            if number > (done.levels or 0):
                show(number - 1)
                while must and search.reach(level) is None and search.evict_at(last, must=True):
                    last += 1
                reached = search.reach(level)
                while reached is not None and search.evict_at(reached):
                    reached += 1
                note(EvictionProgress(number, tuple(search.evicted)))
                show(number)
            met = search.reach(level)
            last = last if met is None else met
    return search.steps


def ordered(resume: Resume) -> bool:
    """Whether an interrupted run had all its steps and was in the eviction search."""
    return resume.evictions is not None and resume.evictions.levels is not None


def with_evictions(
    model: nn.Module,
    space: SearchSpace,
    fidelity: Callable[[nn.Module], float],
    resume: Resume,
    executor: Executor | None,
    file: RunCheckpoint | None,
    progress: bool | None,
) -> list[Action]:
    """The whole run, with the evictions of the search: one run covers every budget."""
    steps, decided = list(resume.steps), resume.evictions or EvictionProgress()
    if decided.levels is None:
        with bar(RANK, space.longest, progress) as show:
            for step in space.steps(executor=executor, done=tuple(steps)):
                steps.append(step)
                if len(steps) % NOTED == 0:
                    show(len(steps))
                    if file is not None:
                        file.write(steps, EvictionProgress())
        decided = NOTHING

    def note(so_far: EvictionProgress) -> None:
        if file is not None:  # a level takes long enough
            file.write(steps, so_far, now=True)

    note(decided)
    found = decide(model, space, steps, fidelity, done=decided, note=note, progress=progress)
    if file is not None:
        file.write(found, now=True)
    return found


def network(model: nn.Module, space: SearchSpace, steps: Sequence[Action]) -> nn.Module:
    """The network after these steps."""
    small = duplicate(model)
    known, rewrite = space.statistics.input_statistics, space.method.rewrite
    operate(small, space.anatomy, steps, input_statistics=known, rewrite=rewrite)
    finish(small, space.anatomy, steps, input_statistics=known, rewrite=rewrite)
    return small


class _EvictionLosses:
    """Losses of fidelity. The last network is kept, and so is every loss."""

    def __init__(self, model: nn.Module, space: SearchSpace, fidelity: Callable[[nn.Module], float]) -> None:
        self._model, self._space, self._fidelity = model, space, fidelity
        self._kept: tuple[object, nn.Module] | None = None
        self._losses: dict[object, float] = {}

    def after(self, steps: Sequence[Action]) -> float:
        """After these steps of the run."""
        key = _key(steps)
        if key not in self._losses:
            made = partial(self._after, steps)
            self._losses[key] = cached_number(_name(steps), made)
        return self._losses[key]

    def _after(self, steps: Sequence[Action]) -> float:
        return 1 - self._fidelity(self._network(steps))

    def without(self, steps: Sequence[Action], evict: Evict) -> float:
        """After these steps and an eviction."""
        return cached_number(f"{_name(steps)} without {evict.name}", lambda: self._without(steps, evict))

    def _without(self, steps: Sequence[Action], evict: Evict) -> float:
        whole = self._network(steps)
        small = duplicate(whole, [*whole.parameters(), *whole.buffers()])  # none of them is written into
        block, removed = self._space.anatomy.block(evict.name), dict[str, list[int]]()
        for step in steps:
            removed.setdefault(step.name, []).extend(step.removed)
        remove_branch(small, block, bias_left(self._space.anatomy, block, evict.bias, removed))
        return 1 - self._fidelity(small)

    def _network(self, steps: Sequence[Action]) -> nn.Module:
        key = _key(steps)
        if self._kept is None or self._kept[0] != key:
            self._kept = (key, network(self._model, self._space, steps))
        return self._kept[1]


def _key(steps: Sequence[Action]) -> object:
    """A key that distinguishes runs whose starts differ only in evictions."""
    return len(steps), tuple((k, step.name) for k, step in enumerate(steps) if step.evicts is not None)


def _name(steps: Sequence[Action]) -> str:
    """What their loss is called in a cache."""
    return f"loss after {digest_of_steps(steps)}"


class _EvictionSearch:
    """Steps and evictions as one sequence.

    Attributes:
        evicted: (position in the sequence, branch) of each eviction.
        steps: the sequence with these evictions.
    """

    def __init__(
        self,
        space: SearchSpace,
        sequence: Sequence[Action],
        losses: _EvictionLosses | None = None,
    ) -> None:
        self.space, self.sequence, self._losses = space, sequence, losses
        self._order = {step: position for position, step in enumerate(sequence)}
        self.evicted: list[tuple[int, int]] = []
        self.steps = list(sequence)
        self._known: tuple[int, Counts] | None = None

    def interleave(self, evicted: Sequence[tuple[int, int]]) -> list[Action]:
        """The sequence with blocks evicted at given positions; their contents are not removed again later."""
        steps: list[Action] = []
        inside: set[str] = set()
        waiting = sorted(evicted, key=lambda one: one[0])  # stable: in the order of decision
        for position, step in enumerate(self.sequence):
            while waiting and waiting[0][0] <= position:
                inside |= self._evict(waiting.pop(0)[1], steps)
            if step.name not in inside:
                steps.append(step)
        for _, branch in waiting:
            inside |= self._evict(branch, steps)
        return steps

    def _evict(self, number: int, steps: list[Action]) -> set[str]:
        steps.append(self._step(number))
        return set(self.space.branches[number].layers)

    def _step(self, number: int) -> Evict:
        branch = self.space.branches[number]
        return Evict(branch.name, branch.bias, cost=branch.cost((), ()), release=branch.release)

    def evict_at(self, reached: int, *, must: bool = False) -> bool:
        """Evict the best block after so many steps, if it clearly pays, or if absorption cannot reach some
        level otherwise.
        """
        assert self._losses is not None
        so_far = self.steps[:reached]
        here, found, least = self._position(so_far), None, math.inf
        same = {
            branch: None if must else self._same_size(so_far, branch)
            for branch in self._candidates(so_far)[:TRIED]
        }
        tried = [branch for branch, steps in same.items() if must or steps is not None]
        losses = [self._losses.without(so_far, self._step(branch)) for branch in tried]  # of one network
        for branch, after in zip(tried, losses, strict=True):
            attempt, steps = [*self.evicted, (here, branch)], same[branch]
            gap = 1.0 if steps is None else (self._losses.after(so_far) + self._after(steps)) / 2
            if (must or after < self.space.method.margin * gap) and after / gap < least:
                least, found = after / gap, (attempt, self.interleave(attempt))
        if found is not None:
            self.evicted, self.steps = found
        return found is not None

    def _after(self, steps: int) -> float:
        """The loss of absorption after so many steps, interpolated linearly between levels."""
        assert self._losses is not None
        ends = [0, *(met for level in LEVELS if (met := self.reach(level)) is not None), len(self.steps)]
        low = max(end for end in ends if end <= steps)
        high = min(end for end in ends if end >= steps)
        a, b = (self._losses.after(self.steps[:end]) for end in (low, high))
        return a if low == high else a + (b - a) * (steps - low) / (high - low)

    def reach(self, level: float) -> int | None:
        """How many steps reach a share of the parameters, or of the time; None if none do."""
        table = self._amounts()
        met = (table <= level * table[0]).nonzero()[0]
        return int(met[0]) if len(met) else None

    def _amounts(self) -> Counts:
        """(steps + 1,) remaining size along the run, recomputed after each eviction."""
        if self._known is None or self._known[0] != len(self.evicted):
            self._known = (len(self.evicted), self.space.amounts(self.steps))
        return self._known[1]

    def _same_size(self, steps: Sequence[Action], branch: int) -> int | None:
        """How many steps reach the size after an eviction; None if none do."""
        left = self.space.amounts([*steps, self._step(branch)])[-1]  # with the bias that remains
        met = (self._amounts() <= left).nonzero()[0]
        return int(met[0]) if len(met) else None

    def _position(self, steps: Sequence[Action]) -> int:
        """The position of an interleaved run in the sequence without evictions."""
        return max((self._order[step] + 1 for step in steps if step.evicts is None), default=0)

    def _candidates(self, steps: Sequence[Action]) -> list[int]:
        """Branches that are not evicted, by their value per parameter."""
        evicted = {branch for _, branch in self.evicted}
        removed: dict[str, int] = {}
        for step in steps:
            if step.evicts is None:
                removed[step.name] = removed.get(step.name, 0) + len(step.removed)
        names = [self.space.branches[number].name for number in evicted]
        now = self.space.amount(removed, names)
        ranked = []
        for number, branch in enumerate(self.space.branches):
            if number not in evicted:
                freed = now - self.space.amount(removed, [*names, branch.name])
                if freed > 0:
                    ranked.append((branch.worth / freed, number))
        return [number for _, number in sorted(ranked)]
