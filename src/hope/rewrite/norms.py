"""Norms over all channels of a stream (LayerNorm, RMSNorm), once channels are removed.

The smaller norm takes its mean square over C' channels, not C. If removed channels are zero, its weight times
√(C/C') gives exactly what the larger norm gives for the remaining channels. If the moments show that these
have the share ρ of the norm's mean square, √(ρC/C') keeps their mean square.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from math import sqrt

import numpy as np
import torch
from torch import Tensor, nn

from hope._util.tensors import get
from hope.statistics.input_statistics import InputStatistics, centred
from hope.structure.anatomy import Anatomy
from hope.structure.units import Unit


def gains(
    model: nn.Module,
    anatomy: Anatomy,
    kept: Mapping[tuple[str, int], Tensor],
    absorbed: Collection[str],
    input_statistics: Mapping[str, InputStatistics],
) -> dict[str, float]:
    """Weight of a norm -> what it is multiplied by.

    Args:
        model: before the cut.
        kept: (tensor, dimension) -> the places that stay.
        absorbed: units whose channels were absorbed; the channels that others lose are zero.
        input_statistics: moments of what weights read.
    """
    found: dict[str, float] = {}
    for unit in sorted(anatomy.streams, key=lambda one: one.name in absorbed):  # two may share a norm
        norms = [part.tensor for part in unit.places if part.role == "norm" and (part.tensor, 0) in kept]
        parts: dict[str, float] = {}
        if unit.name in absorbed:
            energies = {weight: _energies(model, anatomy, unit, weight, input_statistics) for weight in norms}
            parts = {name: _part(one, kept[name, 0]) for name, one in energies.items() if one is not None}
        usual = sum(parts.values()) / len(parts) if parts else 1.0  # a norm that no weight reads as it is
        for weight in norms:
            ratio = anatomy.shapes[weight][0] / len(kept[weight, 0])
            found[weight] = sqrt(parts.get(weight, usual) * ratio)
    return found


def _energies(
    model: nn.Module,
    anatomy: Anatomy,
    unit: Unit,
    weight: str,
    input_statistics: Mapping[str, InputStatistics],
) -> Tensor | None:
    """(C,) E n̂² of what a norm divides, before its weight and bias, as a weight after it reads it."""
    place = unit.at(weight, "norm")
    assert place is not None
    for reader in unit.readers:
        statistics, read = input_statistics.get(reader.weight), unit.at(reader.weight, "in")
        if statistics is None or read is None or not reader.reads_norm(weight):
            continue
        if np.array_equal(read.owner, place.owner) and statistics.repeat == 1:
            scale = get(model, weight).detach().double().cpu()
            name = f"{weight.rpartition('.')[0]}.bias"
            shift = get(model, name).detach().double().cpu() if unit.at(name) is not None else 0.0
            square = statistics.covariance.diagonal().double() + (statistics.mean - shift) ** 2
            nonzero = scale.abs() > 1e-6 * scale.abs().max()
            energies = square / torch.where(nonzero, scale, torch.ones_like(scale)) ** 2
            energies = torch.where(nonzero, energies, energies[nonzero].mean())
            return energies - 1 if centred(anatomy, reader.weight) else energies  # without what is in common
    return None


def _part(energies: Tensor, kept: Tensor) -> float:
    return float(energies[kept].sum() / energies.sum())


@torch.no_grad()
def scale(model: nn.Module, found: Mapping[str, float]) -> None:
    """Multiply the weights of norms, in place."""
    for weight, gain in found.items():
        tensor = get(model, weight)
        tensor.copy_((tensor.double() * gain).to(tensor.dtype))
