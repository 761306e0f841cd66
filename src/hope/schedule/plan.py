"""What a method has to work with: states of units, prices of blocks, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor
from fnmatch import fnmatchcase

from torch import nn

from hope._util.calls import Example
from hope.errors import InfeasibleBudget, UnknownMethod
from hope.methods.base import Branch, Method, State
from hope.reasons import Cause, Reason
from hope.schedule.budget import UNITS, Budget
from hope.schedule.cost_model import CostModel
from hope.schedule.scheduler import Scheduler
from hope.schedule.trajectory import Trajectory
from hope.schedule.width_constraints import Groups, widest
from hope.structure.analyse import made_of
from hope.structure.anatomy import Anatomy
from hope.structure.removed import Removed
from hope.structure.sizes import USUAL, Counts, ParameterSavings, Size, sizes, stored
from hope.structure.steps import Evict, Prune, Step
from hope.structure.units import Unit
from hope.trace.blocks import Block

NEEDED = Cause.NO_BN_BEFORE.short  # what all causes that calibration removes are called in tables


class Plan:
    """States and prices for one run.

    Attributes:
        method: whose.
        known: what the method knows of the network.
        states: of the units that it can work on.
        branches: the blocks that it may evict, with their prices.
        left_alone: name -> why, of units and blocks that the method could not price.
        pace: predicted times, or MACs, if the run is to be ranked by what steps save of them.
        groups: layers that keep one width, where that was asked for.
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
        groups: Groups | None = None,
        progress: bool | None = None,
    ) -> None:
        self.anatomy, self.method = anatomy, method
        self.pace: CostModel | None = None
        self._check_patterns(model, exclude)
        self.known = method.study(model, example, anatomy, progress=progress)
        self.method = method = method.settled(self.known)
        self.states: list[State] = []
        self.branches: list[Branch] = []
        self.left_alone: dict[str, Reason] = {}
        for unit in anatomy.layers:
            state = _excluded(unit, exclude) or method.state(unit, self.known)
            if isinstance(state, Reason):
                self.left_alone[unit.name] = state
            else:
                self.states.append(state)
        self.groups: Groups = () if groups is None else self._whole(groups)
        for block in anatomy.blocks if evict and method.evictions != "none" else ():
            branch = self._excludes(block, exclude) or method.branch(block, self.known, self.states)
            if isinstance(branch, Reason):
                self.left_alone[block.name] = branch
            else:
                self.branches.append(branch)

    def _whole(self, groups: Groups) -> Groups:
        """The groups of which every layer can go; all other layers stay."""
        names = {state.name for state in self.states}
        found = [group for group in groups if names.issuperset(group)]
        reasons = {name: Cause.NO_FIELD.at() for name in names}
        for group in groups:
            for other in group:
                if other not in names:
                    why = self.left_alone.get(other) or self.anatomy.unit(other).fixed
                    reasons |= dict.fromkeys(group, Cause.ALIKE.at(other, str(why)))
        stay = names.difference(*found)
        self.left_alone |= {state.name: reasons[state.name] for state in self.states if state.name in stay}
        self.states = [state for state in self.states if state.name not in stay]
        return found

    def _check_patterns(self, model: nn.Module, patterns: Sequence[str]) -> None:
        """Refuse patterns that fit nothing: what was meant to stay would go."""
        names = [name for name, _ in model.named_modules() if name]
        names += [name for unit in self.anatomy.units for name in unit.modules]
        for pattern in patterns:
            if not any(fnmatchcase(name, pattern) for name in names):
                some = ", ".join(names[:5])
                raise UnknownMethod(
                    f"exclude={pattern!r} fits no module of {self.anatomy.model}: they are called {some}, …; "
                    "print(hope.inspect(...)) lists them"
                )

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
            Scheduler(
                self.states,
                () if self.judged else self.branches,
                Removed(self.anatomy),
                walk=self.method.path,
                rank=self.method.rank,
                executor=executor,
                live=ParameterSavings(self.anatomy) if self.method.live else None,
                saves=self.pace.savings() if self.pace is not None else None,
                done=done,
                groups=self.groups,
                in_turn=self.known.many,
            )
        )

    def floor(self) -> Size:
        """The smallest size that is always within reach (see `Anatomy.floor`)."""
        return Size(*map(int, sizes(self.anatomy, self._floor())[-1]))

    def _floor(self, *, biased: bool = True) -> list[Step]:
        """What is removed and evicted there; without the biases that stay behind on request."""
        gone = [Prune(state.name, tuple(range(1, state.neurons))) for state in self.states]
        residual = [branch for branch in self.branches if self.anatomy.block(branch.name).residual]
        return [*gone, *(Evict(branch.name, branch.bias if biased else None) for branch in residual)]

    def amounts(self, steps: Sequence[Step]) -> Counts:
        """(steps + 1,) what the run is ranked by: parameters, MACs, or time."""
        return sizes(self.anatomy, steps)[:, 1] if self.pace is None else self.pace.times(steps)

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
        if self.pace is None:
            return self.anatomy.size(removed, evicted).parameters
        return self.pace.after(removed, evicted)

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
            return self.known.notes
        words = f"multiple_of={multiple_of}: no layer is wider than {width}, so only whole blocks can go"
        return (*self.known.notes, words)

    def _held(self) -> str:
        """What stays because layers are to keep one width; "" if nothing does."""
        held = [one for one in self.left_alone.values() if one.cause in (Cause.ALIKE, Cause.NO_FIELD)]
        return f"{len(held)} layers stay, {held[0]}" if held else ""

    def check(self, budget: Budget, multiple_of: int = 1) -> None:
        """Say before the work starts whether a budget can be met."""
        advice = calibration(self.anatomy, self.left_alone, self.method) or self._held()
        budget.check(self.floor(), self.anatomy.size(), advice)
        if budget.unit == "size":
            table = stored(self.anatomy, self._floor())
            budget.check_amount(int(table[-1]), int(table[0]), advice)
        if budget.unit == "latency" and self.pace is not None:
            budget.check_amount(self.least, self.pace.after({}), advice)
        most = self.longest + len(self.branches)
        if budget.unit == "steps" and budget.value > most:
            way = advice or "take fewer steps"
            raise InfeasibleBudget(f"{budget} cannot be met: the run has {most} steps at most; {way}")
        if not self.states and not self.branches and budget.unit == "fidelity":
            raise InfeasibleBudget(
                f"nothing can be removed by {self.method.name}" + (advice and f": {advice}")
            )
        width = self._widest
        if self.branches or not self.states or multiple_of < width:
            return
        unchanged = Trajectory.of(self.anatomy, (), pace=self.pace)
        if not unchanged.meets(budget):
            reach = unchanged.reach(budget.unit if budget.unit in UNITS else "steps")
            raise InfeasibleBudget(
                f"{budget} cannot be met with multiple_of={multiple_of}: the run {reach}; take a smaller "
                f"multiple_of, from 1 to {width - 1}: no layer is wider than {width}"
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
            f"streams={streams} does not fit this anatomy: "
            f"give what hope.inspect(..., streams={streams}) returns"
        )
    return anatomy


def _check_same(now: Mapping[str, str], then: Mapping[str, str]) -> None:
    other = next((name for name in sorted({*now, *then}) if now.get(name) != then.get(name)), None)
    if other is not None:
        told = [f"is {there[other]}" if other in there else "is not" for there in (then, now)]
        raise UnknownMethod(
            f"this anatomy is another network's: {other or 'the model'} {told[0]} in it and {told[1]} in the "
            "model; give what hope.inspect returns for this model"
        )


def calibration(anatomy: Anatomy, left_alone: Mapping[str, Reason], method: Method) -> str:
    """What to type where neurons stay because no BN tells of their signals; "" if there are none."""
    words = waiting(anatomy, left_alone)
    way = f"method=hope.{type(method).__name__}(calibration=batches) or --calibration inputs.npy"
    return words and f"{words}: give a few inputs, {way}"


def waiting(anatomy: Anatomy, left_alone: Mapping[str, Reason]) -> str:
    """How many neurons stay because no BN tells of their signals; "" if there are none."""
    names = [name for name, reason in left_alone.items() if reason.cause.short == NEEDED]
    neurons = sum(unit.neurons for unit in anatomy.layers if unit.name in names)
    if not neurons:
        return ""
    told = [reason for name, reason in left_alone.items() if name in names]
    if all(reason.cause in (Cause.UNKNOWN_ACTIVATION, Cause.TWO_ACTIVATIONS) for reason in told):
        return (
            f"{neurons:,} neurons have activations whose moments are not known (hope.ops.register can tell "
            "those of an operator) and need calibration"
        )
    return f"{neurons:,} neurons have no BN that tells of their signals and need calibration"


def _excluded(unit: Unit, patterns: Sequence[str]) -> Reason | None:
    return _matching({*unit.modules, *(reader.module for reader in unit.readers)}, patterns)


def _matching(names: set[str], patterns: Sequence[str]) -> Reason | None:
    fits = (pattern for pattern in patterns for name in names if fnmatchcase(name, pattern))
    return next((Cause.EXCLUDED.at(pattern) for pattern in fits), None)
