"""The paper's method: prune, merge a pair into its optimal parent, evict a block, by J/ΔP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import nn

from hope._util.calls import Example
from hope.actions import Rewrite
from hope.errors import UnknownMethod
from hope.geometry import costs, gaussian
from hope.methods.calibration import Calibration, batches_of, check_calibration
from hope.methods.method import Branch, Method, NetworkStatistics, State, listed
from hope.methods.pairs import PairPath, PaperState
from hope.ops import activation
from hope.reasons import Cause, Reason
from hope.statistics.checkpoint import Checkpoint
from hope.statistics.energy import SignalStatistics, capacities, outgoing, seen, slopes_of
from hope.statistics.marginals import Marginals, measured_marginals
from hope.structure.anatomy import Anatomy
from hope.structure.observation_points import ObservationPoint, Taps
from hope.structure.sizes import ParameterSavings
from hope.structure.units import Unit
from hope.trace.blocks import Block

LARGEST = 1e19  # deviation of a signal that is merged
READINGS = ("mended", "literal", "literal kernel", "literal deviation", "literal parent")


@dataclass(frozen=True)
class Paper(Method):
    """The paper's method.

    It evicts residual branches with an identity skip, parts of concatenations, and segments of chains that
    keep their shape; `evict=False` keeps them all. Channels of streams are pruned, never merged; their
    capacity is a sum over all readers and writers.

    Attributes:
        merge: "pair" as in the paper, "sum" (one neuron that approximates the sum replaces two), or None.
        kernel: "zero-bias", the paper's (see `reading`), or "exact", which sums always use.
        release: rank steps by the parameters they save in the original network ("static", as in the paper),
            or in the current network ("live").
        reading: "mended" (corrected), or "literal": these three as printed (docs/theory.md lists the rest of
            HOPE's readings, which have no switch). The corrections: (1) The zero-bias
            kernel treats parallel neurons with different thresholds as identical; for |ρ̂| > 0.99, and for
            constant signals, HOPE uses the exact kernel. (2) A signal's deviation is
            γ_eff = |γ|·√(σ²/(σ² + ε)), the expression before ε is dropped, not |γ|. (3) A parent's BN
            parameters are exact for every deviation, without the clamp σ² = max(0, γ² − ε). "literal kernel",
            "literal deviation" and "literal parent" undo one correction each.
        calibration: a few unlabelled batches: means and deviations are measured on them instead of read from
            BNs. Networks without BN need this. Or "dream", as for `hope.Absorb`.

    >>> Paper(merge="sum")
    Paper(merge='sum', kernel='zero-bias', release='static', reading='mended')
    """

    evictions: ClassVar[Literal["priced", "searched", "none"]] = "priced"

    merge: str | None = "pair"
    kernel: str = "zero-bias"
    release: str = "static"
    reading: str = "mended"
    calibration: Calibration = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.validate(
            merge=(self.merge, ("pair", "sum", None)),
            kernel=(self.kernel, ("zero-bias", "exact")),
            release=(self.release, ("static", "live")),
            reading=(self.reading, READINGS),
        )
        if self.literal("kernel"):
            exact = {"merge='sum'": self.merge == "sum", "kernel='exact'": self.kernel == "exact"}
            for option in (name for name, given in exact.items() if given):
                raise UnknownMethod(
                    f"reading={self.reading!r} of paper must go with the printed kernel, got {option}, which "
                    "uses the exact one: omit one of them"
                )
        check_calibration(self.calibration)

    @property
    def name(self) -> str:
        """The method's name."""
        return "paper"

    @property
    def live(self) -> bool:
        """Whether ΔP is that of the current network."""
        return self.release == "live"

    def literal(self, what: str) -> bool:
        """Whether the kernel, the deviation or the parent is as printed.

        >>> Paper(reading="literal kernel").literal("kernel"), Paper(reading="literal").literal("parent")
        (True, True)
        """
        return self.reading in ("literal", f"literal {what}")

    @property
    def rewrite(self) -> Rewrite:
        """How parents get their BN parameters."""
        return Rewrite(clamp=self.literal("parent"))

    def collect(
        self, model: nn.Module, example: Example | None, anatomy: Anatomy, *, progress: bool | None = None
    ) -> NetworkStatistics:
        """The checkpoint, read according to `reading`, and measured moments if there are inputs."""
        literal = self.literal("deviation")
        if self.calibration is None:
            return NetworkStatistics(anatomy, Checkpoint.of(model, anatomy, literal=literal))
        batches, notes = batches_of(self.calibration, model, example, anatomy, progress=progress)
        synthetic = isinstance(self.calibration, str)
        measured = measured_marginals(model, anatomy, batches, synthetic=synthetic, progress=progress)
        numbers = Checkpoint.of(model, anatomy, literal=literal, measured=measured)
        if self.merge is not None:
            notes += _pruned_only(anatomy)
        return NetworkStatistics(anatomy, numbers, notes=notes)

    def state(self, unit: Unit, known: NetworkStatistics) -> PaperState | Reason:
        """Capacities, and where pairs can be merged their geometry."""
        release = ParameterSavings(known.anatomy).unit(unit.name)
        return paper_state(unit, known.numbers, release, pairs=self.merge is not None)

    @property
    def path(self) -> Callable[[PaperState], PairPath]:
        """Prunes and merges."""
        kernel = "printed" if self.literal("kernel") else self.kernel
        return partial(PairPath, merge=self.merge, kernel=kernel)

    def branch(self, block: Block, known: NetworkStatistics, states: Sequence[State]) -> Branch | Reason:
        """A block compared with E_identity of its skip's signal, if the skip is an identity; without a skip,
        with the initial capacity E_init of its layers.

        E_identity is Σ_k √E x_k². The paper has it for a tensor that a BN wrote last: E x_k² = γ_k² + β_k².
        In a pre-activation network no BN writes into the skip, but the branch's first BN reads the skip's
        signal and stores its mean and variance: E x_k² = μ_k² + σ_k². If there is neither, each layer is
        compared with its own E_init, as in the paper for blocks without a skip.
        """
        if block.skip == "projection":
            return Cause.PROJECTION.at()
        capacity = {state.name: state.capacity for state in states}
        cut = block.layers if block.before is None else (*block.layers, block.before)
        if not block.layers or any(name not in capacity for name in cut):
            return Cause.NO_CAPACITY.at()
        carried = _carried(block, known.numbers)
        if carried is not None:
            anchors = (carried,) * len(block.layers)
        else:
            anchors = tuple(capacity[name] for name in block.layers)
        release = ParameterSavings(known.anatomy).block(block.name)
        return AnchoredBranch(block.name, block.layers, release, None, anchors)

    def measures(self, known: NetworkStatistics, states: Sequence[State]) -> dict[str, list[float]]:
        """Capacities ‖f_i‖."""
        return {s.name: s.capacities.tolist() for s in states if isinstance(s, PaperState)}


@dataclass(frozen=True)
class AnchoredBranch(Branch):
    """A branch whose capacity is compared with that of its skip, or with its own initial one.

    Attributes:
        anchors: per layer: E_identity of the skip, or the layer's E_init if there is no skip or no BN that
            determines its signal.
    """

    anchors: tuple[float, ...]

    def cost(self, neurons: Sequence[int], capacities: Sequence[float]) -> float:
        """J_evict."""
        return costs.evict(neurons, capacities, self.anchors)


def _carried(block: Block, numbers: Checkpoint) -> float | None:
    """E_identity of a block's skip: measured, or from a BN that wrote or reads its signal."""
    if numbers.measured is not None:
        skip = numbers.measured.get((block.name, ""))
        return None if skip is None else costs.identity_capacity(skip.spread.numpy(), skip.mean.numpy())
    if (written := numbers.bn(block.skip_bn)) is not None:
        return costs.identity_capacity(written.scale.numpy(), written.shift.numpy())
    if (read := numbers.bn(block.read_bn)) is not None:
        return costs.identity_capacity(torch.sqrt(read.variance).numpy(), read.mean.numpy())
    return None


def _pruned_only(anatomy: Anatomy) -> tuple[str, ...]:
    """A note about layers whose neurons cannot be merged."""
    between = [
        layer.name for layer in anatomy.layers if any(r.last("norm") is not None for r in layer.readers)
    ]
    followed = [layer.name for layer in anatomy.layers if any(t.bn for t in _taps(layer, anatomy.taps))]
    words = (
        (between, "each input is normalised by its own numbers, which no parent has"),
        (followed, "a BN follows the activation"),
    )
    return tuple(f"pruned, not merged: {listed(names)} ({why})" for names, why in words if names)


def paper_state(
    unit: Unit, numbers: Checkpoint, release: int, *, pairs: bool = True, outer: bool = True
) -> PaperState | Reason:
    """A unit's state, with the geometry of its pairs if requested (without outgoing weights if those are not
    needed), or the reason why it has none.
    """
    found = capacities(unit, numbers)
    if isinstance(found, Reason):
        return found
    state = PaperState(unit.name, found, release)
    return _with_pairs(state, unit, numbers, outer) if pairs and _mergeable(unit, numbers) else state


def _mergeable(layer: Unit, numbers: Checkpoint) -> bool:
    """One filter, one PH-1 activation, and after the filter a BN, or nothing with measured moments: the case
    of the paper's pair geometry.
    """
    if layer.kind == "stream" or layer.along or layer.channels != 1:
        return False
    kinds = [[step.kind for step in reader.path] for reader in layer.readers]
    plain = all(not {"gate", "scale", "shift", "depthwise", "grouped", "norm"} & set(kind) for kind in kinds)
    if not plain or not activation.homogeneous(layer.activation):
        return False
    first = all(kind and kind[0] == "bn" and kind.count("bn") == 1 for kind in kinds)
    if numbers.measured is None:
        return layer.bn is not None and first
    return (first or layer.bn is None) and _at_filter(layer, numbers.measured)


def _at_filter(layer: Unit, measured: Marginals) -> bool:
    """Whether the measured signal is the output of the filter and its BN, the same for all readers."""
    taps = set()
    for reader in layer.readers:
        tap, kinds = measured[layer.name, reader.weight].tap, [step.kind for step in reader.path]
        kinds = kinds[1:] if kinds[:1] == ["bn"] else kinds
        lone = kinds[:1] == ["activation"] and kinds.count("activation") == 1 and tap.activation is not None
        if "bn" in kinds or (kinds and not lone):
            return False
        taps.add((tap.operation, tap.activation))
    return len(taps) == 1


def _taps(layer: Unit, taps: Taps) -> list[ObservationPoint]:
    found = (taps.get((layer.name, reader.weight)) for reader in layer.readers)
    return [tap for tap in found if tap is not None]


def _with_pairs(state: PaperState, layer: Unit, numbers: Checkpoint, outer: bool) -> PaperState:
    """The same state with signals and the two Gram matrices."""
    own = next(part for part in layer.places if part.role == "out")
    rows = torch.from_numpy(own.index[:, 0])
    raw = numbers[own.tensor].double().movedim(own.dim, 0)[rows].flatten(1)
    bias_name = own.tensor.removesuffix("weight") + "bias"
    plain = bias_name in numbers and bias_name != own.tensor
    shift = numbers[bias_name].double()[rows] if plain else torch.zeros(len(rows), dtype=torch.float64)
    step = layer.readers[0].last("bn")
    if step is None:
        filters, bias = raw, shift
    else:
        bn, places = numbers.bn(step.name), layer.at(f"{step.name}.running_var")
        if bn is None or places is None or f"{step.name}.weight" not in numbers:
            return state
        index = torch.from_numpy(places.index[:, 0])
        gain = bn.gain[index]
        filters = gain[:, None] * raw
        bias = bn.shift[index] - gain * (bn.mean[index] - shift)
    signal = seen(layer, layer.readers[0], numbers)
    assert isinstance(signal, SignalStatistics)
    mean, spread = signal.mean[:, 0], signal.spread[:, 0]
    if not bool((spread < LARGEST).all()):  # a parent's variance would exceed float32
        return state
    link = next((link for link in layer.readers[0].path if link.kind == "activation"), None)
    slopes = slopes_of(layer, link, numbers)
    assert slopes is not None
    slope = slopes.expand(layer.neurons).clone()
    sent = torch.empty(0)
    if outer:
        sent = torch.cat([outgoing(layer, reader, numbers).flatten(1) for reader in layer.readers], dim=1)
    return replace(
        state,
        mean=mean,
        spread=spread,
        slope=slope,
        energy=gaussian.energy(mean, spread, slope),
        bias=bias,
        inner=filters @ filters.T + torch.outer(bias, bias),
        outer=sent @ sent.T if outer else sent,
    )
