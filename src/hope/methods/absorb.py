"""Absorption: what a removed neuron did, its survivors and a constant take over. The default method."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from typing import Any, ClassVar, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hope._util.calls import Example, unlabelled
from hope._util.hashing import told_inputs
from hope._util.numbers import rounded
from hope._util.progress import busy
from hope.errors import UnknownMethod, first_line
from hope.geometry.projection import outgoing, ridged, unexplained
from hope.methods.absorption import AbsorbPath, AbsorbState, LazyMatrices
from hope.methods.base import Branch, Method, NetworkStatistics, Rewrite, State, listed
from hope.methods.calibration import Calibration, batches_of, check_calibration
from hope.ops.uses import uses_of_weights
from hope.reasons import Cause, Reason
from hope.statistics.bn_recalibration import stand_in
from hope.statistics.checkpoint import Checkpoint
from hope.statistics.energy import capacities
from hope.statistics.input_statistics import InputStatistics, beside, channels_of, propagated_intakes
from hope.statistics.measured import many_moments, measured_intakes
from hope.structure.anatomy import Anatomy
from hope.structure.sizes import ParameterSavings
from hope.structure.units import Unit
from hope.trace.blocks import Block

Matrix: TypeAlias = Callable[[], Tensor]  # how it is made
AUTOMATIC = ("look", "refit")  # options that the network decides about, unless they are given
MOST = 512  # inputs that weights are fitted on
MARGIN = 0.85  # the judge is kind to evictions: one must leave less than this of the loss of fidelity


@dataclass(frozen=True)
class Absorb(Method):
    """Absorption. Without options it is as good as it gets without data; most options are ablations.

    Attributes:
        calibration: what signals are measured on. "patterns": no data, shapes and noise in the statistics
            that BNs remember; "dream": the same after a few gradient steps towards them, slower; or a few
            unlabelled batches, which is best. None derives all moments in closed form. Without a BN that
            tells of them, neurons can go with batches or dreams only.
        refit: fit every weight in the end to what the original said on the same inputs (see `hope.refit`);
            512 inputs at most are used for it. By default everywhere but in models of tokens, where a fit on
            some ten thousand of them was worse than none.
        takeover: survivors take over what removed neurons did.
        constants: a constant does, where a BN takes it (a bias always takes it).
        repair: running variances of BNs follow.
        surrogate: "propagated", or "pairwise": correlations from the filters alone, as in the paper.
        crosses: covariances between a branch and its skip count.
        decay: the correlation of neighbouring places, for all layers; by default read off each BN.
        look: a layer's cost counts by what its loss does to the answers, looked at on noise, or on the first
            of the inputs where there are some. By default where no BN tells of signals and there are inputs.
        share: without a look, it counts by what the layer's branch writes into the stream.
        cost: "log", or "linear": fractions are added up.
        per_parameter: rank by J/ΔP; otherwise by J alone.
        margin: an eviction must leave less than this of the loss of fidelity that it saves.

    >>> Absorb(cost="linear").to_dict()["cost"]
    'linear'
    """

    evictions: ClassVar[Literal["priced", "judged", "none"]] = "judged"
    by_budget: ClassVar[bool] = True

    calibration: Calibration = field(default="patterns", repr=False, compare=False)
    refit: bool | None = None
    takeover: bool = True
    constants: bool = True
    repair: bool = True
    surrogate: str = "propagated"
    crosses: bool = True
    decay: float | None = None
    look: bool | None = None
    share: bool = True
    cost: str = "log"
    per_parameter: bool = True
    margin: float = MARGIN

    def __post_init__(self) -> None:
        self.validate(
            surrogate=(self.surrogate, ("propagated", "pairwise")), cost=(self.cost, ("log", "linear"))
        )
        if self.decay is not None and not 0 <= self.decay < 1:
            raise UnknownMethod(f"absorb has no decay={self.decay!r}: give a correlation from 0 to below 1")
        check_calibration(self.calibration)

    @property
    def name(self) -> str:
        """What it goes by."""
        return "absorb"

    def collect(
        self, model: nn.Module, example: Example | None, anatomy: Anatomy, *, progress: bool | None = None
    ) -> NetworkStatistics:
        """Moments of what weights read: propagated, and measured where there are inputs."""
        numbers = Checkpoint.of(model, anatomy)
        options: dict[str, Any] = {"crosses": self.crosses, "isotropic": self.surrogate == "pairwise"}
        if self.decay is not None:
            options["decays"] = (self.decay,)
        with busy("propagating moments", progress):
            intakes, surrogate = propagated_intakes(anatomy, numbers, **options)
        inputs: list[Any] = []
        notes: tuple[str, ...] = ()
        if self.calibration is not None and (self.calibration != "patterns" or anatomy.eps):
            try:
                intakes, inputs, notes = self._measured(model, example, anatomy, intakes, progress)
            except Exception as error:  # what was made up may be nothing that the model's forward takes
                if self.calibration != "patterns":
                    raise
                notes = (f"moments are propagated only: {first_line(error)}",)
        if not inputs and surrogate.fallbacks:
            some = listed(surrogate.fallbacks)
            notes += (f"not propagated, taken pair by pair instead: the inputs of {some}",)
        many = bool(inputs) and many_moments(anatomy)
        return NetworkStatistics(anatomy, numbers, intakes, surrogate, notes, tuple(inputs), many)

    def _measured(
        self,
        model: nn.Module,
        example: Example | None,
        anatomy: Anatomy,
        intakes: Mapping[str, InputStatistics],
        progress: bool | None,
    ) -> tuple[dict[str, InputStatistics], list[Any], tuple[str, ...]]:
        """Moments as inputs show them, in the inputs' own statistics; the inputs that weights are fitted on,
        and what there is to say.
        """
        assert self.calibration is not None
        batches, notes = batches_of(self.calibration, model, example, anatomy, progress=progress)
        source = iter(unlabelled(model, batches))
        inputs = taken(source, MOST)
        stand, made_up = model, self.rewrite.made_up
        if anatomy.eps and inputs:
            with busy("settling", progress):
                stand = stand_in(model, inputs, made_up, anatomy.trace)
        total = len(batches) if isinstance(batches, Sized) else None
        heard = chain(inputs, source)
        how: dict[str, Any] = {"total": total, "made_up": made_up, "progress": progress}
        found = measured_intakes(stand, anatomy, heard, intakes, **how)
        return found, inputs, notes + _unheard(anatomy, found)

    def state(self, unit: Unit, known: NetworkStatistics) -> AbsorbState | Reason:
        """Covariances of what the unit's readers read, and their weights."""
        share = branch_share(unit.block, known) if self.share and unit.block is not None else 1.0
        moments, outer, parts = list[Matrix](), list[Matrix](), list[float]()
        stream = unit.kind == "stream"
        uses = uses_of_weights(known.anatomy.program)
        for reader in unit.readers:
            intake = known.intakes.get(reader.weight)
            if self.calibration in (None, "patterns") and reader.last("bn") is None:
                return Cause.NO_BN_BEFORE.at(reader.module)
            if intake is None:
                return Cause.UNKNOWN_MOMENTS.at(reader.module)
            if uses[reader.weight] > 1:
                return Cause.READ_AGAIN.at(reader.module)
            channels = channels_of(unit, intake)
            if channels is None:
                return Cause.NO_PLAIN_ORDER.at(reader.module)
            flat = channels.flatten()
            every = torch.cat([flat, beside(known.anatomy, unit, intake)])
            moments.append(partial(_moments, intake, every, len(flat)))
            outer.append(partial(_outer, intake, flat, known))
            home = known.anatomy.home(reader.weight) if stream and self.share else None
            parts.append(branch_share(home, known) if home is not None else 1.0)
        made = LazyMatrices if known.many else _made
        release = ParameterSavings(known.anatomy).unit(unit.name)
        return AbsorbState(unit.name, unit.neurons, release, share, made(moments), made(outer), parts)

    @property
    def needs_sensitivity(self) -> bool:
        """By what losses do to the answers."""
        return bool(self.look)

    def resolve(self, known: NetworkStatistics) -> Absorb:
        """With what is decided by the network: whether layers are looked at, and weights fitted."""
        leaves = pytree.tree_leaves_with_path(list(known.inputs[:1]))
        given = [one for path, one in leaves if isinstance(one, Tensor) and "mask" not in pytree.keystr(path)]
        tokens = not any(one.is_floating_point() for one in given)
        look = bool(known.inputs) and not known.anatomy.eps if self.look is None else self.look
        return replace(self, look=look, refit=not tokens if self.refit is None else self.refit)

    @property
    def rewrite(self) -> Rewrite:
        """What absorptions rewrite."""
        made_up = isinstance(self.calibration, str)
        fits = bool(self.refit)
        return Rewrite(self.takeover, self.constants, self.repair, refit=fits, made_up=made_up)

    @property
    def path(self) -> Callable[[AbsorbState], AbsorbPath]:
        """Absorptions."""
        return partial(AbsorbPath, linear=self.cost == "linear")

    def branch(self, block: Block, known: NetworkStatistics, states: Sequence[State]) -> Branch | Reason:
        """A block with what its branch writes into the stream; its mean can stay behind."""
        if not block.residual:
            return Cause.NO_SKIP.at()
        around = block.inside
        while around is not None and not known.anatomy.block(around).residual:
            around = known.anatomy.block(around).inside
        if around is not None:
            return Cause.NESTED.at()
        there = {state.name for state in states}
        layers = tuple(name for name in block.layers if name in there)
        share = branch_share(block.name, known) if self.share else 1.0
        return SharedBranch(block.name, layers, max(1, block.release), branch_mean(block, known), share)

    def rank(self, cost: float, release: float) -> float:
        """J/ΔP, or J."""
        return rounded(cost / release) if self.per_parameter else rounded(cost)

    def measures(self, known: NetworkStatistics, states: Sequence[State]) -> dict[str, list[float]]:
        """Capacities ‖f_i‖, where BNs tell them."""
        found = {layer.name: capacities(layer, known.numbers) for layer in known.anatomy.layers}
        return {name: some.tolist() for name, some in found.items() if isinstance(some, Tensor)}

    def to_dict(self) -> dict[str, Any]:
        """As plain data; calibration inputs by a hash."""
        return {**super().to_dict(), "calibration": told_inputs(self.calibration)}


def _unheard(anatomy: Anatomy, found: Mapping[str, InputStatistics]) -> tuple[str, ...]:
    """What to say of weights that read nothing but zeros: an expert that was sent no token."""
    readers = {reader.weight: reader.module for layer in anatomy.layers for reader in layer.readers}
    some = [(module, found[weight]) for weight, module in readers.items() if weight in found]
    still = [module for module, one in some if not one.mean.any() and not one.covariance.diagonal().any()]
    if not still:
        return ()
    where = listed(still)
    return (f"on these inputs nothing reaches {where}: what it reads goes first; give inputs of more kinds",)


def _made(make: Sequence[Matrix]) -> list[Tensor]:
    return [each() for each in make]


def _moments(intake: InputStatistics, channels: Tensor, own: int) -> Tensor:
    """Ridged covariances of the first of these channels, as far as the others do not explain them."""
    return unexplained(ridged(intake.moments[channels][:, channels]), own)


def _outer(intake: InputStatistics, channels: Tensor, known: NetworkStatistics) -> Tensor:
    """The Gram matrix of what a weight does with these channels."""
    weight = intake.laid(known.numbers[intake.weight])[:, :, channels]
    return outgoing(weight, intake.taps, metric(intake, known))


def taken(batches: Iterator[Any], most: int) -> list[Any]:
    """The first batches, up to so many inputs.

    >>> rest = iter([torch.zeros(300, 3)] * 4)
    >>> len(taken(rest, 512)), len(list(rest))
    (2, 2)
    """
    found: list[Any] = []
    count = 0
    for batch in batches:
        found.append(batch)
        count += max(
            (len(v) for v in pytree.tree_leaves(batch) if isinstance(v, Tensor) and v.ndim), default=1
        )
        if count >= most:
            break
    return found


@dataclass(frozen=True)
class SharedBranch(Branch):
    """A branch by what it writes into its stream.

    Attributes:
        share: of the stream's variance behind the block, what its branch writes.
    """

    share: float

    def cost(self, neurons: Sequence[int], capacities: Sequence[float]) -> float:
        """−log of what would be left of the stream."""
        return -math.log(max(1e-6, 1 - self.share))

    @property
    def worth(self) -> float:
        """What it writes."""
        return self.share


def branch_share(name: str, known: NetworkStatistics) -> float:
    """Of the stream's variance behind a block, what its branch writes."""
    block = next((block for block in known.anatomy.blocks if block.name == name), None)
    at = {op.name: position for position, op in enumerate(known.anatomy.program)}
    if block is None or known.surrogate is None or block.branch_output not in at:
        return 1.0
    return known.surrogate.share(at[block.branch_output])


def branch_mean(block: Block, known: NetworkStatistics) -> tuple[float, ...] | None:
    """What a branch writes on average: its last BN's shift."""
    if not block.bias or block.last_bn is None:
        return None
    bn = known.numbers.bn(block.last_bn)
    return tuple(bn.shift.tolist()) if bn is not None and len(bn.shift) == block.channels else None


def metric(intake: InputStatistics, known: NetworkStatistics) -> Tensor:
    """What a unit of variance in each output counts: γ²/Var behind a BN; all outputs together count 1."""
    alive = intake.variance > 1e-12 * intake.variance.mean()
    bn = known.numbers.bn(intake.bn) if intake.bn else None
    if bn is None:
        total = float(intake.variance.sum())
        return alive / total if total > 0 else torch.zeros_like(intake.variance)
    power = bn.scale**2
    safe = torch.where(alive, intake.variance, torch.ones_like(intake.variance))
    total = float(power.sum())
    return alive * power / safe / total if total > 0 else torch.zeros_like(power)
