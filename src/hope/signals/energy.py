"""How much of a signal reaches each reader: energies behind an activation, and capacities."""

from __future__ import annotations

import torch
from torch import Tensor

from hope.anatomy.units import Reader, Unit
from hope.geometry import gaussian
from hope.graph.values import Link
from hope.ops import activation
from hope.reasons import Cause, Reason
from hope.signals.bn import Numbers


def capacities(layer: Unit, numbers: Numbers) -> Tensor | Reason:
    """‖f_i‖ of a layer's neurons, or the reason why they are not known."""
    square = torch.zeros(layer.neurons, dtype=torch.float64)
    for reader in layer.readers:
        signal = signal_energies(layer, reader, numbers)
        if isinstance(signal, Reason):
            return signal
        square += (_squares(layer, reader, numbers, signal.shape[1]) * signal).sum(dim=1)
    return torch.sqrt(square)


def signal_energies(layer: Unit, reader: Reader, numbers: Numbers) -> Tensor | Reason:
    """Energies E Ψ(y)² of what a reader sees, (neurons, channels a neuron has there)."""
    step = reader.last("bn")
    if step is None:
        return Cause.NO_BN_BEFORE.at(reader.module)
    if any(other.kind == "norm" for other in reader.path):
        return Cause.OTHER_NORM.at(reader.module)
    bn = numbers.bn(step.name)
    places = layer.at(f"{step.name}.running_var")
    if bn is None or places is None:
        return Cause.NO_STATISTICS.at(step.name)
    index = torch.from_numpy(places.index)
    mean, spread = bn.shift[index], bn.spread[index]
    after = reader.path[max(p for p, s in enumerate(reader.path) if s.kind == "bn") + 1 :]
    if any(s.kind == "scale" for s in after):
        return Cause.SCALED.at(reader.module)
    activations = [s for s in after if s.kind == "activation"]
    if len(activations) > 1:
        return Cause.TWO_ACTIVATIONS.at(reader.module)
    if not activations:
        return gaussian.energy(mean, spread, torch.ones_like(mean))
    step = activations[0]
    slopes = slopes_of(layer, step, numbers)
    if slopes is not None:
        return gaussian.energy(mean, spread, slopes.reshape(-1, 1).expand_as(mean))
    smooth = activation.function(step)
    if smooth is not None:
        return gaussian.energy_of(smooth, mean, spread)
    return Cause.UNKNOWN_ACTIVATION.at(step.name)


def slopes_of(layer: Unit, link: Link | None, numbers: Numbers) -> Tensor | None:
    """The slope below zero of a PH-1 activation, one per neuron or one for all; None if it is not PH-1."""
    slopes = activation.slopes(link, numbers.tensors)
    places = layer.at(link.tensor) if link is not None else None
    return slopes if slopes is None or places is None else slopes[torch.from_numpy(places.index[:, 0])]


def _squares(layer: Unit, reader: Reader, numbers: Numbers, channels: int) -> Tensor:
    """Squared norms of outgoing weights, (neurons, channels)."""
    weights = outgoing(layer, reader, numbers)
    square = weights.square().sum(dim=2)  # (neurons, places)
    if square.shape[1] % channels:
        return square.sum(dim=1, keepdim=True).expand(-1, channels) / channels
    return square.reshape(layer.neurons, channels, -1).sum(dim=2)


def outgoing(layer: Unit, reader: Reader, numbers: Numbers) -> Tensor:
    """Outgoing weights, (neurons, places, the rest)."""
    part = layer.at(reader.weight, "in")
    assert part is not None
    weight = numbers[part.tensor].double().movedim(part.dim, 0)
    return (
        weight[torch.from_numpy(part.index)].flatten(2)
        if weight.ndim > 1
        else weight[torch.from_numpy(part.index)][..., None]
    )
