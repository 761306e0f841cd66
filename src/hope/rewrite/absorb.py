"""Let survivors take over what removed neurons did: outgoing weights, a constant, repaired BN numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from hope.errors import InvalidAction
from hope.geometry.projection import ridged, takeover, variances
from hope.methods.base import Rewrite
from hope.rewrite.resize import get
from hope.statistics.input_statistics import InputStatistics, beside, channels_of
from hope.structure.anatomy import Anatomy
from hope.structure.units import Unit

LEAST = 1e-4  # of an output's variance: what has less left is without signal


@torch.no_grad()
def hand_over(
    model: nn.Module,
    anatomy: Anatomy,
    layers: Sequence[tuple[Unit, Sequence[int]]],
    intakes: Mapping[str, InputStatistics],
    rewrite: Rewrite,
) -> None:
    """Rewrite every reader of these layers, in place. What is removed is left for the slicing.

    Args:
        anatomy: the network.
        layers: layers with the neurons that are absorbed, all at once: one by one comes to the same.
        intakes: moments of what the readers read.
        rewrite: what is rewritten.
    """
    read: dict[str, list[tuple[Unit, Sequence[int]]]] = {}
    for layer, gone in layers:
        for reader in layer.readers:
            read.setdefault(reader.weight, []).append((layer, gone))
    for weight, feeding in read.items():
        if weight not in intakes:
            raise InvalidAction(f"there are no moments of what {weight} reads: prune instead of absorbing")
        _rewrite(model, anatomy, intakes[weight], feeding, rewrite)


def _rewrite(
    model: nn.Module,
    anatomy: Anatomy,
    intake: InputStatistics,
    feeding: Sequence[tuple[Unit, Sequence[int]]],
    rewrite: Rewrite,
) -> None:
    weight = intake.laid(get(model, intake.weight).cpu())
    shift = torch.zeros(len(weight), dtype=torch.float64)
    for layer, removed in feeding:
        channels = channels_of(layer, intake)
        assert channels is not None
        dead = torch.zeros(layer.neurons, dtype=torch.bool)
        dead[list(removed)] = True
        stay = beside(anatomy, layer, intake)
        gone = torch.cat(
            [dead.repeat_interleave(channels.shape[1]), torch.zeros_like(stay, dtype=torch.bool)]
        )
        shift += take_over(intake, weight, torch.cat([channels.flatten(), stay]), gone, rewrite.takeover)
    if intake.bn and not rewrite.constants:
        shift = torch.zeros_like(shift)
    settle(model, intake, weight, shift, repair=rewrite.repair)


def take_over(
    intake: InputStatistics, weight: Tensor, channels: Tensor, gone: Tensor, survivors: bool = True
) -> Tensor:
    """Let channels take over what others said, in place.

    Args:
        intake: what the weight reads.
        weight: (outputs, taps, channels) as `intake.laid` lays it, or some of its outputs.
        channels: those concerned.
        gone: of them, True where nobody listens from now on; the rest takes over.
        survivors: False to leave survivors as they are: then a constant is all that stays.

    Returns:
        (outputs,) the constant that is left to add; 0 where the intake has no place for it.
    """
    keep, lost = (~gone).nonzero()[:, 0], gone.nonzero()[:, 0]
    shares = torch.zeros(len(keep), len(lost), dtype=torch.float64)  # (S, R)
    if survivors:
        shares = takeover(ridged(intake.moments[channels][:, channels]), keep, lost)
    said = weight[:, :, channels[lost]]
    weight[:, :, channels[keep]] += said @ shares.T
    weight[:, :, channels[lost]] = 0
    if not intake.absorbs_constants:
        return torch.zeros(len(weight), dtype=torch.float64)
    return said.sum(dim=1) @ (intake.mean[channels[lost]] - intake.mean[channels[keep]] @ shares)


@torch.no_grad()
def settle(
    model: nn.Module,
    intake: InputStatistics,
    weight: Tensor,
    shift: Tensor,
    outputs: Tensor | None = None,
    *,
    repair: bool = True,
) -> None:
    """Write a rewritten weight back, put its constant where the intake says, and repair the BN behind it.

    Args:
        weight: (outputs, taps, channels), all of it.
        shift: (outputs,) the constant.
        outputs: True for those that were rewritten, all by default; the others stay as they are, to the bit.
        repair: whether the BN's variance follows.
    """
    which = torch.ones(len(weight), dtype=torch.bool) if outputs is None else outputs
    tensor = get(model, intake.weight)
    tensor.copy_(intake.back(weight, tensor))
    if intake.bn:
        heard = (weight != 0).flatten(0, 1).any(dim=0)
        after = variances(weight[:, :, heard], intake.taps, intake.covariance[heard][:, heard].double())
        after = torch.where(which, after, intake.variance) if repair else intake.variance
        _repair(model.get_submodule(intake.bn), shift, after, intake.variance)
    elif intake.bias:
        bias = get(model, intake.bias)
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
