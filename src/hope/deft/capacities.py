"""How much each unit carries: states of layers as the paper sees them, and of streams.

The paper has no capacity for a channel of a residual stream. Here it is what the definition says of any
neuron, ‖f_c‖² = Σ_readers ‖W_c‖²·E z_c², with the second moment of what each reader sees taken from the
propagated surrogate (everything that was added to the channel so far, behind the activation).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hope.anatomy.anatomy import Anatomy
from hope.anatomy.reasons import Reason
from hope.deft.groups import Group, NotSeparable, Places
from hope.methods.signals import layer_state, signal_energies
from hope.methods.state import LayerState
from hope.ops.norm import read_bn
from hope.signals.propagate import Propagated


@dataclass(frozen=True, eq=False)
class Reader:
    """A weight that reads a group.

    Attributes:
        places: where.
        energy: (places,) E Ψ(y)² of what stands there.
        squares: the weight's squares, the reading dimension first, float64.
    """

    places: Places
    energy: Tensor
    squares: Tensor


class Energies:
    """Second moments of what weights read, from a checkpoint alone."""

    def __init__(self, anatomy: Anatomy, tensors: Mapping[str, Tensor]) -> None:
        self.anatomy, self.tensors = anatomy, tensors
        self._surrogate: Propagated | None = None

    def readers(self, group: Group) -> Iterator[Reader]:
        """All weights that read a group's units.

        Raises:
            NotSeparable: the checkpoint does not say what the units carry.
        """
        for place in group.places:
            if place.role == "in":
                energy = self._layer(group, place) if group.layer is not None else self._stream(group, place)
                squares = self.tensors[place.tensor].double().square().movedim(place.dim, 0)
                yield Reader(place, energy, squares)

    def _layer(self, group: Group, place: Places) -> Tensor:
        layer = group.layer
        assert layer is not None
        consumer = next(c for c in layer.consumers if c.weight == place.tensor)
        found = signal_energies(layer, consumer, self.tensors)
        if isinstance(found, Reason):
            raise NotSeparable(
                f"what the neurons of {group.name} carry is not known: {found}; "
                f"freeze the layer as a whole with core=[{group.name!r}]"
            )
        part = next(p for p in layer.slices if p.tensor == place.tensor and p.role == "in")
        per, channels = part.index.shape[1], found.shape[1]
        spread = (
            found.repeat_interleave(per // channels, dim=1)
            if per % channels == 0
            else found.mean(dim=1, keepdim=True).expand(-1, per)
        )
        energy = torch.zeros(len(place.owner), dtype=torch.float64)
        energy[torch.from_numpy(part.index)] = spread
        return energy

    def _stream(self, group: Group, place: Places) -> Tensor:
        if self._surrogate is None:
            self._surrogate = Propagated(self.anatomy.program, self.tensors, crosses=False)
        reading = self._surrogate.readings.get(place.tensor)
        if reading is not None and not reading.signal.guess:
            signal = reading.signal
            energy = (signal.covariance.diagonal() + signal.mean**2).repeat_interleave(signal.repeat)
            if len(energy) == len(place.owner):
                return energy
        owner = torch.from_numpy(place.owner)
        return torch.where(owner >= 0, self._written(group)[owner.clamp(min=0)], 0.0)

    def _written(self, group: Group) -> Tensor:
        """Without a surrogate: what the BNs write into each channel, Σ γ² + β² (see E_identity)."""
        energy = torch.zeros(group.units, dtype=torch.float64)
        known = False
        for place in group.places:
            name, _, attribute = place.tensor.rpartition(".")
            bn = read_bn(self.tensors, name, 1e-5) if attribute == "running_var" else None
            if bn is not None:
                known = True
                here = torch.from_numpy(place.owner)
                own = here >= 0
                energy.index_add_(0, here[own], (bn.spread**2 + bn.shift**2)[own])
        if not known:
            raise NotSeparable(
                f"what the stream of {group.name} carries is not known: no BN writes into it; "
                f"freeze it as a whole with core=[{group.name!r}]"
            )
        return energy


def capacities(group: Group, energies: Energies) -> Tensor:
    """‖f_i‖ of every unit of a group."""
    square = torch.zeros(group.units, dtype=torch.float64)
    for reader in energies.readers(group):
        add_by_unit(square, reader.places, reader.energy * reader.squares.flatten(1).sum(dim=1))
    return square.sqrt()


def add_by_unit(total: Tensor, place: Places, values: Tensor) -> None:
    """Add up what stands at each place, per unit."""
    owner = torch.from_numpy(place.owner)
    own = owner >= 0
    total.index_add_(0, owner[own], values[own])


def group_state(group: Group, anatomy: Anatomy, energies: Energies) -> LayerState:
    """A group as the encoder sees it; a stream's channels can only be pruned."""
    if group.layer is not None:
        state = layer_state(group.layer, anatomy, energies.tensors)
        if isinstance(state, LayerState):
            return state
    return LayerState(group.name, capacities(group, energies), 1)
