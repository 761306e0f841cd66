"""The greedy loop: a merge of independent paths by J/ΔP, with evictions priced from what the paths recorded.

Costs are intra-unit, so what a unit would do next depends on its own state alone. The global loop is a k-way
merge of the units' paths (a heap). A block's eviction is priced anew after each step in one of its layers.
Units that go together take their k-th steps at once, at the sum of their prices.
Where a segment of a chain is evicted, the neurons in front of it that have lost their counterparts are
removed with it: that unit's path continues without them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager
from itertools import islice
from typing import Any, TypeAlias

from msgspec.structs import replace

from hope.actions import Action, Evict, Prune
from hope.errors import LostWorker, first_line
from hope.methods.method import Branch, Path, State
from hope.schedule.cost_model import Savings
from hope.structure.removed import Removed
from hope.structure.sizes import ParameterSavings

Walk: TypeAlias = Callable[[Any], Path]
Rank: TypeAlias = Callable[[float, float], float]
FIRST = 4  # of a path that is worked out at once: a quarter, and then the rest if it is asked for


def _followed(walk: Walk, state: State, done: Sequence[Action]) -> Path:
    """A unit's path after what an interrupted run has done in it."""
    path = walk(state)
    for step in done:
        path.follow(step)
    return path


def _whole(walk: Walk, state: State, done: Sequence[Action]) -> tuple[int, float, list[Action]]:
    """The rest of a unit's path at once, for a worker elsewhere."""
    path = _followed(walk, state, done)
    return path.neurons, path.left, list(path.steps())


def _in_parts(walk: Walk, state: State, done: Sequence[Action]) -> Iterator[Action]:
    """A unit's path a part at a time: while others are worked out, nothing of it is held but its steps."""
    first = list(islice(_followed(walk, state, done).steps(), max(1, state.neurons // FIRST)))
    yield from first
    yield from list(_followed(walk, state, [*done, *first]).steps())


@contextmanager
def _workers() -> Iterator[None]:
    """Say which option is concerned if a worker process was killed."""
    try:
        yield
    except BrokenExecutor as error:
        raise LostWorker(
            f"a worker of executor= ended before its work was done ({first_line(error)}): give workers more "
            "memory, use fewer, or leave out executor="
        ) from error


class _Walker:
    """One unit's path, worked out as it is asked for, or elsewhere; `head` is the step it would take next."""

    def __init__(
        self, state: State, walk: Walk, done: Sequence[Action], executor: Executor | None, in_turn: bool
    ) -> None:
        self.neurons, self.capacity = state.neurons, state.capacity
        self.head: Action | None = None
        self._future: Future[tuple[int, float, list[Action]]] | None = None
        self._steps: Iterator[Action] | None = None
        if executor is not None:
            with _workers():
                self._future = executor.submit(_whole, walk, state, done)
            if done:
                self.neurons, self.capacity, _ = self._result()
            return
        if in_turn and not done:
            self._steps = _in_parts(walk, state, done)
            return
        path = _followed(walk, state, done)
        if done:
            self.neurons, self.capacity = path.neurons, path.left
        self._steps = _in_parts(walk, state, done) if in_turn else path.steps()

    def peek(self) -> None:
        """Find the next step, None at the path's end."""
        if self._steps is None:
            self._steps = iter(self._result()[2])
        self.head = next(self._steps, None)

    def _result(self) -> tuple[int, float, list[Action]]:
        assert self._future is not None
        with _workers():
            return self._future.result()

    def take(self) -> Action:
        """Take the step that was found."""
        step = self.head
        assert step is not None
        self.neurons, self.capacity = self.neurons - len(step.removed), step.left
        return step


class Scheduler:
    """All steps in the order of the paper's criterion, argmin J/ΔP, one at a time.

    Args:
        states: of the units; they are not changed.
        branches: the blocks that may be evicted.
        removed: an account of what is removed, where blocks without a skip are among them.
        walk: a state -> its path (`Method.path`).
        rank: (J, ΔP) -> what steps are sorted by (`Method.rank`).
        executor: where to work out the paths; in this process, as needed, without one. The result is the
            same.
        live: rank by what a step would release now instead of in the original network.
        saves: rank by the time that a step would save now instead of what it releases.
        done: what an interrupted run has already done, in order; the rest is as if it had not been stopped.
        groups: names of units that take their steps together.
        in_turn: work out one path after another, a part at a time, where memory does not hold all of them.
    """

    def __init__(  # noqa: PLR0913
        self,
        states: Sequence[State],
        branches: Sequence[Branch] = (),
        removed: Removed | None = None,
        *,
        walk: Walk,
        rank: Rank,
        executor: Executor | None = None,
        live: ParameterSavings | None = None,
        saves: Savings | None = None,
        done: Sequence[Action] = (),
        groups: Sequence[Sequence[str]] = (),
        in_turn: bool = False,
    ) -> None:
        self._branches, self._rank, self._live, self._removed = branches, rank, live, removed
        self._saves, self._resaved = saves, set[str]()  # units that save something else since the last step
        self._states, self._walk, self._executor = states, walk, executor
        self._in_turn = in_turn
        self._number = {state.name: number for number, state in enumerate(states)}
        self._together: dict[int, tuple[int, ...]] = {number: (number,) for number in range(len(states))}
        for names in groups:
            members = tuple(self._number[name] for name in names if name in self._number)
            self._together |= dict.fromkeys(members, members)
        self._inside: dict[str, list[int]] = {}
        for number, branch in enumerate(branches):
            for layer in branch.layers:
                self._inside.setdefault(layer, []).append(number)
        # price, whether of a block, order of its kind, number, neurons, version: of equal price, blocks last
        self._heap: list[tuple[float, bool, int, int, tuple[int, ...], int]] = []
        self._versions = {True: [0] * len(branches), False: [0] * len(states)}  # of blocks, and of units
        self._evicted_units: set[str] = set()
        self._evicted_branches: set[int] = set()
        self._done: list[list[Action]] = [[] for _ in states]
        for step in done:
            self._note(step)
        self._walkers = [self._walker(number) for number in range(len(states))]

    def _walker(self, number: int) -> _Walker:
        """A unit's path after what is done in it."""
        done = list(self._done[number])  # as it is now: a path that comes in parts begins from it later
        return _Walker(self._states[number], self._walk, done, self._executor, self._in_turn)

    def __iter__(self) -> Iterator[Action]:
        for walker in self._walkers:
            walker.peek()
        yield from self._belated()
        self._queue_units()
        self._queue_branches()
        while self._heap:
            _, evicts, _, number, _, version = heapq.heappop(self._heap)
            if version != self._versions[evicts][number]:
                continue
            if evicts:
                if number in self._evicted_branches or self._refused(number):
                    continue
                steps: list[Action] = [self._eviction(number)]
                changed = self._note(steps[0])
                for each in changed:
                    self._walkers[each] = self._walker(each)
                    self._walkers[each].peek()
                    self._queue_unit(each)
                layers = (*self._branches[number].layers, *(self._states[each].name for each in changed))
                again = {inside for layer in layers for inside in self._inside.get(layer, ())}
            else:
                if not self._heads(number):
                    continue
                steps = [self._advance(member) for member in self._together[number]]
                self._queue_unit(number)
                again = {inside for step in steps for inside in self._inside.get(step.name, ())}
            for inside in sorted(again):
                self._queue_branch(inside)
            yield from steps
            if self._live is not None:  # every neighbour's release has changed
                self._heap.clear()
                self._queue_units()
                self._queue_branches()
            elif self._saves is not None:
                again = {self._number[name] for name in self._resaved if name in self._number}
                for number in sorted({self._together[one][0] for one in again}):
                    self._queue_unit(number)
                self._queue_branches()
                self._resaved.clear()

    def _belated(self) -> Iterator[Action]:
        """What an interrupted run has left undone of a group's last step."""
        for number, members in self._together.items():
            if len(self._done[number]) < max(len(self._done[one]) for one in members):
                yield self._advance(number)

    def _advance(self, number: int) -> Action:
        """Take a unit's next step."""
        step = self._priced(self._walkers[number].take())
        self._walkers[number].peek()
        self._note(step)
        return step

    def _heads(self, number: int) -> list[Action]:
        """The next steps of a unit and of those that go with it; none if one of them is at its end."""
        heads = [self._walkers[one].head for one in self._together[number]]
        there = [head for head in heads if head is not None and head.name not in self._evicted_units]
        return there if len(there) == len(heads) else []

    def _priced(self, step: Action) -> Action:
        """A step with the ΔP that it has now."""
        return step if self._live is None else replace(step, release=max(1, self._live.unit(step.name)))

    def _eviction(self, number: int) -> Evict:
        """The eviction of a branch, priced from what is left in its layers."""
        branch = self._branches[number]
        left = [self._walkers[self._number[name]] for name in branch.layers]
        there = [name not in self._evicted_units for name in branch.layers]
        neurons = [w.neurons if some else 0 for w, some in zip(left, there, strict=True)]
        capacities = [w.capacity if some else 0.0 for w, some in zip(left, there, strict=True)]
        price = branch.cost(neurons, capacities)
        release = branch.release if self._live is None else max(1, self._live.block(branch.name))
        return Evict(branch.name, branch.bias, cost=price, release=release)

    def _queue_unit(self, number: int) -> None:
        steps = [self._priced(head) for head in self._heads(number)]
        if steps:
            ratio = self._rank(sum(step.cost for step in steps), sum(map(self._saved, steps)))
            self._versions[False][number] += 1
            version = self._versions[False][number]
            entry = (ratio, False, steps[0].order, number, steps[0].neurons, version)
            heapq.heappush(self._heap, entry)

    def _saved(self, step: Action) -> float:
        """What a unit's step counts by."""
        return step.release if self._saves is None else self._saves.unit(step.name) * len(step.removed)

    def _queue_units(self) -> None:
        for number, members in self._together.items():
            if number == members[0]:
                self._queue_unit(number)

    def _queue_branch(self, number: int) -> None:
        if number not in self._evicted_branches and not self._refused(number):
            step = self._eviction(number)
            self._versions[True][number] += 1
            saved = step.release if self._saves is None else self._saves.block(step.name)
            ratio = self._rank(step.cost, saved)
            entry = (ratio, True, step.order, number, (), self._versions[True][number])
            heapq.heappush(self._heap, entry)

    def _refused(self, number: int) -> bool:
        """Whether a block must stay, by now and for good."""
        return self._removed is not None and bool(self._removed.refuses(self._branches[number].name))

    def _queue_branches(self) -> None:
        for number in range(len(self._branches)):
            self._queue_branch(number)

    def _note(self, step: Action) -> list[int]:
        """Note a step; returns the other units that have lost neurons by it."""
        changed = []
        lost = self._removed.take(step) if self._removed is not None else {}
        if step.evicts is not None:
            number = next(k for k, branch in enumerate(self._branches) if branch.name == step.evicts)
            self._evicted_branches.add(number)
            self._evicted_units.update(self._branches[number].layers)
            self._evicted_branches.update(
                k for k, branch in enumerate(self._branches) if set(branch.layers) <= self._evicted_units
            )
            for name, neurons in lost.items():
                if neurons and name in self._number and name not in self._evicted_units:
                    self._done[self._number[name]] += [Prune(name, neuron) for neuron in sorted(neurons)]
                    changed.append(self._number[name])
        else:
            self._done[self._number[step.name]].append(step)
        if self._live is not None:
            self._live.take(step)
        if self._saves is not None:
            self._resaved |= self._saves.take(step)
        return changed
