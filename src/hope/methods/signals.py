"""From a network's numbers to layer states: the signal of each neuron as its BN describes it."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import torch
from torch import Tensor

from hope.anatomy.anatomy import Anatomy
from hope.anatomy.reasons import Cause, Reason
from hope.anatomy.units import Consumer, NeuronLayer, Slice
from hope.anatomy.values import Link
from hope.graph.blocks import Block
from hope.methods.costs import identity_capacity
from hope.methods.state import BlockState, LayerState
from hope.ops import activation
from hope.ops.norm import read_bn
from hope.signals import gaussian as moments


def layer_capacities(layer: NeuronLayer, tensors: Mapping[str, Tensor]) -> Tensor | Reason:
    """‖f_i‖ of a layer's neurons, or the reason why they are not known."""
    square = torch.zeros(layer.neurons, dtype=torch.float64)
    for consumer in layer.consumers:
        signal = signal_energies(layer, consumer, tensors)
        if isinstance(signal, Reason):
            return signal
        square += (_outgoing(layer, consumer, tensors, signal.shape[1]) * signal).sum(dim=1)
    return torch.sqrt(square)


def layer_state(layer: NeuronLayer, anatomy: Anatomy, tensors: Mapping[str, Tensor]) -> LayerState | Reason:
    """A layer's state, or the reason why it has none."""
    capacities = layer_capacities(layer, tensors)
    if isinstance(capacities, Reason):
        return capacities
    state = LayerState(layer.name, capacities, release(anatomy, layer.slices))
    if _mergeable(layer):
        _add_pairs(state, layer, tensors)
    return state


def release(anatomy: Anatomy, slices: tuple[Slice, ...]) -> int:
    """ΔP of a neuron: incoming and outgoing weights over all consumers, its bias, and the four BN numbers."""
    kept: dict[str, list[int]] = {}
    for part in slices:
        kept.setdefault(part.tensor, list(anatomy.shapes[part.tensor]))[part.dim] -= part.index.shape[1]
    return sum(prod(anatomy.shapes[tensor]) - prod(shape) for tensor, shape in kept.items())


def _slice(layer: NeuronLayer, tensor: str) -> Slice | None:
    return next((part for part in layer.slices if part.tensor == tensor), None)


def signal_energies(layer: NeuronLayer, consumer: Consumer, tensors: Mapping[str, Tensor]) -> Tensor | Reason:
    """Energies E Ψ(y)² of what a consumer sees, (neurons, channels a neuron has there)."""
    step = consumer.last("bn")
    if step is None:
        return Cause.NO_BN_BEFORE.at(consumer.module)
    if any(other.kind == "norm" for other in consumer.path):
        return Cause.OTHER_NORM.at(consumer.module)
    bn = read_bn(tensors, step.name, step.values[0] if step.values else 1e-5)
    places = _slice(layer, f"{step.name}.running_var")
    if bn is None or places is None:
        return Cause.NO_STATISTICS.at(step.name)
    index = torch.from_numpy(places.index)
    mean, spread = bn.shift[index], bn.spread[index]
    after = consumer.path[max(p for p, s in enumerate(consumer.path) if s.kind == "bn") + 1 :]
    if any(s.kind == "scale" for s in after):
        return Cause.SCALED.at(consumer.module)
    activations = [s for s in after if s.kind == "activation"]
    if len(activations) > 1:
        return Cause.TWO_ACTIVATIONS.at(consumer.module)
    if not activations:
        return moments.energy(mean, spread, torch.ones_like(mean))
    step = activations[0]
    slopes = _slopes(layer, step, tensors)
    if slopes is not None:
        return moments.energy(mean, spread, slopes.reshape(-1, 1).expand_as(mean))
    smooth = activation.function(step)
    if smooth is not None:
        return moments.energy_of(smooth, mean, spread)
    return Cause.UNKNOWN_ACTIVATION.at(step.name)


def _slopes(layer: NeuronLayer, link: Link | None, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """The slope below zero of a PH-1 activation, one per neuron or one for all; None if it is not PH-1."""
    slopes = activation.slopes(link, tensors)
    places = _slice(layer, link.tensor) if link is not None else None
    return slopes if slopes is None or places is None else slopes[torch.from_numpy(places.index[:, 0])]


def _outgoing(layer: NeuronLayer, consumer: Consumer, tensors: Mapping[str, Tensor], channels: int) -> Tensor:
    """Squared norms of outgoing weights, (neurons, channels)."""
    weights = _columns(layer, consumer, tensors)
    square = weights.square().sum(dim=2)  # (neurons, places)
    if square.shape[1] % channels:
        return square.sum(dim=1, keepdim=True).expand(-1, channels) / channels
    return square.reshape(layer.neurons, channels, -1).sum(dim=2)


def _columns(layer: NeuronLayer, consumer: Consumer, tensors: Mapping[str, Tensor]) -> Tensor:
    """Outgoing weights, (neurons, places, the rest)."""
    part = next(p for p in layer.slices if p.tensor == consumer.weight and p.role == "in")
    weight = tensors[part.tensor].double().movedim(part.dim, 0)
    return (
        weight[torch.from_numpy(part.index)].flatten(2)
        if weight.ndim > 1
        else weight[torch.from_numpy(part.index)][..., None]
    )


def _mergeable(layer: NeuronLayer) -> bool:
    """One filter, one BN directly behind it, one PH-1 activation: what the paper's geometry of pairs is
    about.
    """
    if layer.also or layer.channels != 1 or layer.bn is None:
        return False
    kinds = [[step.kind for step in consumer.path] for consumer in layer.consumers]
    first = all(kind and kind[0] == "bn" and kind.count("bn") == 1 for kind in kinds)
    plain = all(not {"gate", "scale", "shift", "depthwise", "grouped", "norm"} & set(kind) for kind in kinds)
    return first and plain and activation.homogeneous(layer.activation)


def _add_pairs(state: LayerState, layer: NeuronLayer, tensors: Mapping[str, Tensor]) -> None:
    """Effective filters, signals and the two Gram matrices."""
    step = layer.consumers[0].last("bn")
    assert step is not None
    bn = read_bn(tensors, step.name, step.values[0] if step.values else 1e-5)
    places = _slice(layer, f"{step.name}.running_var")
    own = next(part for part in layer.slices if part.role == "out")
    if bn is None or places is None or f"{step.name}.weight" not in tensors:
        return
    index = torch.from_numpy(places.index[:, 0])
    rows = torch.from_numpy(own.index[:, 0])
    raw = tensors[own.tensor].double().movedim(own.dim, 0)[rows].flatten(1)
    bias_name = own.tensor.removesuffix("weight") + "bias"
    shift = tensors[bias_name].double()[rows] if bias_name in tensors and bias_name != own.tensor else 0.0
    gain = bn.gain[index]
    filters = gain[:, None] * raw
    state.bias = bn.shift[index] - gain * (bn.mean[index] - shift)
    state.mean, state.spread = bn.shift[index], bn.spread[index]
    link = next((s for s in layer.consumers[0].path if s.kind == "activation"), None)
    slopes = _slopes(layer, link, tensors)
    assert slopes is not None
    state.slope = slopes.expand(layer.neurons).clone()
    state.energy = moments.energy(state.mean, state.spread, state.slope)
    outgoing = torch.cat(
        [_columns(layer, consumer, tensors).flatten(1) for consumer in layer.consumers], dim=1
    )
    state.inner = filters @ filters.T + torch.outer(state.bias, state.bias)
    state.outer = outgoing @ outgoing.T


def block_state(
    block: Block, anatomy: Anatomy, tensors: Mapping[str, Tensor], states: list[LayerState], eps: float = 1e-5
) -> BlockState | Reason:
    """A block's state, or the reason why the paper has no price for its eviction."""
    if block.skip != "identity":
        return Cause.PROJECTION.at()
    known = {state.name: position for position, state in enumerate(states)}
    if not block.layers or any(name not in known for name in block.layers):
        return Cause.NO_CAPACITY.at()
    positions = tuple(known[name] for name in block.layers)
    bn = read_bn(tensors, block.skip_bn, eps) if block.skip_bn is not None else None
    if bn is not None:
        anchors = (identity_capacity(bn.scale.numpy(), bn.shift.numpy()),) * len(positions)
    else:
        anchors = tuple(float(states[p].capacities.sum()) for p in positions)
    return BlockState(block.name, positions, anchors, block_release(block, anatomy))


def block_release(block: Block, anatomy: Anatomy) -> int:
    """ΔP of an eviction: the internal layers' weights and all BN numbers of the branch; its last weight is
    not counted.
    """
    layers = [anatomy.layer(name) for name in block.layers]
    internal = {part.tensor for layer in layers for part in layer.slices if part.role in ("out", "along")}
    numbers = sum(4 * anatomy.shapes[name][0] for name in block.tensors if name.endswith(".running_var"))
    norms = {name.rpartition(".")[0] for name in block.tensors if name.endswith(".running_var")}
    weights = [name for name in internal if name.rpartition(".")[0] not in norms and name in block.tensors]
    return sum(int(np.prod(anatomy.shapes[name])) for name in weights) + numbers
