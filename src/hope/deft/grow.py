"""Wider layers: fresh slack next to an untouched core (`grow=`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil

import numpy as np
import torch
from torch import Tensor, nn

from hope._util.calls import duplicate
from hope._util.tensors import get, owner
from hope.deft.freed import consolidate
from hope.errors import InvalidPartition
from hope.rewrite import resize
from hope.structure.anatomy import Anatomy
from hope.structure.units import IndexMap, Key, Unit


@dataclass(frozen=True, eq=False)
class Growth:
    """Which positions of a wider network's tensors are new.

    Attributes:
        positions: (tensor, dimension) -> the original's position at each place, -1 where it is new.
    """

    positions: Mapping[Key, Tensor]

    @torch.no_grad()
    def widen(self, model: nn.Module) -> nn.Module:
        """A wider copy. New entries are 0, scales and variances of BNs 1."""
        wide = duplicate(model)
        resize.keep(wide, {key: old.clamp(min=0) for key, old in self.positions.items()})
        for (tensor, dim), old in self.positions.items():
            module, attribute = owner(wide, tensor)
            norm = isinstance(module, nn.modules.batchnorm._BatchNorm)
            value = get(wide, tensor)
            new = (old < 0).nonzero()[:, 0].to(value.device)
            value.index_fill_(dim, new, int(norm and attribute in ("weight", "running_var")))
        return wide

    def network(self, model: nn.Module, anatomy: Anatomy, core: Mapping[str, Tensor], seed: int) -> nn.Module:
        """A wider copy with fresh incoming weights of slack: its outputs are those of the model.

        Args:
            anatomy: of the wider network.
            core: its units -> (neurons,) True where core.
        """
        wide = self.widen(model)
        slack = {name: (~mask).nonzero()[:, 0].tolist() for name, mask in core.items()}
        consolidate(wide, anatomy, (), slack, seed)
        return wide

    def narrow(self, model: nn.Module) -> None:
        """Cut the new positions of a wider network, in place."""
        resize.keep(model, {key: (old >= 0).nonzero()[:, 0] for key, old in self.positions.items()})

    def slack(self, unit: Unit) -> Tensor:
        """(neurons,) True where a unit of the wider network is new."""
        new, old = (torch.zeros(unit.neurons, dtype=torch.bool) for _ in range(2))
        for place in unit.places:
            known = self.positions.get((place.tensor, place.dim))
            who = torch.from_numpy(place.owner)
            own = who >= 0
            fresh = known < 0 if known is not None else torch.zeros(len(who), dtype=torch.bool)
            new[who[own & fresh]] = True
            old[who[own & ~fresh]] = True
        if bool((new & old).any()):
            raise InvalidPartition(f"{unit.name} cannot grow: exclude it with core=[{unit.name!r}]")
        return new


def growth(units: Sequence[Unit], anatomy: Anatomy, share: float) -> Growth:
    """How units grow by a share of their neurons, at least by one neuron each.

    Args:
        units: those that grow (see `growable`).
    """
    more: dict[Key, list[tuple[int, int]]] = {}  # after which position how many are inserted
    for unit in units:
        count = ceil(share * unit.neurons)
        for place in unit.places:
            ends = _ends(place)
            assert ends is not None
            per = count * place.each // len(ends)
            more.setdefault((place.tensor, place.dim), []).extend((end, per) for end in ends)
    found = {}
    for (tensor, dim), inserted in more.items():
        parts, start = [], 0
        for end, count in sorted(inserted):
            parts += [torch.arange(start, end + 1), torch.full((count,), -1)]
            start = end + 1
        found[tensor, dim] = torch.cat([*parts, torch.arange(start, anatomy.shapes[tensor][dim])])
    return Growth(found)


def growable(unit: Unit) -> bool:
    """Whether a unit can grow: where its neurons can be cut, other signals do not depend on how many there
    are, and its positions are in plain order.
    """
    free = unit.open and unit.mixed is None and not unit.attends
    return free and all(place.even and _ends(place) is not None for place in unit.places)


def _ends(place: IndexMap) -> list[int] | None:
    """The last positions of the runs in which neurons follow one another; None if there are no such runs."""
    index = place.index  # (neurons, positions)
    if np.array_equal(index.ravel(), index.flat[0] + np.arange(index.size)):
        return [int(index.flat[-1])]  # neuron by neuron
    if all(np.array_equal(run, run[0] + np.arange(len(run))) for run in index.T):
        return [int(run[-1]) for run in index.T]  # fused: the same neurons several times
    return None
