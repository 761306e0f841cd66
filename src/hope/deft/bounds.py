"""Bounds on the effect of severing and merging on the core, as the paper proves them, for one partition.

The distortion at a unit is Δs = Σ_j w_core,j·g_j over its slack neurons j: the signal that the core after it
loses. Theorem "Static Initialization Shock Bound":

    ‖Δs‖ ≤ Σ_j ‖w_core,j‖·√K(j,j) ≤ Σ_j ‖f_j‖ ≤ N_slack·τ,

the last step only if slack is what has capacity ≤ τ; partitions by prune cost have no τ, and Σ ‖f_j‖ takes
its place. Merging adds δ for each merge (Proposition "Bounded Distortion of Merging"). Corollary "Unified
Cumulative Bound": Σ over units of (severed + Σδ)/E_core, with E_core the capacity of the core that reads the
unit. As in the paper, the norm is that of the outgoing weights, all taps of a kernel side by side.

With merge="sum", δ = ‖f_i + f_j − f_p‖ is what the readers lose. The δ of pair merges, the paper's, compares
each child with the parent that replaces both, and is not a bound: two duplicates have δ = 0 while the readers
lose half of their input.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from hope.actions import Merge
from hope.deft.capacities import Energies, add_by_neuron, capacities
from hope.deft.masks import frozen_masks, in_head
from hope.errors import NotSeparable
from hope.geometry.kernels import exact_signs
from hope.geometry.pairwise import warped_correlation
from hope.methods.pairs import PaperState
from hope.structure.anatomy import Anatomy
from hope.structure.units import IndexMap, Unit


@dataclass(frozen=True, repr=False)
class UnitBound:
    """The bounds of one unit, a layer or a stream.

    Attributes:
        name: the unit.
        slack: how many of its neurons are severed (freed neurons have nothing to sever).
        shock: ‖Δs‖ under the surrogate; None if it has no kernel for pairs.
        directed: Σ ‖w_core,j‖·√K(j,j).
        severed: Σ ‖f_j‖.
        uniform: N_slack·τ, the paper's bound; None for a partition by prune cost.
        merging: Σ δ of its merges.
        readers_capacity: E_core, the capacity of the core that reads it; None if only the head reads it, or
            if no such capacity is known.
        head: Σ ‖w_head,j‖·√K(j,j), the source head's loss when its weights for slack are zero.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
        ... )
        >>> part = hope.deft.partition(net, torch.zeros(2, 4), percentile=50)
        >>> bound = part.bounds["0"]
        >>> bound.readers_capacity is None, bound.head > 0  # only the head reads it
        (True, True)
    """

    name: str
    slack: int
    shock: float | None
    directed: float
    severed: float
    uniform: float | None
    merging: float
    readers_capacity: float | None
    head: float

    def __repr__(self) -> str:
        numbers = f"severed {self.severed:.3g}, merging {self.merging:.3g}, share {self.share:.3g}"
        return f"UnitBound({self.name}: {self.slack} slack, {numbers})"

    @property
    def share(self) -> float:
        """(Σ ‖f_j‖ + Σ δ)/E_core, the unit's term of the unified bound; 0 if `readers_capacity` is None."""
        return _over(self.severed + self.merging, self.readers_capacity)


@dataclass(frozen=True, repr=False)
class Bounds:
    """The bounds of a partition.

    Attributes:
        units: layer by layer, then streams.
        proven: whether δ is that of sum merges (or there are none), so that the cumulative value is a bound.
        left_out: units without a term, because no capacity of the core that reads them is known.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
        ... )
        >>> part = hope.deft.partition(net, torch.zeros(2, 4), percentile=50)
        >>> [bound.name for bound in part.bounds.units], part.bounds.cumulative
        (['0'], 0.0)
    """

    units: tuple[UnitBound, ...]
    proven: bool
    left_out: tuple[str, ...] = ()

    @property
    def cumulative(self) -> float:
        """The unified cumulative bound on the source's distortion, without the units in `left_out`."""
        return sum(unit.share for unit in self.units)

    @property
    def uniform(self) -> float | None:
        """The same with N_slack·τ as the paper writes it; None for a partition by prune cost."""
        total = 0.0
        for unit in self.units:
            if unit.uniform is None:
                return None
            total += _over(unit.uniform + unit.merging, unit.readers_capacity)
        return total

    def __repr__(self) -> str:
        words = "" if self.proven else ", not proven"
        return f"Bounds(cumulative {self.cumulative:.4g} over {len(self.units)} units{words})"

    def __getitem__(self, name: str) -> UnitBound:
        return next(unit for unit in self.units if unit.name == name)


def _over(distortion: float, capacity: float | None) -> float:
    if capacity is None or distortion == 0:
        return 0.0
    return distortion / capacity if capacity > 0 else math.inf


@dataclass(frozen=True, eq=False)
class CoreSlackSplit:
    """A network after its merges, split into core and slack, before anything is severed."""

    anatomy: Anatomy  # the network
    head: str  # the head's name
    units: Sequence[Unit]  # what has an elasticity
    core: Mapping[str, Tensor]  # unit -> (neurons,) True where core
    merges: Sequence[Merge]  # what was merged
    freed: Mapping[str, Sequence[int]]  # unit -> its freed neurons
    energies: Energies  # second moments of the merged network's signals
    # capacities and, where known, the geometry of pairs, of the units that have slack
    states: Mapping[str, PaperState]

    @cached_property
    def frozen(self) -> dict[str, Tensor]:
        """Tensor -> a mask that broadcasts to it, True if frozen."""
        return frozen_masks(self.anatomy, self.units, self.core, self.head)

    @cached_property
    def writes(self) -> dict[str, str]:
        """Weight -> the unit that it writes."""
        return {p.tensor: unit.name for unit in self.units for p in unit.places if p.role == "out"}

    @cached_property
    def totals(self) -> dict[str, float]:
        """E_core of every unit; of a unit that is completely core only if its capacities are known."""
        totals = {}
        for unit in self.units:
            with suppress(NotSeparable):
                state = self.states.get(unit.name)
                known = capacities(unit, self.energies) if state is None else state.capacities
                totals[unit.name] = float(known[self.core[unit.name]].sum())
        return totals

    def slack(self, unit: Unit) -> Tensor:
        """(neurons,) True if slack; freed neurons have nothing to sever."""
        slack = ~self.core[unit.name]
        slack[list(self.freed.get(unit.name, ()))] = False
        return slack


def find_bounds(split: CoreSlackSplit, tau: float | None, proven: bool) -> Bounds:
    """All bounds."""
    units = [unit for unit in split.units if unit.name in split.states]
    found = {unit.name: _readers(split, unit) for unit in units}
    left_out = [name for name, one in found.items() if one.units and not _known(split, one)]
    bounds = tuple(_bound(split, unit, found[unit.name], tau) for unit in units)
    return Bounds(bounds, proven, tuple(left_out))


@dataclass(frozen=True)
class _Readers:
    """What reads a unit's neurons."""

    core: Tensor  # (neurons,) ‖w_core,j‖²·K(j,j)
    head: Tensor  # (neurons,) ‖w_head,j‖²·K(j,j)
    outer: list[Tensor]  # (slack, slack) of each reader but the head: ⟨w_core,j, w_core,k⟩
    units: set[str]  # the units, or the weights of none, that read it


def _readers(split: CoreSlackSplit, unit: Unit) -> _Readers:
    core, head = torch.zeros(2, unit.neurons, dtype=torch.float64)
    outer: list[Tensor] = []
    units: set[str] = set()
    for observer in split.energies.observers(unit):
        places, squares = observer.places, observer.squares
        if in_head(places.tensor, split.head):
            add_by_neuron(head, places, observer.energy * squares.flatten(1).sum(dim=1))
            continue
        units.add(split.writes.get(places.tensor, places.tensor))
        shape = split.anatomy.shapes[places.tensor]
        frozen = split.frozen[places.tensor]
        rows = None if bool(frozen.all()) else frozen.expand(shape).movedim(places.dim, 0)
        core_squares = squares if rows is None else squares * rows
        add_by_neuron(core, places, observer.energy * core_squares.flatten(1).sum(dim=1))
        outer.append(_gram(split.energies.numbers[places.tensor], places, rows, split.slack(unit)))
    return _Readers(core, head, outer, units)


def _known(split: CoreSlackSplit, readers: _Readers) -> list[float]:
    """Capacities of the cores after a unit, as far as they are known."""
    return [split.totals[name] for name in sorted(readers.units) if name in split.totals]


def _bound(split: CoreSlackSplit, unit: Unit, readers: _Readers, tau: float | None) -> UnitBound:
    slack, state, known = split.slack(unit), split.states[unit.name], _known(split, readers)
    return UnitBound(
        name=unit.name,
        slack=int(slack.sum()),
        shock=_shock(state, readers.outer, slack),
        directed=float(readers.core[slack].sqrt().sum()),
        severed=float(state.capacities[slack].sum()),
        uniform=None if tau is None else int(slack.sum()) * tau,
        merging=sum((one.distortion for one in split.merges if one.name == unit.name), 0.0),
        readers_capacity=sum(known) if known else None,
        head=float(readers.head[slack].sqrt().sum()),
    )


def _gram(weight: Tensor, place: IndexMap, rows: Tensor | None, slack: Tensor) -> Tensor:
    """(slack, slack) inner products of the weights from slack to core rows (all, for None); empty if neurons
    have different numbers of positions.
    """
    owner = torch.from_numpy(place.owner)
    own = (owner >= 0).nonzero()[:, 0]
    if len(own) % len(slack):
        return torch.empty(0)
    order = own[torch.argsort(owner[own], stable=True)].reshape(len(slack), -1)[slack]
    sent = weight.movedim(place.dim, 0)[order].double()  # (slack, places, the rest)
    sent = (sent if rows is None else sent * rows[order]).flatten(1)
    return sent @ sent.T


def _shock(state: PaperState, outer: Sequence[Tensor], slack: Tensor) -> float | None:
    """√(Σ_jk K(j,k)·⟨w_core,j, w_core,k⟩) over slack, by the exact kernel of the pairwise surrogate."""
    if not state.mergeable or any(gram.ndim < 2 for gram in outer):
        return None
    if not outer or not bool(slack.any()):
        return 0.0
    at = slack.nonzero()[:, 0]
    gram = (state.inner - torch.outer(state.bias, state.bias))[at][:, at]
    mean, spread, slope = state.mean[at], state.spread[at], state.slope[at]
    rho = warped_correlation(gram, spread)
    rho.fill_diagonal_(1.0)
    pairs = (mean[:, None], mean[None], spread[:, None], spread[None], rho, slope[:, None], slope[None])
    kernel = exact_signs(*pairs)[0]
    total = sum(outer[1:], outer[0])
    return math.sqrt(max(float((kernel * total).sum()), 0.0))
