"""Capacities: states of layers as in the paper, and of streams.

The paper has no capacity for a channel of a residual stream. Here it follows from the definition for any
neuron, ‖f_c‖² = Σ_readers ‖W_c‖²·E z_c², with the second moment of each reader's input from the propagated
surrogate (everything added to the channel so far, after the activation).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from hope.errors import NotSeparable
from hope.methods.pairs import PaperState
from hope.methods.paper import paper_state
from hope.reasons import Reason
from hope.statistics.checkpoint import Checkpoint
from hope.statistics.energy import signal_energies
from hope.statistics.propagated import Propagated
from hope.structure.anatomy import Anatomy
from hope.structure.units import IndexMap, Unit


@dataclass(frozen=True, eq=False)
class EnergyObserver:
    """A weight that reads a unit."""

    places: IndexMap  # where
    energy: Tensor  # (places,) E Ψ(y)² of the signal there
    squares: Tensor  # the weight's squares, the reading dimension first, float64


class Energies:
    """Second moments of weights' inputs, from a checkpoint alone or measured."""

    def __init__(self, anatomy: Anatomy, numbers: Checkpoint) -> None:
        self.anatomy, self.numbers = anatomy, numbers
        self._surrogate: Propagated | None = None

    def observers(self, unit: Unit) -> Iterator[EnergyObserver]:
        """All weights that read a unit's neurons.

        Raises:
            NotSeparable: the checkpoint does not determine the neurons' signals.
        """
        for place in unit.places:
            if place.role == "in":
                energy = self._layer(unit, place) if unit.kind == "layer" else self._stream(unit, place)
                squares = self.numbers[place.tensor].double().square().movedim(place.dim, 0)
                yield EnergyObserver(place, energy, squares)

    def _layer(self, unit: Unit, place: IndexMap) -> Tensor:
        reader = next(reader for reader in unit.readers if reader.weight == place.tensor)
        found = signal_energies(unit, reader, self.numbers)
        if isinstance(found, Reason):
            raise NotSeparable(
                f"the signals of {unit.name} must be known, got {found}: pass a few inputs with "
                f"calibration=batches, or freeze the whole layer with core=[{unit.name!r}]"
            )
        per, channels = place.each, found.shape[1]
        spread = (
            found.repeat_interleave(per // channels, dim=1)
            if per % channels == 0
            else found.mean(dim=1, keepdim=True).expand(-1, per)
        )
        energy = torch.zeros(len(place.owner), dtype=torch.float64)
        energy[torch.from_numpy(place.index)] = spread
        return energy

    def _stream(self, unit: Unit, place: IndexMap) -> Tensor:
        measured = (self.numbers.measured or {}).get((unit.name, place.tensor))
        if measured is not None and len(measured.mean) == len(place.owner):
            return measured.mean**2 + measured.spread**2
        if self._surrogate is None:
            self._surrogate = Propagated(self.anatomy.program, self.numbers.tensors, crosses=False)
        reading = self._surrogate.readings.get(place.tensor)
        if reading is not None and not reading.signal.guess:
            signal = reading.signal
            energy = (signal.covariance.diagonal() + signal.mean**2).repeat_interleave(signal.repeat)
            if len(energy) == len(place.owner):
                return energy
        owner = torch.from_numpy(place.owner)
        return torch.where(owner >= 0, self._written(unit)[owner.clamp(min=0)], 0.0)

    def _written(self, unit: Unit) -> Tensor:
        """Without a surrogate: the energy that BNs write into each channel, Σ γ² + β² (see E_identity)."""
        energy = torch.zeros(unit.neurons, dtype=torch.float64)
        known = False
        for place in unit.places:
            name, _, attribute = place.tensor.rpartition(".")
            bn = self.numbers.bn(name) if attribute == "running_var" else None
            if bn is not None:
                known = True
                here = torch.from_numpy(place.owner)
                own = here >= 0
                energy.index_add_(0, here[own], (bn.spread**2 + bn.shift**2)[own])
        if not known:
            raise NotSeparable(
                f"the signal of the stream of {unit.name} must be known, got no BN that writes into it: "
                "pass a few inputs with calibration=batches, or freeze the whole stream with "
                f"core=[{unit.name!r}]"
            )
        return energy


def capacities(unit: Unit, energies: Energies) -> Tensor:
    """‖f_i‖ of every neuron of a unit."""
    square = torch.zeros(unit.neurons, dtype=torch.float64)
    for observer in energies.observers(unit):
        add_by_neuron(square, observer.places, observer.energy * observer.squares.flatten(1).sum(dim=1))
    return square.sqrt()


def add_by_neuron(total: Tensor, place: IndexMap, values: Tensor) -> None:
    """Sum the values at a neuron's positions, per neuron."""
    owner = torch.from_numpy(place.owner)
    own = owner >= 0
    total.index_add_(0, owner[own], values[own])


def unit_state(unit: Unit, energies: Energies, *, merges: bool = True) -> PaperState:
    """A unit's state under the paper's method; a stream's channels can only be pruned.

    Args:
        merges: whether to go on to merges, which takes inner products of outgoing weights.
    """
    if unit.kind == "layer":
        state = paper_state(unit, energies.numbers, 1, outer=merges)
        if isinstance(state, PaperState):
            return state
    return PaperState(unit.name, capacities(unit, energies), 1)
