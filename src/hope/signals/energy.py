"""How much of a signal reaches each reader: energies behind an activation, and capacities."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from hope.anatomy.flow import Step
from hope.anatomy.reasons import Cause, Reason
from hope.anatomy.units import Reader, Unit
from hope.signals import gaussian
from hope.signals.bn import Numbers

SMOOTH: dict[str, Callable[..., Tensor]] = {
    "silu": functional.silu, "gelu": functional.gelu, "hardswish": functional.hardswish,
    "relu6": functional.relu6,
    "sigmoid": torch.sigmoid, "tanh": torch.tanh, "elu": functional.elu, "mish": functional.mish,
    "selu": functional.selu, "hardsigmoid": functional.hardsigmoid, "celu": functional.celu,
    "softplus": functional.softplus,
}  # fmt: skip


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
    if step.name in SMOOTH:
        alpha = step.values[:1] if step.name in ("elu", "celu") else ()
        return gaussian.energy_of(lambda y: SMOOTH[step.name](y, *alpha), mean, spread)
    return Cause.UNKNOWN_ACTIVATION.at(step.name)


def slopes_of(layer: Unit, step: Step | None, numbers: Numbers) -> Tensor | None:
    """The slope below zero of a PH-1 activation, one per neuron or one for all; None if it is not PH-1."""
    if step is None or step.name == "identity":
        return torch.ones(1, dtype=torch.float64)
    if step.name == "relu":
        return torch.zeros(1, dtype=torch.float64)
    if step.name == "leaky_relu":
        return torch.tensor([step.values[0] if step.values else 0.01], dtype=torch.float64)
    if step.name == "prelu" and step.tensor in numbers:
        slopes = numbers[step.tensor].double()
        places = layer.at(step.tensor)
        return slopes if places is None else slopes[torch.from_numpy(places.index[:, 0])]
    return None


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
