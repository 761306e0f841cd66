"""The paper's method: prune, merge a pair into its optimal parent, evict a residual branch, by J/ΔP."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import nn

from hope._util.calls import Example
from hope.anatomy.anatomy import Anatomy
from hope.anatomy.sizes import Releases
from hope.anatomy.units import Unit
from hope.geometry import costs, gaussian
from hope.graph.blocks import Block
from hope.methods.base import Branch, Known, Method, Rewrite, State
from hope.methods.pairs import PairPath, PaperState
from hope.ops import activation
from hope.reasons import Cause, Reason
from hope.signals.bn import Numbers
from hope.signals.energy import capacities, outgoing, slopes_of

READINGS = ("mended", "literal", "literal kernel", "literal deviation", "literal parent")


@dataclass(frozen=True)
class Paper(Method):
    """The paper's method.

    Attributes:
        merge: "pair" as in the paper, "sum" (two neurons are replaced by one that stands for their sum), or
            None.
        kernel: "zero-bias" as in the paper, or "exact".
        release: rank steps by what they release in the original network ("static", as the paper does), or in
            the network as it is then ("live").
        reading: "mended", or "literal": everything as it is printed. The mended reading departs from the
            print in three places. The zero-bias kernel calls parallel neurons with different thresholds
            identical: for |ρ̂| > 0.99, and for signals that do not move, the exact kernel stands in. A
            signal's deviation is γ_eff = |γ|·√(σ²/(σ² + ε)), the expression before ε is dropped, not |γ|. A
            parent's BN numbers are exact for every deviation, without the clamp σ² = max(0, γ² − ε). Each of
            the three alone is read as printed by "literal kernel", "literal deviation" and "literal parent".

    >>> Paper(merge="sum")
    Paper(merge='sum', kernel='zero-bias', release='static', reading='mended')
    """

    evictions: ClassVar[Literal["priced", "judged", "none"]] = "priced"

    merge: str | None = "pair"
    kernel: str = "zero-bias"
    release: str = "static"
    reading: str = "mended"

    def __post_init__(self) -> None:
        self.choose(
            merge=(self.merge, ("pair", "sum", None)),
            kernel=(self.kernel, ("zero-bias", "exact")),
            release=(self.release, ("static", "live")),
            reading=(self.reading, READINGS),
        )

    @property
    def name(self) -> str:
        """What it goes by."""
        return "hope"

    @property
    def live(self) -> bool:
        """Whether ΔP is that of the network as it is then."""
        return self.release == "live"

    def literal(self, what: str) -> bool:
        """Whether the kernel, the deviation or the parent is as it is printed.

        >>> Paper(reading="literal kernel").literal("kernel"), Paper(reading="literal").literal("parent")
        (True, True)
        """
        return self.reading in ("literal", f"literal {what}")

    @property
    def rewrite(self) -> Rewrite:
        """How parents get their BN numbers."""
        return Rewrite(clamp=self.literal("parent"))

    def study(
        self, model: nn.Module, example: Example | None, anatomy: Anatomy, *, progress: bool | None = None
    ) -> Known:
        """The checkpoint's numbers, read as asked."""
        return Known(anatomy, Numbers.of(model, anatomy, literal=self.literal("deviation")))

    def state(self, unit: Unit, known: Known) -> PaperState | Reason:
        """Capacities, and where pairs can be merged their geometry."""
        return paper_state(unit, known.numbers, Releases(known.anatomy).unit(unit.name))

    @property
    def path(self) -> Callable[[PaperState], PairPath]:
        """Prunes and merges."""
        kernel = "printed" if self.literal("kernel") and self.kernel == "zero-bias" else self.kernel
        return partial(PairPath, merge=self.merge, kernel=kernel)

    def branch(self, block: Block, known: Known, states: Sequence[State]) -> Branch | Reason:
        """A residual block beside an identity, held against what its skip carries."""
        if block.skip != "identity":
            return Cause.PROJECTION.at()
        capacity = {state.name: state.capacity for state in states}
        if not block.layers or any(name not in capacity for name in block.layers):
            return Cause.NO_CAPACITY.at()
        bn = known.numbers.bn(block.skip_bn)
        if bn is not None:
            anchors = (costs.identity_capacity(bn.scale.numpy(), bn.shift.numpy()),) * len(block.layers)
        else:
            anchors = tuple(capacity[name] for name in block.layers)
        release = Releases(known.anatomy).block(block.name)
        return AnchoredBranch(block.name, block.layers, release, None, anchors)

    def measures(self, known: Known, states: Sequence[State]) -> dict[str, list[float]]:
        """Capacities ‖f_i‖."""
        return {s.name: s.capacities.tolist() for s in states if isinstance(s, PaperState)}


@dataclass(frozen=True)
class AnchoredBranch(Branch):
    """A branch whose capacity is held against that of its skip.

    Attributes:
        anchors: of each layer: E_identity of the skip, or the layer's E_init without one.
    """

    anchors: tuple[float, ...]

    def cost(self, neurons: Sequence[int], capacities: Sequence[float]) -> float:
        """J_evict."""
        return costs.evict(neurons, capacities, self.anchors)


def paper_state(unit: Unit, numbers: Numbers, release: int) -> PaperState | Reason:
    """A unit's state, or the reason why it has none."""
    found = capacities(unit, numbers)
    if isinstance(found, Reason):
        return found
    state = PaperState(unit.name, found, release)
    if _mergeable(unit):
        _add_pairs(state, unit, numbers)
    return state


def _mergeable(layer: Unit) -> bool:
    """One filter, one BN directly behind it, one PH-1 activation: what the paper's geometry of pairs is
    about.
    """
    if layer.along or layer.channels != 1 or layer.bn is None:
        return False
    kinds = [[step.kind for step in reader.path] for reader in layer.readers]
    first = all(kind and kind[0] == "bn" and kind.count("bn") == 1 for kind in kinds)
    plain = all(not {"gate", "scale", "shift", "depthwise", "grouped", "norm"} & set(kind) for kind in kinds)
    return first and plain and activation.homogeneous(layer.activation)


def _add_pairs(state: PaperState, layer: Unit, numbers: Numbers) -> None:
    """Effective filters, signals and the two Gram matrices."""
    step = layer.readers[0].last("bn")
    assert step is not None
    bn = numbers.bn(step.name)
    places = layer.at(f"{step.name}.running_var")
    own = next(part for part in layer.places if part.role == "out")
    if bn is None or places is None or f"{step.name}.weight" not in numbers:
        return
    index = torch.from_numpy(places.index[:, 0])
    rows = torch.from_numpy(own.index[:, 0])
    raw = numbers[own.tensor].double().movedim(own.dim, 0)[rows].flatten(1)
    bias_name = own.tensor.removesuffix("weight") + "bias"
    shift = numbers[bias_name].double()[rows] if bias_name in numbers and bias_name != own.tensor else 0.0
    gain = bn.gain[index]
    filters = gain[:, None] * raw
    state.bias = bn.shift[index] - gain * (bn.mean[index] - shift)
    state.mean, state.spread = bn.shift[index], bn.spread[index]
    link = next((link for link in layer.readers[0].path if link.kind == "activation"), None)
    slopes = slopes_of(layer, link, numbers)
    assert slopes is not None
    state.slope = slopes.expand(layer.neurons).clone()
    state.energy = gaussian.energy(state.mean, state.spread, state.slope)
    sent = torch.cat([outgoing(layer, reader, numbers).flatten(1) for reader in layer.readers], dim=1)
    state.inner = filters @ filters.T + torch.outer(state.bias, state.bias)
    state.outer = sent @ sent.T
