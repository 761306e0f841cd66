"""Scores of the baselines: the lowest goes first, over the whole network, never the last neuron of a
layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hope.anatomy.units import NeuronLayer

Tensors = Mapping[str, Tensor]


def _sums(layer: NeuronLayer, tensors: Tensors, role: str) -> Tensor:
    """Sums of absolute weights per neuron over all its places of one role."""
    total = torch.zeros(layer.neurons, dtype=torch.float64)
    for part in layer.slices:
        if part.role == role:
            weight = tensors[part.tensor].double().abs().movedim(part.dim, 0).flatten(1).sum(dim=1)
            total += weight[torch.from_numpy(part.index)].sum(dim=1)
    return total


def l1_in(layer: NeuronLayer, tensors: Tensors) -> Tensor | None:
    """L1 norm of the incoming weights."""
    return _sums(layer, tensors, "out")


def l1_joint(layer: NeuronLayer, tensors: Tensors) -> Tensor | None:
    """L1 norm of incoming and outgoing weights."""
    return _sums(layer, tensors, "out") + _sums(layer, tensors, "in")


def bn_scale(layer: NeuronLayer, tensors: Tensors) -> Tensor | None:
    """|γ| of the BN that the consumers see; None for layers without one."""
    scales = [
        tensors[part.tensor].double().abs()[torch.from_numpy(part.index)].sum(dim=1)
        for part in layer.slices
        if part.tensor == f"{layer.bn}.weight"
    ]
    return scales[0] if scales else None


def random(layer: NeuronLayer, tensors: Tensors) -> Tensor | None:
    """Uniform random numbers, the same for the same layer name and size."""
    seed = int.from_bytes(layer.name.encode()[-6:].rjust(6, b"\0"), "big") ^ layer.neurons
    return torch.rand(layer.neurons, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


SCORES: dict[str, Callable[[NeuronLayer, Tensors], Tensor | None]] = {
    "l1-in": l1_in,
    "l1-joint": l1_joint,
    "bn-scale": bn_scale,
    "random": random,
}
