"""The greedy loop: a merge of independent paths by J/ΔP, with evictions priced from what the paths recorded.

Costs are intra-unit, so what a unit would do next depends on its own state alone. The global loop is a k-way
merge of the units' paths (a heap). A block's eviction is priced anew after each step in one of its layers.
Units that go together take their k-th steps at once, at the sum of their prices.
Where a segment of a chain goes, the neurons in front of it that have lost their counterparts go with it: that
unit's path goes on without them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from itertools import islice
from typing import Any, TypeAlias

from msgspec.structs import replace

from hope.methods.base import Branch, Path, State
from hope.schedule.cost_model import Savings
from hope.structure.removed import Removed
from hope.structure.sizes import ParameterSavings
from hope.structure.steps import Evict, Merge, Prune, Step

Walk: TypeAlias = Callable[[Any], Path]
Rank: TypeAlias = Callable[[float, float], float]
FIRST = 4  # of a path that is worked out at once: a quarter, and then the rest if it is asked for


def _begun(walk: Walk, state: State, done: Sequence[Step]) -> Path:
    """A unit's path after what an interrupted run has done in it."""
    path = walk(state)
    for step in done:
        path.follow(step)
    return path


def _whole(walk: Walk, state: State, done: Sequence[Step]) -> tuple[int, float, list[Step]]:
    """The rest of a unit's path at once, for a worker elsewhere."""
    path = _begun(walk, state, done)
    return path.neurons, path.left, list(path.steps())


def _in_parts(walk: Walk, state: State, done: Sequence[Step]) -> Iterator[Step]:
    """A unit's path a part at a time: while others are worked out, nothing of it is held but its steps."""
    first = list(islice(_begun(walk, state, done).steps(), max(1, state.neurons // FIRST)))
    yield from first
    yield from list(_begun(walk, state, [*done, *first]).steps())


class _Walker:
    """One unit's path, worked out as it is asked for, or elsewhere; `head` is the step it would take next."""

    def __init__(
        self, state: State, walk: Walk, done: Sequence[Step], executor: Executor | None, in_turn: bool
    ) -> None:
        self.neurons, self.capacity = state.neurons, state.capacity
        self.head: Step | None = None
        self._future: Future[tuple[int, float, list[Step]]] | None = None
        self._steps: Iterator[Step] | None = None
        if executor is not None:
            self._future = executor.submit(_whole, walk, state, done)
            if done:
                self.neurons, self.capacity, _ = self._future.result()
            return
        if in_turn and not done:
            self._steps = _in_parts(walk, state, done)
            return
        path = _begun(walk, state, done)
        if done:
            self.neurons, self.capacity = path.neurons, path.left
        self._steps = _in_parts(walk, state, done) if in_turn else path.steps()

    def look(self) -> None:
        """Find the next step, None at the path's end."""
        if self._steps is None:
            assert self._future is not None
            self._steps = iter(self._future.result()[2])
        self.head = next(self._steps, None)

    def take(self) -> Step:
        """Take the step that was found."""
        step = self.head
        assert step is not None
        self.neurons, self.capacity = self.neurons - len(step.gone), step.left
        return step


class Scheduler:
    """All steps in the order of the paper's criterion, argmin J/ΔP, one at a time.

    Args:
        states: of the units; they are not changed.
        branches: the blocks that may be evicted.
        gone: an account of what is gone, where blocks without a skip are among them.
        walk: a state -> its path (`Method.path`).
        rank: (J, ΔP) -> what steps are sorted by (`Method.rank`).
        executor: where to work out the paths; in this process, as needed, without one. The result is the
            same.
        live: rank by what a step would release now instead of in the original network.
        saves: rank by the time that a step would save now instead of what it releases.
        done: what an interrupted run has already done, in order; the rest is as if it had not been stopped.
        groups: names of units that go together; every other one goes by itself.
        in_turn: work out one path after another, a part at a time, where memory does not hold all of them.
    """

    def __init__(
        self,
        states: Sequence[State],
        branches: Sequence[Branch] = (),
        gone: Removed | None = None,
        *,
        walk: Walk,
        rank: Rank,
        executor: Executor | None = None,
        live: ParameterSavings | None = None,
        saves: Savings | None = None,
        done: Sequence[Step] = (),
        groups: Sequence[Sequence[str]] = (),
        in_turn: bool = False,
    ) -> None:
        self._branches, self._rank, self._live, self._gone = branches, rank, live, gone
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
        self._heap: list[tuple[float, int, int, tuple[int, ...], int]] = []
        self._versions = {Evict: [0] * len(branches), Prune: [0] * len(states)}
        self._gone_units: set[str] = set()
        self._gone_branches: set[int] = set()
        self._done: list[list[Step]] = [[] for _ in states]
        for step in done:
            self._note(step)
        self._walkers = [self._walker(number) for number in range(len(states))]

    def _walker(self, number: int) -> _Walker:
        """A unit's path after what is done in it."""
        done = list(self._done[number])  # as it is now: a path that comes in parts begins from it later
        return _Walker(self._states[number], self._walk, done, self._executor, self._in_turn)

    def __iter__(self) -> Iterator[Step]:
        for walker in self._walkers:
            walker.look()
        yield from self._belated()
        self._queue_units()
        self._queue_branches()
        while self._heap:
            _, order, number, _, version = heapq.heappop(self._heap)
            evicts = order == _ORDER[Evict]
            if version != self._versions[Evict if evicts else Prune][number]:
                continue
            if evicts:
                if number in self._gone_branches or self._refused(number):
                    continue
                steps: list[Step] = [self._eviction(number)]
                changed = self._note(steps[0])
                for each in changed:
                    self._walkers[each] = self._walker(each)
                    self._walkers[each].look()
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

    def _belated(self) -> Iterator[Step]:
        """What an interrupted run has left undone of a group's last step."""
        for number, members in self._together.items():
            if len(self._done[number]) < max(len(self._done[one]) for one in members):
                yield self._advance(number)

    def _advance(self, number: int) -> Step:
        """Take a unit's next step."""
        step = self._priced(self._walkers[number].take())
        self._walkers[number].look()
        self._note(step)
        return step

    def _heads(self, number: int) -> list[Step]:
        """The next steps of a unit and of those that go with it; none if one of them is at its end."""
        heads = [self._walkers[one].head for one in self._together[number]]
        there = [head for head in heads if head is not None and head.name not in self._gone_units]
        return there if len(there) == len(heads) else []

    def _priced(self, step: Step) -> Step:
        """A step with the ΔP that it has now."""
        return step if self._live is None else replace(step, release=max(1, self._live.unit(step.name)))

    def _eviction(self, number: int) -> Evict:
        """The eviction of a branch, priced from what is left in its layers."""
        branch = self._branches[number]
        left = [self._walkers[self._number[name]] for name in branch.layers]
        there = [name not in self._gone_units for name in branch.layers]
        neurons = [w.neurons if some else 0 for w, some in zip(left, there, strict=True)]
        capacities = [w.capacity if some else 0.0 for w, some in zip(left, there, strict=True)]
        price = branch.cost(neurons, capacities)
        release = branch.release if self._live is None else max(1, self._live.block(branch.name))
        return Evict(branch.name, branch.bias, cost=price, release=release)

    def _queue_unit(self, number: int) -> None:
        steps = [self._priced(head) for head in self._heads(number)]
        if steps:
            order = _ORDER[Merge] if isinstance(steps[0], Merge) else 0
            ratio = self._rank(sum(step.cost for step in steps), sum(map(self._saved, steps)))
            self._versions[Prune][number] += 1
            entry = (ratio, order, number, steps[0].neurons, self._versions[Prune][number])
            heapq.heappush(self._heap, entry)

    def _saved(self, step: Step) -> float:
        """What a unit's step counts by."""
        return step.release if self._saves is None else self._saves.unit(step.name) * len(step.gone)

    def _queue_units(self) -> None:
        for number, members in self._together.items():
            if number == members[0]:
                self._queue_unit(number)

    def _queue_branch(self, number: int) -> None:
        if number not in self._gone_branches and not self._refused(number):
            step = self._eviction(number)
            self._versions[Evict][number] += 1
            saved = step.release if self._saves is None else self._saves.block(step.name)
            ratio = self._rank(step.cost, saved)
            entry = (ratio, _ORDER[Evict], number, (), self._versions[Evict][number])
            heapq.heappush(self._heap, entry)

    def _refused(self, number: int) -> bool:
        """Whether a block must stay, by now and for good."""
        return self._gone is not None and bool(self._gone.refuses(self._branches[number].name))

    def _queue_branches(self) -> None:
        for number in range(len(self._branches)):
            self._queue_branch(number)

    def _note(self, step: Step) -> list[int]:
        """What is gone from now on; returns the units that have lost neurons beside those of the step."""
        changed = []
        going = self._gone.take(step) if self._gone is not None else {}
        if isinstance(step, Evict):
            number = next(k for k, branch in enumerate(self._branches) if branch.name == step.name)
            self._gone_branches.add(number)
            self._gone_units.update(self._branches[number].layers)
            self._gone_branches.update(
                k for k, branch in enumerate(self._branches) if set(branch.layers) <= self._gone_units
            )
            for name, neurons in going.items():
                if neurons and name in self._number and name not in self._gone_units:
                    self._done[self._number[name]] += [Prune(name, neuron) for neuron in sorted(neurons)]
                    changed.append(self._number[name])
        else:
            self._done[self._number[step.name]].append(step)
        if self._live is not None:
            self._live.take(step)
        if self._saves is not None:
            self._resaved |= self._saves.take(step)
        return changed


_ORDER: dict[type[Step], int] = {Merge: 1, Evict: 2}  # of equal price: prunes first, then these
