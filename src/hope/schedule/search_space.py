"""What a run may remove, and at what price: the input of the scheduler."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from torch import nn

from hope._util.calls import Example
from hope.actions import Action, Evict, Prune
from hope.errors import InfeasibleBudget, UnknownMethod
from hope.methods.method import Branch, Method, NetworkStatistics, State
from hope.reasons import LISTED, Cause, Reason
from hope.schedule.bits import Rounding
from hope.schedule.budget import Budget
from hope.schedule.cost_model import CostModel
from hope.schedule.scheduler import Scheduler
from hope.schedule.trajectory import Trajectory
from hope.schedule.width_constraints import Groups, widest
from hope.structure.analyse import made_of
from hope.structure.anatomy import Anatomy
from hope.structure.removed import Removed
from hope.structure.sizes import USUAL, Counts, ParameterSavings, sizes
from hope.structure.units import Unit
from hope.trace.blocks import Block

NEEDED = Cause.NO_BN_BEFORE.short  # what all causes that calibration removes are called in tables


@dataclass(frozen=True, eq=False)
class SearchSpace:
    """What a run may remove: states of units, prices of blocks, and a reason for everything that is kept.

    Attributes:
        anatomy: the network.
        method: whose prices they are, with all its options resolved.
        statistics: what the method knows of the network.
        states: of the units that it can work on.
        branches: the blocks that it may evict, with their prices.
        left_alone: name -> why, of units and blocks that the method could not price.
        groups: layers that keep one width, where that was asked for.
        cost: what actions save is counted by it; by parameters without one.
        roundings: of weights, with their costs.
    """

    anatomy: Anatomy
    method: Method
    statistics: NetworkStatistics
    states: tuple[State, ...] = ()
    branches: tuple[Branch, ...] = ()
    left_alone: Mapping[str, Reason] = field(default_factory=dict)
    groups: Groups = ()
    cost: CostModel | None = None
    roundings: tuple[Rounding, ...] = ()

    @classmethod
    def of(
        cls,
        model: nn.Module,
        example: Example | None,
        anatomy: Anatomy,
        method: Method,
        *,
        evict: bool = True,
        exclude: Sequence[str] = (),
        groups: Groups | None = None,
        progress: bool | None = None,
    ) -> SearchSpace:
        """The search space of a network, with statistics collected for it."""
        check_patterns(model, anatomy, exclude)
        statistics = method.collect(model, example, anatomy, progress=progress)
        return search_space(
            statistics, method.resolve(statistics), evict=evict, exclude=exclude, groups=groups
        )

    @property
    def searches_evictions(self) -> bool:
        """Whether evictions are decided by the eviction search."""
        return bool(self.branches) and self.method.evictions == "searched"

    def steps(self, *, executor: Executor | None = None, done: Sequence[Action] = ()) -> Iterator[Action]:
        """The method's steps, one at a time; without those that the eviction search decides about.

        Args:
            done: what an interrupted run has done already; the rest follows.
        """
        return iter(
            Scheduler(
                self.states,
                () if self.searches_evictions else self.branches,
                Removed(self.anatomy),
                walk=self.method.path,
                rank=self.method.rank,
                executor=executor,
                live=ParameterSavings(self.anatomy) if self.method.live else None,
                saves=self.cost.savings() if self.cost is not None else None,
                done=done,
                groups=[group.names for group in self.groups],
                in_turn=self.statistics.many,
            )
        )

    def _floor(self, *, biased: bool = True) -> list[Action]:
        """What is removed and evicted there; without the biases that remain on request."""
        prunes = [Prune(state.name, tuple(range(1, state.neurons))) for state in self.states]
        residual = [branch for branch in self.branches if self.anatomy.block(branch.name).residual]
        return [*prunes, *(Evict(branch.name, branch.bias if biased else None) for branch in residual)]

    def amounts(self, steps: Sequence[Action]) -> Counts:
        """(steps + 1,) what the run is ranked by: parameters, MACs, or time."""
        return sizes(self.anatomy, steps)[:, 1] if self.cost is None else self.cost.counts(steps)

    def measures(self) -> dict[str, list[float]]:
        """Unit -> the value of each of its neurons in the original network."""
        return self.method.measures(self.statistics, self.states)

    @property
    def least(self) -> int:
        """The least of it that is always within reach."""
        return int(self.amounts(self._floor())[-1])

    @property
    def bare(self) -> int:
        """The same, but for the biases that evicted blocks leave."""
        return int(self.amounts(self._floor(biased=False))[-1])

    def amount(self, removed: Mapping[str, int], evicted: Sequence[str]) -> int:
        """The same after a cut."""
        if self.cost is None:
            return self.anatomy.size(removed, evicted).parameters
        return self.cost.after(removed, evicted)

    @property
    def longest(self) -> int:
        """How many steps there can be without evictions."""
        return sum(state.neurons - 1 for state in self.states)

    @property
    def _widest(self) -> int:
        return widest(self.anatomy, {state.name for state in self.states})

    def notes(self, multiple_of: int = 1) -> tuple[str, ...]:
        """What the user should know before the run."""
        width = self._widest
        if not self.states or multiple_of < width:
            return self.statistics.notes
        words = f"multiple_of={multiple_of}: no layer is wider than {width}, so only whole blocks can go"
        return (*self.statistics.notes, words)

    def _held(self) -> str:
        """What stays because layers are to keep one width; "" if nothing does."""
        held = [one for one in self.left_alone.values() if one.cause in (Cause.ALIKE, Cause.NO_FIELD)]
        return f"{len(held)} layers stay, {held[0]}" if held else ""

    def check(self, budget: Budget, multiple_of: int = 1) -> None:
        """Say before the work starts whether a budget can be met."""
        advice = calibration(self.anatomy, self.left_alone) or self._held()
        if budget.resource is not None:
            floor = [*self._floor(), *(one.steps[-1] for one in self.roundings)]
            counts = Trajectory.of(self.anatomy, floor, cost=self.cost).counts(budget.unit)
            budget.check(int(counts[-1]), int(counts[0]), advice)
        most = self.longest + len(self.branches) + sum(len(one.steps) for one in self.roundings)
        if budget.kind.counts_steps and budget.value > most:
            way = advice or "take fewer steps"
            raise InfeasibleBudget(f"steps must be at most {most}, got {budget.value:g}: {way}")
        nothing = not self.states and not self.branches and not self.roundings
        no_cost = budget.resource is not None and not budget.is_cost
        if nothing and (budget.kind.searched or (no_cost and not self.anatomy.layers)):
            way = advice or LISTED
            raise InfeasibleBudget(f"{self.method.name} must have something to remove, got nothing: {way}")
        width = self._widest
        if self.branches or not self.states or self.roundings or multiple_of < width:
            return
        unchanged = Trajectory.of(self.anatomy, (), cost=self.cost)
        if not unchanged.meets(budget):
            reach = unchanged.reach(budget.unit)
            raise InfeasibleBudget(
                f"{budget} cannot be met with multiple_of={multiple_of}, the run {reach}: take a smaller "
                f"multiple_of, from 1 to {width - 1}; no layer is wider than {width}"
            )


def search_space(
    statistics: NetworkStatistics,
    method: Method,
    *,
    evict: bool = True,
    exclude: Sequence[str] = (),
    groups: Groups | None = None,
    cost: CostModel | None = None,
    roundings: tuple[Rounding, ...] = (),
) -> SearchSpace:
    """Price every unit and block of a network by a method.

    Args:
        statistics: what the method has collected.
        method: resolved for them.
        evict: whether blocks may be evicted.
        exclude: patterns of module names that stay untouched.
        groups: layers that must keep one width; layers outside of them, and of incomplete ones, are kept.
        cost: what to count savings by, instead of parameters.
        roundings: of weights, with their costs.
    """
    anatomy = statistics.anatomy
    found = {unit.name: _excluded(unit, exclude) or method.state(unit, statistics) for unit in anatomy.layers}
    left_alone = {name: one for name, one in found.items() if isinstance(one, Reason)}
    states = tuple(one for one in found.values() if not isinstance(one, Reason))
    if groups is not None:
        groups, held = _complete(anatomy, groups, [state.name for state in states], left_alone)
        left_alone |= held
        states = tuple(state for state in states if state.name not in held)
    blocks = anatomy.blocks if evict and method.evictions != "none" else ()
    prices = {
        block.name: _excluded_block(statistics, block, exclude) or method.branch(block, statistics, states)
        for block in blocks
    }
    left_alone |= {name: one for name, one in prices.items() if isinstance(one, Reason)}
    branches = tuple(one for one in prices.values() if not isinstance(one, Reason))
    return SearchSpace(
        anatomy, method, statistics, states, branches, left_alone, groups or (), cost, roundings
    )


def _complete(
    anatomy: Anatomy, groups: Groups, prunable: Sequence[str], left_alone: Mapping[str, Reason]
) -> tuple[Groups, dict[str, Reason]]:
    """The groups of which every layer is prunable, and a reason for each prunable layer outside of them."""
    names = set(prunable)
    complete = [group for group in groups if names.issuperset(group.names)]
    reasons = {name: Cause.NO_FIELD.at() for name in names}
    for group in groups:
        for other in group.names:
            if other not in names:
                why = left_alone.get(other) or anatomy.unit(other).fixed
                reasons |= dict.fromkeys(group.names, Cause.ALIKE.at(other, str(why)))
    held = names.difference(*(group.names for group in complete))
    return complete, {name: reasons[name] for name in prunable if name in held}


def check_patterns(model: nn.Module, anatomy: Anatomy, patterns: Sequence[str]) -> None:
    """Refuse patterns that match no module: a typing error would remove what was meant to be kept."""
    names = [name for name, _ in model.named_modules() if name]
    names += [name for unit in anatomy.units for name in unit.modules]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            some = ", ".join(names[:5])
            raise UnknownMethod(
                f"exclude must be patterns of modules of {anatomy.model}, got {pattern!r}, which fits none: "
                f"they are called {some}, …, and print(hope.inspect(...)) lists them"
            )


def usable(model: nn.Module, anatomy: Anatomy | None, streams: bool) -> Anatomy | None:
    """The anatomy that was given; None if the network has to be read, since none was, or one that was saved
    with a run and does not hold everything.

    One of another network, or read with the other answer to whether streams may go, is refused.
    """
    if anatomy is None:
        return None
    now, names = dict(model.named_parameters()), anatomy.parameters
    shapes = {name: str(tuple(one.shape)) for name, one in now.items()}
    _check_same(shapes, {name: str(tuple(anatomy.shapes[name])) for name in names})
    each = {name: f"{one.itemsize} bytes an entry" for name, one in now.items()}
    _check_same(each, {name: f"{anatomy.itemsize.get(name, USUAL)} bytes an entry" for name in names})
    if not anatomy.program:
        return None
    _check_same(made_of(model), anatomy.made)
    if anatomy.streams and (not anatomy.thins if streams else any(unit.open for unit in anatomy.streams)):
        raise UnknownMethod(
            f"the anatomy must be read with streams={streams}, got one without: "
            f"give what hope.inspect(..., streams={streams}) returns"
        )
    return anatomy


def _check_same(now: Mapping[str, str], then: Mapping[str, str]) -> None:
    other = next((name for name in sorted({*now, *then}) if now.get(name) != then.get(name)), None)
    if other is not None:
        a, b = (f"is {there[other]}" if other in there else "is not" for there in (then, now))
        raise UnknownMethod(
            f"the anatomy must be this model's, got another: {other or 'the model'} {a} in it and {b} in the "
            "model: give what hope.inspect returns for this model"
        )


def calibration(anatomy: Anatomy, left_alone: Mapping[str, Reason]) -> str:
    """What to type where neurons stay because no BN stores their statistics; "" if there are none."""
    words = waiting(anatomy, left_alone)
    return words and f"{words}: give a few inputs, calibration=batches or --calibration inputs.npy"


def waiting(anatomy: Anatomy, left_alone: Mapping[str, Reason]) -> str:
    """How many neurons stay because no BN stores their statistics; "" if there are none."""
    names = [name for name, reason in left_alone.items() if reason.cause.short == NEEDED]
    neurons = sum(unit.neurons for unit in anatomy.layers if unit.name in names)
    if not neurons:
        return ""
    reasons = [reason for name, reason in left_alone.items() if name in names]
    if all(reason.cause in (Cause.UNKNOWN_ACTIVATION, Cause.TWO_ACTIVATIONS) for reason in reasons):
        return (
            f"{neurons:,} neurons have activations whose moments are not known (hope.ops.register can define "
            "those of an operator) and need calibration"
        )
    return f"{neurons:,} neurons have no BN that stores their statistics and need calibration"


def _excluded(unit: Unit, patterns: Sequence[str]) -> Reason | None:
    return _matching({*unit.modules, *(reader.module for reader in unit.readers)}, patterns)


def _excluded_block(statistics: NetworkStatistics, block: Block, patterns: Sequence[str]) -> Reason | None:
    modules = {name.rpartition(".")[0] for name in statistics.numbers.tensors if block.removes(name)}
    return _matching(modules, patterns)


def _matching(names: set[str], patterns: Sequence[str]) -> Reason | None:
    fits = (pattern for pattern in patterns for name in names if fnmatchcase(name, pattern))
    return next((Cause.EXCLUDED.at(pattern) for pattern in fits), None)
