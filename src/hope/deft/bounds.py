"""What severing and merging can do to the core: the bounds that the paper proves, for one partition.

The distortion at a group is Δs = Σ_j w_core,j·g_j over its slack units j, the signal that core units behind
it no longer get. Theorem "Static Initialization Shock Bound":

    ‖Δs‖ ≤ Σ_j ‖w_core,j‖·√K(j,j) ≤ Σ_j ‖f_j‖ ≤ N_slack·τ,

the last step only where slack is what has capacity ≤ τ; partitions by prune cost have no τ, and Σ ‖f_j‖ takes
its place. Merging adds δ for each merge (Proposition "Bounded Distortion of Merging"). Corollary "Unified
Cumulative Bound": Σ over groups of (severed + Σδ)/E_core, with E_core the capacity of the core that reads the
group. As in the paper, the norm is that of the outgoing weights, all taps of a kernel side by side.

With merge="sum", δ = ‖f_i + f_j − f_p‖ is what the readers lose. The δ of pair merges, the paper's, compares
each child with the parent that replaces both, and is not a bound: two duplicates have δ = 0 while the readers
lose half of what they got.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hope.anatomy.anatomy import Anatomy
from hope.anatomy.units import Places, Unit
from hope.deft.capacities import Energies, add_by_unit
from hope.deft.masks import in_head
from hope.methods.pairs import PaperState
from hope.signals.kernels import exact
from hope.signals.pairwise import warped_correlation


@dataclass(frozen=True)
class GroupBound:
    """The bounds of one layer or stream.

    Attributes:
        name: the group.
        slack: how many of its units are severed (freed vessels have nothing to sever).
        shock: ‖Δs‖ under the surrogate; None where it has no kernel for pairs.
        directed: Σ ‖w_core,j‖·√K(j,j).
        severed: Σ ‖f_j‖.
        uniform: N_slack·τ, the paper's bound; None for a partition by prune cost.
        merging: Σ δ of its merges.
        behind: E_core, the capacity of the core that reads it; None if nothing but the head does, or if no
            such capacity is known.
        head: Σ ‖w_head,j‖·√K(j,j), what the source head loses when its inputs from slack are masked.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
        ... )
        >>> part = hope.deft.partition(net, torch.zeros(2, 4), percentile=50)
        >>> bound = part.bounds["0"]
        >>> bound.behind is None, bound.head > 0  # only the head reads it
        (True, True)
    """

    name: str
    slack: int
    shock: float | None
    directed: float
    severed: float
    uniform: float | None
    merging: float
    behind: float | None
    head: float

    @property
    def share(self) -> float:
        """(Σ ‖f_j‖ + Σ δ)/E_core, the group's term of the unified bound; 0 where `behind` is None."""
        return _over(self.severed + self.merging, self.behind)


@dataclass(frozen=True)
class Bounds:
    """The bounds of a partition.

    Attributes:
        groups: layer by layer, then streams.
        proven: whether δ is that of sum merges (or there are none), so that the cumulative number is a bound.
        left_out: groups that are no part of it, since no capacity of the core that reads them is known.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
        ... )
        >>> part = hope.deft.partition(net, torch.zeros(2, 4), percentile=50)
        >>> [group.name for group in part.bounds.groups], part.bounds.cumulative
        (['0'], 0.0)
    """

    groups: tuple[GroupBound, ...]
    proven: bool
    left_out: tuple[str, ...] = ()

    @property
    def cumulative(self) -> float:
        """The unified cumulative bound on the source's distortion, without the groups that are left out."""
        return sum(group.share for group in self.groups)

    @property
    def uniform(self) -> float | None:
        """The same with N_slack·τ as the paper writes it; None for a partition by prune cost."""
        total = 0.0
        for group in self.groups:
            if group.uniform is None:
                return None
            total += _over(group.uniform + group.merging, group.behind)
        return total

    def __getitem__(self, name: str) -> GroupBound:
        return next(group for group in self.groups if group.name == name)


def _over(distortion: float, capacity: float | None) -> float:
    if capacity is None or distortion == 0:
        return 0.0
    return distortion / capacity if capacity > 0 else math.inf


def find_bounds(
    anatomy: Anatomy,
    energies: Energies,
    units: Sequence[Unit],
    states: Mapping[str, PaperState],
    totals: Mapping[str, float],
    core: Mapping[str, Tensor],
    freed: Mapping[str, Sequence[int]],
    merging: Mapping[str, float],
    frozen: Mapping[str, Tensor],
    head: str,
    tau: float | None,
    proven: bool,
) -> Bounds:
    """All bounds, from the network after its merges and before anything is severed.

    Args:
        anatomy: the network.
        energies: second moments of its signals.
        units: what has an elasticity.
        states: capacities and, where known, the geometry of pairs, of the groups that have slack.
        totals: E_core of every group whose capacities are known.
        core, freed, merging: of each group: core units, freed vessels, Σ δ.
        frozen: masks of all tensors.
        head: the head's name.
        tau: the capacity threshold, if there is one.
        proven: whether δ is that of sum merges.
    """
    writes = {p.tensor: unit.name for unit in units for p in unit.places if p.role == "out"}
    found, left_out = [], []
    for group in units:
        if group.name not in states:
            continue
        slack = ~core[group.name]
        slack[list(freed.get(group.name, ()))] = False
        directed = torch.zeros(group.neurons, dtype=torch.float64)
        last = torch.zeros(group.neurons, dtype=torch.float64)
        outer: list[Tensor] = []
        behind: set[str] = set()
        for reader in energies.listeners(group):
            tensor = reader.places.tensor
            if in_head(tensor, head):
                add_by_unit(last, reader.places, reader.energy * reader.squares.flatten(1).sum(dim=1))
                continue
            behind.add(writes.get(tensor, tensor))
            rows = frozen[tensor].expand(anatomy.shapes[tensor]).movedim(reader.places.dim, 0)
            squares = (reader.squares * rows).flatten(1).sum(dim=1)
            add_by_unit(directed, reader.places, reader.energy * squares)
            outer.append(_gram(energies.numbers[tensor], reader.places, rows, group.neurons))
        known = [totals[name] for name in sorted(behind) if name in totals]
        if behind and not known:
            left_out.append(group.name)
        severed = float(states[group.name].capacities[slack].sum())
        found.append(
            GroupBound(
                name=group.name,
                slack=int(slack.sum()),
                shock=_shock(states[group.name], outer, slack),
                directed=float(directed[slack].sqrt().sum()),
                severed=severed,
                uniform=None if tau is None else int(slack.sum()) * tau,
                merging=merging.get(group.name, 0.0),
                behind=sum(known) if known else None,
                head=float(last[slack].sqrt().sum()),
            )
        )
    return Bounds(tuple(found), proven, tuple(left_out))


def _gram(weight: Tensor, place: Places, rows: Tensor, units: int) -> Tensor:
    """(units, units) inner products of what each unit sends to core rows; empty if the units differ in how
    many places they have.
    """
    owner = torch.from_numpy(place.owner)
    own = (owner >= 0).nonzero()[:, 0]
    if len(own) % units:
        return torch.empty(0)
    order = own[torch.argsort(owner[own], stable=True)]
    sent = (weight.double().movedim(place.dim, 0) * rows)[order].reshape(units, -1)
    return sent @ sent.T


def _shock(state: PaperState, outer: Sequence[Tensor], slack: Tensor) -> float | None:
    """√(Σ_jk K(j,k)·⟨w_core,j, w_core,k⟩) over slack units, by the exact kernel of the pairwise surrogate."""
    if not state.mergeable or any(not gram.numel() for gram in outer):
        return None
    if not outer or not bool(slack.any()):
        return 0.0
    at = slack.nonzero()[:, 0]
    gram = (state.inner - torch.outer(state.bias, state.bias))[at][:, at]
    mean, spread, slope = state.mean[at], state.spread[at], state.slope[at]
    rho = warped_correlation(gram, spread)
    rho.fill_diagonal_(1.0)
    pairs = (mean[:, None], mean[None], spread[:, None], spread[None], rho, slope[:, None], slope[None])
    kernel = exact(*pairs)
    total = sum((gram[at][:, at] for gram in outer[1:]), outer[0][at][:, at])
    return math.sqrt(max(float((kernel * total).sum()), 0.0))
