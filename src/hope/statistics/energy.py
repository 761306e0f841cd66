"""How much of a signal reaches each reader: energies after an activation, and capacities."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hope.geometry import gaussian
from hope.ops import activation
from hope.reasons import Cause, Reason
from hope.statistics.checkpoint import Checkpoint
from hope.structure.needs import adds_up, missing_statistics, writing_bns
from hope.structure.units import Reader, Unit
from hope.trace.values import Link


def capacities(layer: Unit, numbers: Checkpoint) -> Tensor | Reason:
    """‖f_i‖ of a unit's neurons, or the reason why they are not known.

    A stream's channel counts at every reader. Where that sees a sum that no BN has seen as a whole, its
    energy is the sum over the BNs of all writers, Σ γ² + β², as the paper has it for the signal of a skip.
    """
    square = torch.zeros(layer.neurons, dtype=torch.float64)
    for reader in layer.readers:
        signal = signal_energies(layer, reader, numbers)
        if isinstance(signal, Reason):
            return signal
        square += (_squares(layer, reader, numbers, signal.shape[1]) * signal).sum(dim=1)
    return torch.sqrt(square)


def signal_energies(layer: Unit, reader: Reader, numbers: Checkpoint) -> Tensor | Reason:
    """Energies E Ψ(y)² of what a reader sees, (neurons, channels a neuron has there)."""
    if numbers.measured is None and adds_up(layer, reader):
        return missing_statistics(layer, reader) or _written(layer, numbers)
    signal = seen(layer, reader, numbers)
    if isinstance(signal, Reason):
        return signal
    mean, spread, link, bn = signal.mean, signal.spread, signal.activation, signal.bn
    slopes = slopes_of(layer, link, numbers)
    if slopes is not None:
        slopes = slopes.reshape(-1, 1).expand_as(mean)
        energy = gaussian.energy(mean, spread, slopes)
        if bn is None:
            return energy
        gain, shift = bn
        return gain**2 * energy + 2 * gain * shift * gaussian.mean(mean, spread, slopes) + shift**2
    assert link is not None
    smooth = activation.function(link)
    if smooth is None:
        return Cause.UNKNOWN_ACTIVATION.at(link.name)
    cuts = activation.cuts(link)
    if bn is None:
        return gaussian.energy_of(smooth, mean, spread, cuts)
    return gaussian.energy_of(lambda y: bn[0] * smooth(y) + bn[1], mean, spread, cuts)


def _written(stream: Unit, numbers: Checkpoint) -> Tensor | Reason:
    """Energies of what all writers of a stream write, (channels, 1)."""
    total = torch.zeros(stream.neurons, 1, dtype=torch.float64)
    for name in writing_bns(stream):
        bn, places = numbers.bn(name), stream.at(f"{name}.running_var")
        if bn is None or places is None:
            return Cause.NO_STATISTICS.at(name)
        energy = (bn.spread**2 + bn.shift**2)[torch.from_numpy(places.index)]
        total += energy.mean(dim=1, keepdim=True)
    return total


@dataclass(frozen=True, eq=False)
class SignalStatistics:
    """What a reader sees of a layer: Ψ of a Gaussian signal, and perhaps a BN after it."""

    mean: Tensor  # mean, spread: (neurons, channels a neuron has there) of the signal before the activation
    spread: Tensor
    activation: Link | None  # Ψ; None for none
    # what a BN between the activation and the reader multiplies by and adds; None without one
    bn: tuple[Tensor, Tensor] | None = None


def seen(layer: Unit, reader: Reader, numbers: Checkpoint) -> SignalStatistics | Reason:
    """What a reader sees of a layer, as inputs showed it, or as the last BN on the way says."""
    return _from_bn(layer, reader, numbers) if numbers.measured is None else _measured(layer, reader, numbers)


def _measured(layer: Unit, reader: Reader, numbers: Checkpoint) -> SignalStatistics | Reason:
    assert numbers.measured is not None
    one = numbers.measured.get((layer.name, reader.weight))
    if one is None:
        return Cause.UNKNOWN_MOMENTS.at(reader.module)
    mean, spread, tap = one.of(one.mean), one.of(one.spread), one.tap
    if not tap.bn:
        return SignalStatistics(mean, spread, tap.activation)
    bn, places = numbers.bn(tap.bn), layer.at(f"{tap.bn}.running_var")
    if bn is None or places is None or places.index.shape != mean.shape:
        return Cause.NO_STATISTICS.at(tap.bn)
    index = torch.from_numpy(places.index)
    gain = bn.gain[index]
    return SignalStatistics(mean, spread, tap.activation, (gain, bn.shift[index] - gain * bn.mean[index]))


def _from_bn(layer: Unit, reader: Reader, numbers: Checkpoint) -> SignalStatistics | Reason:
    reason, step = missing_statistics(layer, reader), reader.last("bn")
    if reason is not None:
        return reason
    assert step is not None
    bn, places = numbers.bn(step.name), layer.at(f"{step.name}.running_var")
    if bn is None or places is None:
        return Cause.NO_STATISTICS.at(step.name)
    index = torch.from_numpy(places.index)
    last = max(place for place, link in enumerate(reader.path) if link.kind == "bn")
    link = next((link for link in reader.path[last:] if link.kind == "activation"), None)
    return SignalStatistics(bn.shift[index], bn.spread[index], link)


def slopes_of(layer: Unit, link: Link | None, numbers: Checkpoint) -> Tensor | None:
    """The slope below zero of a PH-1 activation, one per neuron or one for all; None if it is not PH-1, or if
    a neuron has several slopes, those of the channels that it mixes.
    """
    slopes = activation.slopes(link, numbers.tensors)
    places = layer.at(link.tensor) if link is not None else None
    if slopes is None or places is None:
        return slopes if slopes is None or slopes.numel() == 1 else None
    return slopes[torch.from_numpy(places.index[:, 0])]


def _squares(layer: Unit, reader: Reader, numbers: Checkpoint, channels: int) -> Tensor:
    """Squared norms of outgoing weights, (neurons, channels)."""
    weights = outgoing(layer, reader, numbers)
    square = weights.square().sum(dim=2)  # (neurons, places)
    if square.shape[1] % channels:
        return square.sum(dim=1, keepdim=True).expand(-1, channels) / channels
    return square.reshape(layer.neurons, channels, -1).sum(dim=2)


def outgoing(layer: Unit, reader: Reader, numbers: Checkpoint) -> Tensor:
    """Outgoing weights, (neurons, places, the rest)."""
    part = layer.at(reader.weight, "in")
    assert part is not None
    weight = numbers[part.tensor].movedim(part.dim, 0)[torch.from_numpy(part.index)].double()
    return weight.flatten(2) if weight.ndim > 2 else weight[..., None]
