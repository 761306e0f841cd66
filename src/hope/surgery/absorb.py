"""Let survivors take over what removed neurons did: outgoing weights, a constant, repaired BN numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hope.anatomy.units import NeuronLayer
from hope.errors import InvalidAction
from hope.methods.state import View
from hope.signals.projection import ridged, takeover, variances
from hope.signals.views import channels_of
from hope.surgery.resize import get


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
    weight = view.laid(get(model, view.weight).cpu())
    shift = torch.zeros(len(weight), dtype=torch.float64)
    for layer, removed in feeding:
        channels = channels_of(layer, view)
        assert channels is not None
        dead = torch.zeros(layer.neurons, dtype=torch.bool)
        dead[list(removed)] = True
        shift += take_over(view, weight, channels.flatten(), dead.repeat_interleave(channels.shape[1]))
    settle(model, view, weight, shift)


def take_over(view: View, weight: Tensor, channels: Tensor, gone: Tensor) -> Tensor:
    """Let channels take over what others said, in place.

    Args:
        view: what the weight reads.
        weight: (outputs, taps, channels) as `view.laid` lays it, or some of its outputs.
        channels: those concerned.
        gone: of them, True where nobody listens from now on; the rest takes over.

    Returns:
        (outputs,) the constant that is left to add; 0 where the view has no place for it.
    """
    keep, lost = (~gone).nonzero()[:, 0], gone.nonzero()[:, 0]
    shares = takeover(ridged(view.moments[channels][:, channels]), keep, lost)  # (S, R)
    said = weight[:, :, channels[lost]]
    weight[:, :, channels[keep]] += said @ shares.T
    weight[:, :, channels[lost]] = 0
    if not view.absorbs_constants:
        return torch.zeros(len(weight), dtype=torch.float64)
    return said.sum(dim=1) @ (view.mean[channels[lost]] - view.mean[channels[keep]] @ shares)


@torch.no_grad()
def settle(
    model: nn.Module, view: View, weight: Tensor, shift: Tensor, outputs: Tensor | None = None
) -> None:
    """Write a rewritten weight back, put its constant where the view says, and repair the BN behind it.

    Args:
        weight: (outputs, taps, channels), all of it.
        shift: (outputs,) the constant.
        outputs: True for those that were rewritten, all by default; the others stay as they are, to the bit.
    """
    which = torch.ones(len(weight), dtype=torch.bool) if outputs is None else outputs
    tensor = get(model, view.weight)
    tensor.copy_(view.back(weight, tensor))
    if view.bn:
        heard = (weight != 0).flatten(0, 1).any(dim=0)
        after = variances(weight[:, :, heard], view.taps, view.covariance[heard][:, heard])
        after = torch.where(which, after, view.variance)
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
