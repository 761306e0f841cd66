"""Let survivors take over what removed neurons did: outgoing weights, a constant, repaired BN numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hope.anatomy.neurons import NeuronLayer
from hope.encoder.state import View
from hope.errors import InvalidAction
from hope.geometry.absorb import ridged, takeover, variances
from hope.surgery.slice import get
from hope.surrogate.views import channels_of


@torch.no_grad()
def apply(
    model: nn.Module, layers: Sequence[tuple[NeuronLayer, Sequence[int]]], views: Mapping[str, View]
) -> None:
    """Rewrite every consumer of these layers, in place. What is removed is left for the slicing.

    Args:
        layers: layers with the neurons that are absorbed, all at once: one by one comes to the same.
        views: moments of what the consumers read.
    """
    read: dict[str, list[tuple[NeuronLayer, Sequence[int]]]] = {}
    for layer, gone in layers:
        for consumer in layer.consumers:
            read.setdefault(consumer.weight, []).append((layer, gone))
    for weight, feeding in read.items():
        if weight not in views:
            raise InvalidAction(f"there are no moments of what {weight} reads: prune instead of absorbing")
        _rewrite(model, views[weight], feeding)


def _rewrite(model: nn.Module, view: View, feeding: Sequence[tuple[NeuronLayer, Sequence[int]]]) -> None:
    tensor = get(model, view.weight)
    weight = view.laid(tensor.cpu())
    moments, left = view.moments, torch.ones(len(view.mean), dtype=torch.bool)
    shift = torch.zeros(len(weight), dtype=torch.float64)
    for layer, removed in feeding:
        channels = channels_of(layer, view)
        assert channels is not None
        flat = channels.flatten()
        dead = torch.zeros(layer.neurons, dtype=torch.bool)
        dead[list(removed)] = True
        places = dead.repeat_interleave(channels.shape[1])
        keep, gone = (~places).nonzero()[:, 0], places.nonzero()[:, 0]
        shares = takeover(ridged(moments[flat][:, flat]), keep, gone)  # (S, R)
        lost = weight[:, :, flat[gone]]
        weight[:, :, flat[keep]] += lost @ shares.T
        if view.absorbs_constants:
            constant = view.mean[flat[gone]] - view.mean[flat[keep]] @ shares
            shift += lost.sum(dim=1) @ constant
        weight[:, :, flat[gone]] = 0
        left[flat[gone]] = False
    tensor.copy_(view.back(weight, tensor))
    if view.bn:
        after = variances(weight[:, :, left], view.taps, view.covariance[left][:, left])
        _repair(model.get_submodule(view.bn), shift, after, view.variance)
    elif view.bias:
        bias = get(model, view.bias)
        bias.copy_((bias.double().cpu() + shift).to(bias.dtype))


def _repair(bn: nn.Module, shift: Tensor, after: Tensor, before: Tensor) -> None:
    """The BN expects what it now gets: the constant leaves its mean, its variance follows the model's.

    The ratio is that of the modelled variances; the BN's own number carries it, so that outputs keep their
    deviation γ. An output that is left without signal keeps its variance: dividing by 0 would blow it up.
    """
    mean, variance = bn.running_mean, bn.running_var
    assert isinstance(mean, Tensor)
    assert isinstance(variance, Tensor)
    mean.copy_((mean.double().cpu() - shift).to(mean.dtype))
    ratio = torch.where(before > 0, after / before.clamp(min=1e-300), torch.ones_like(before))
    ratio = torch.where(ratio > LEAST, ratio, torch.ones_like(ratio))
    variance.copy_((variance.double().cpu() * ratio).to(variance.dtype))


LEAST = 1e-4
