"""Absorption: the remaining neurons and a constant compensate for removed ones. The default method."""

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

from hope._util.allocation import is_allocation
from hope._util.batching import batching_of
from hope._util.calls import Example, unlabelled
from hope._util.progress import MEASURE, busy
from hope.actions import Rewrite
from hope.errors import first_line
from hope.geometry.projection import outgoing, ridged, unexplained
from hope.methods.absorption_path import AbsorbPath, AbsorbState, LazyMatrices
from hope.methods.calibration import Calibration, batches_of, check_calibration
from hope.methods.method import Branch, Method, NetworkStatistics, State, listed
from hope.ops.uses import uses_of_weights
from hope.reasons import Cause, Reason
from hope.statistics.bn_recalibration import recalibrated_copy
from hope.statistics.checkpoint import Checkpoint
from hope.statistics.energy import capacities
from hope.statistics.input_statistics import (
    InputStatistics,
    channels_of,
    permanent_channels,
    propagated_statistics,
)
from hope.statistics.measured import many_moments, measured_statistics
from hope.structure.anatomy import Anatomy
from hope.structure.sizes import ParameterSavings
from hope.structure.units import Unit
from hope.trace.blocks import Block

Matrix: TypeAlias = Callable[[], Tensor]  # type of calibration
AUTOMATIC = ("sensitivity", "refit")  # options that depend on the network unless they are given
MOST = 512  # inputs of the refit
HELD = 4  # matrices of a reader's size in a state and its path


@dataclass(frozen=True)
class Absorb(Method):
    """Absorption. The defaults give the best result without data.

    Attributes:
        calibration: the inputs on which input statistics are measured. "patterns": synthetic shapes and
            noise, after re-estimating the BN statistics on them; "dream": the same after a few gradient steps
            towards the BN statistics, slower; or a few unlabelled batches, which is best. None derives all
            moments in closed form. Neurons that no BN follows are prunable with batches or dreams only.
        refit: fit every weight to the original's activations on the same inputs (see `hope.refit`), at most
            512 of them. The default is True except for models of tokens, where a refit on about ten thousand
            tokens was worse than none.
        sensitivity: weight a layer's cost by the effect of its loss on the outputs, on noise or on the first
            of the inputs. By default only without BN and with inputs.

    >>> Absorb(refit=False).to_dict()
    {'name': 'absorb', 'calibration': 'patterns', 'refit': False, 'sensitivity': None}
    """

    evictions: ClassVar[Literal["priced", "searched", "none"]] = "searched"
    by_budget: ClassVar[bool] = True
    quantises: ClassVar[bool] = True
    margin: ClassVar[float] = 0.85  # fidelity overrates evictions
    relative: ClassVar[bool] = True
    price: ClassVar[str] = "what an absorption loses of the signal, as a logarithm"

    calibration: Calibration = field(default="patterns", repr=False, compare=False)
    refit: bool | None = None
    sensitivity: bool | None = None

    def __post_init__(self) -> None:
        check_calibration(self.calibration)

    @property
    def name(self) -> str:
        """The method's name."""
        return "absorb"

    def collect(
        self, model: nn.Module, example: Example | None, anatomy: Anatomy, *, progress: bool | None = None
    ) -> NetworkStatistics:
        """Moments at the weights' inputs: propagated, or measured if there are inputs."""
        numbers = Checkpoint.of(model, anatomy)
        with busy(MEASURE, progress):
            input_statistics, surrogate = propagated_statistics(anatomy, numbers, **self.propagation)
        inputs: list[Any] = []
        notes: tuple[str, ...] = ()
        if self.calibration is not None and (self.calibration != "patterns" or anatomy.eps):
            if self.calibration == "patterns":
                batching_of(model, example)  # an error here is not one of a single forward
            try:
                input_statistics, inputs, notes = self._measured(
                    model, example, anatomy, input_statistics, progress
                )
            except Exception as error:  # synthetic inputs may not suit the model's forward
                if self.calibration != "patterns" or is_allocation(error):
                    raise
                notes = (f"moments are propagated only: {first_line(error)}",)
        if not inputs and surrogate.fallbacks:
            some = listed(surrogate.fallbacks)
            notes += (f"not propagated, taken pair by pair instead: the inputs of {some}",)
        many = bool(inputs) and many_moments(anatomy)
        return NetworkStatistics(anatomy, numbers, input_statistics, surrogate, notes, tuple(inputs), many)

    @property
    def propagation(self) -> dict[str, Any]:
        """Options of the propagation, for studies."""
        return {}

    def _measured(
        self,
        model: nn.Module,
        example: Example | None,
        anatomy: Anatomy,
        input_statistics: Mapping[str, InputStatistics],
        progress: bool | None,
    ) -> tuple[dict[str, InputStatistics], list[Any], tuple[str, ...]]:
        """Moments measured on inputs with the BN statistics of these inputs; the inputs of the
        refit; notes.
        """
        assert self.calibration is not None
        batches, notes = batches_of(self.calibration, model, example, anatomy, progress=progress)
        source = iter(unlabelled(model, batches))
        inputs = taken(source, MOST)
        recalibrated, synthetic = model, self.rewrite.synthetic
        if anatomy.eps and inputs:
            with busy(MEASURE, progress):
                recalibrated = recalibrated_copy(model, inputs, synthetic, anatomy.trace)
        total = len(batches) if isinstance(batches, Sized) else None
        every = chain(inputs, source)
        how: dict[str, Any] = {"total": total, "synthetic": synthetic, "progress": progress}
        found = measured_statistics(recalibrated, anatomy, every, input_statistics, **how)
        return found, inputs, notes + _unreached(anatomy, found)

    def state(self, unit: Unit, known: NetworkStatistics) -> AbsorbState | Reason:
        """Covariances of the inputs of the unit's readers, and the readers' weights."""
        share = self.share(unit.block, known) if unit.block is not None else 1.0
        moments, outer, parts = list[Matrix](), list[Matrix](), list[float]()
        stream = unit.kind == "stream"
        uses = uses_of_weights(known.anatomy.program)
        for reader in unit.readers:
            statistics = known.input_statistics.get(reader.weight)
            if self.calibration in (None, "patterns") and reader.last("bn") is None:
                return Cause.NO_BN_BEFORE.at(reader.module)
            if statistics is None:
                return Cause.UNKNOWN_MOMENTS.at(reader.module)
            if uses[reader.weight] > 1:
                return Cause.READ_AGAIN.at(reader.module)
            channels = channels_of(unit, statistics)
            if channels is None:
                return Cause.NO_PLAIN_ORDER.at(reader.module)
            flat = channels.flatten()
            every = torch.cat([flat, permanent_channels(known.anatomy, unit, statistics)])
            moments.append(partial(_moments, statistics, every, len(flat)))
            outer.append(partial(_outer, statistics, flat, known))
            home = known.anatomy.home(reader.weight) if stream else None
            parts.append(self.share(home, known) if home is not None else 1.0)
        made = LazyMatrices if known.many else _made
        release = ParameterSavings(known.anatomy).unit(unit.name)
        return AbsorbState(unit.name, unit.neurons, release, share, made(moments), made(outer), parts)

    def path_bytes(self, unit: Unit) -> int:
        """Of every reader a covariance and a Gram matrix, and the two that the path modifies."""
        given = self.calibration not in (None, "patterns")
        if not given and any(reader.last("bn") is None for reader in unit.readers):
            return 0
        parts = (unit.at(reader.weight, "in") for reader in unit.readers)
        places = (
            len(part.owned) // (part.each if unit.channels == 1 else 1)
            for part in parts
            if part and part.even
        )
        return sum(8 * HELD * channels**2 for channels in places)

    @property
    def needs_sensitivity(self) -> bool:
        """Whether costs are weighted by sensitivities."""
        return bool(self.sensitivity)

    def expects_sensitivity(self, anatomy: Anatomy, *, inputs: bool) -> bool:
        """Whether sensitivities will be needed: by default only without BN and with inputs."""
        return inputs and not anatomy.eps if self.sensitivity is None else self.sensitivity

    @property
    def propagates(self) -> bool:
        """They are."""
        return True

    @property
    def may_refit(self) -> bool:
        """Whether the refit is not off."""
        return self.refit is not False

    def resolve(self, known: NetworkStatistics) -> Absorb:
        """Resolve the options that depend on the network: whether to measure sensitivities, and to refit."""
        leaves = pytree.tree_leaves_with_path(list(known.inputs[:1]))
        given = [one for path, one in leaves if isinstance(one, Tensor) and "mask" not in pytree.keystr(path)]
        tokens = not any(one.is_floating_point() for one in given)
        sensitivity = self.expects_sensitivity(known.anatomy, inputs=bool(known.inputs))
        return replace(self, sensitivity=sensitivity, refit=not tokens if self.refit is None else self.refit)

    @property
    def rewrite(self) -> Rewrite:
        """What absorptions rewrite."""
        synthetic = isinstance(self.calibration, str)
        fits = bool(self.refit)
        return Rewrite(refit=fits, synthetic=synthetic)

    @property
    def path(self) -> Callable[[AbsorbState], AbsorbPath]:
        """Absorptions."""
        return AbsorbPath

    def branch(self, block: Block, known: NetworkStatistics, states: Sequence[State]) -> Branch | Reason:
        """A block with the share of the stream that its branch writes; the branch's mean can be kept as a
        bias.
        """
        if not block.residual:
            return Cause.NO_SKIP.at()
        around = block.inside
        while around is not None and not known.anatomy.block(around).residual:
            around = known.anatomy.block(around).inside
        if around is not None:
            return Cause.NESTED.at()
        there = {state.name for state in states}
        layers = tuple(name for name in block.layers if name in there)
        share = self.share(block.name, known)
        return SharedBranch(block.name, layers, max(1, block.release), branch_mean(block, known), share)

    def share(self, block: str, known: NetworkStatistics) -> float:
        """The branch's share of the stream's variance after a block."""
        at = {op.name: position for position, op in enumerate(known.anatomy.program)}
        found = [one.branch_output for one in known.anatomy.blocks if one.name == block]
        if known.surrogate is None or not found or found[0] not in at:
            return 1.0
        return known.surrogate.share(at[found[0]])

    def share_of(self, known: NetworkStatistics) -> Callable[[str], float]:
        """Block -> its branch's share of the stream's variance."""
        return partial(self.share, known=known)

    def measures(self, known: NetworkStatistics, states: Sequence[State]) -> dict[str, list[float]]:
        """Capacities ‖f_i‖, where BNs determine them."""
        found = {layer.name: capacities(layer, known.numbers) for layer in known.anatomy.layers}
        return {name: some.tolist() for name, some in found.items() if isinstance(some, Tensor)}


def _unreached(anatomy: Anatomy, found: Mapping[str, InputStatistics]) -> tuple[str, ...]:
    """A note about weights whose inputs are all zero: experts that received no token."""
    readers = {reader.weight: reader.module for layer in anatomy.layers for reader in layer.readers}
    some = [(module, found[weight]) for weight, module in readers.items() if weight in found]
    still = [module for module, one in some if not one.mean.any() and not one.covariance.diagonal().any()]
    if not still:
        return ()
    where = listed(still)
    return (f"no calibration input reaches {where}, so it is pruned first: pass more varied inputs",)


def _made(make: Sequence[Matrix]) -> list[Tensor]:
    return [each() for each in make]


def _moments(statistics: InputStatistics, channels: Tensor, own: int) -> Tensor:
    """Ridged covariances of the first of these channels, without the part that the others explain."""
    return unexplained(ridged(statistics.moments[channels][:, channels]), own)


def _outer(statistics: InputStatistics, channels: Tensor, known: NetworkStatistics) -> Tensor:
    """The Gram matrix of a weight's columns for these channels."""
    weight = statistics.laid(known.numbers[statistics.weight])[:, :, channels]
    return outgoing(weight, statistics.taps, metric(statistics, known))


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
    """A branch and the share of its stream that it writes."""

    share: float  # the branch's share of the stream's variance after the block

    def cost(self, neurons: Sequence[int], capacities: Sequence[float]) -> float:
        """−log of the stream's remaining share."""
        return -math.log(max(1e-6, 1 - self.share))

    @property
    def worth(self) -> float:
        """The share."""
        return self.share


def branch_mean(block: Block, known: NetworkStatistics) -> tuple[float, ...] | None:
    """The mean of a branch's output: the shift of its last BN."""
    if not block.bias or block.last_bn is None:
        return None
    bn = known.numbers.bn(block.last_bn)
    return tuple(bn.shift.tolist()) if bn is not None and len(bn.shift) == block.channels else None


def metric(statistics: InputStatistics, known: NetworkStatistics) -> Tensor:
    """Weight of a unit of variance in each output: γ²/Var after a BN; all outputs together have weight 1."""
    alive = statistics.variance > 1e-12 * statistics.variance.mean()
    bn = known.numbers.bn(statistics.bn) if statistics.bn else None
    if bn is None:
        total = float(statistics.variance.sum())
        return alive / total if total > 0 else torch.zeros_like(statistics.variance)
    power = bn.scale**2
    safe = torch.where(alive, statistics.variance, torch.ones_like(statistics.variance))
    total = float(power.sum())
    return alive * power / safe / total if total > 0 else torch.zeros_like(power)
