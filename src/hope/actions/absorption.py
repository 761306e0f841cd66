"""Remove neurons and let the remaining ones compensate: outgoing weights, a constant, repaired BN numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

import torch
from torch import Tensor, nn

from hope._util.tensors import get
from hope.actions.base import Rewrite, RewriteContext
from hope.actions.prune import Prune
from hope.errors import InvalidAction
from hope.geometry.projection import compensation, ridged, variances
from hope.statistics.input_statistics import InputStatistics, channels_of, permanent_channels
from hope.structure.anatomy import Anatomy
from hope.structure.units import Unit

LEAST = 1e-4  # of an output's variance: what has less left is without signal


class Absorption(Prune, frozen=True, array_like=True, tag="absorb"):
    """Remove neurons of a unit; the remaining neurons and a constant compensate for them.

    How much each of them compensates follows from the moments of what the readers read (`InputStatistics`),
    which go with the trajectory.
    """

    kind: ClassVar[str] = "absorb"
    letter: ClassVar[str] = "a"
    done: ClassVar[str] = "absorbed"
    plural: ClassVar[str] = "absorptions"
    sentence: ClassVar[str] = "absorb {neurons} in {name}"
    colours: ClassVar[tuple[str, str]] = ("#7d4cc2", "#b796ee")
    compensates: ClassVar[bool] = True

    def writes(self, anatomy: Anatomy, input_statistics: Mapping[str, InputStatistics]) -> set[str] | None:
        """The readers' weights and biases; not known where a BN follows."""
        found: set[str] = set()
        for reader in anatomy.unit(self.name).readers:
            statistics = input_statistics.get(reader.weight)
            if statistics is None or statistics.bn:
                return None
            names = [statistics.weight, *([statistics.bias] if statistics.bias else [])]
            found.update(name for one in names for name in anatomy.names(one))
        return found

    @classmethod
    def rewrite_together(cls, model: nn.Module, context: RewriteContext, actions: Sequence[Self]) -> None:
        """Rewrite every reader once, for all that was absorbed; layers of evicted blocks left out."""
        found: dict[str, list[int]] = {}
        for action in actions:
            found.setdefault(action.name, []).extend(action.removed)
        evicted = [context.anatomy.block(name) for name in context.evicted]
        layers = [(context.anatomy.unit(name), sorted(neurons)) for name, neurons in found.items()]
        left = [
            (one, some)
            for one, some in layers
            if not all(any(block.removes(weight) for block in evicted) for weight in one.written)
        ]
        rewrite_readers(model, context.anatomy, left, context.statistics, context.rewrite)


@torch.no_grad()
def rewrite_readers(
    model: nn.Module,
    anatomy: Anatomy,
    layers: Sequence[tuple[Unit, Sequence[int]]],
    input_statistics: Mapping[str, InputStatistics],
    rewrite: Rewrite,
) -> None:
    """Rewrite every reader of these layers, in place. Removed neurons are sliced out later.

    Args:
        anatomy: the network.
        layers: layers with the neurons that are absorbed, all at once; one by one gives the same weights.
        input_statistics: weight -> its input statistics.
        rewrite: what is rewritten.
    """
    read: dict[str, list[tuple[Unit, Sequence[int]]]] = {}
    for layer, removed in layers:
        for reader in layer.readers:
            read.setdefault(reader.weight, []).append((layer, removed))
    for weight, feeding in read.items():
        if weight not in input_statistics:
            raise InvalidAction(
                f"input statistics must contain {weight}, got none for it: prune instead of absorbing"
            )
        _rewrite(model, anatomy, input_statistics[weight], feeding, rewrite)


def _rewrite(
    model: nn.Module,
    anatomy: Anatomy,
    statistics: InputStatistics,
    feeding: Sequence[tuple[Unit, Sequence[int]]],
    rewrite: Rewrite,
) -> None:
    weight = statistics.laid(get(model, statistics.weight).cpu())
    shift = torch.zeros(len(weight), dtype=torch.float64)
    for layer, removed in feeding:
        channels = channels_of(layer, statistics)
        assert channels is not None
        one = torch.zeros(layer.neurons, dtype=torch.bool)
        one[list(removed)] = True
        kept = permanent_channels(anatomy, layer, statistics)
        mask = torch.cat([one.repeat_interleave(channels.shape[1]), torch.zeros_like(kept, dtype=torch.bool)])
        shift += compensate(
            statistics, weight, torch.cat([channels.flatten(), kept]), mask, rewrite.compensate
        )
    if statistics.bn and not rewrite.constants:
        shift = torch.zeros_like(shift)
    write_back(model, statistics, weight, shift, repair=rewrite.repair)


def compensate(
    statistics: InputStatistics, weight: Tensor, channels: Tensor, removed: Tensor, rewrite_kept: bool = True
) -> Tensor:
    """Add to the weights of kept channels what compensates for removed ones, in place.

    Args:
        statistics: what the weight reads.
        weight: (outputs, taps, channels) as `statistics.laid` lays it, or some of its outputs.
        channels: those concerned.
        removed: of them, True for those that are removed; the others compensate.
        rewrite_kept: False to leave the weights of kept channels as they are: only a constant compensates.

    Returns:
        (outputs,) the constant that is left to add; 0 where there is no bias or BN for it.
    """
    keep, lost = (~removed).nonzero()[:, 0], removed.nonzero()[:, 0]
    shares = torch.zeros(len(keep), len(lost), dtype=torch.float64)  # (S, R)
    if rewrite_kept:
        shares = compensation(ridged(statistics.moments[channels][:, channels]), keep, lost)
    outgoing = weight[:, :, channels[lost]]
    weight[:, :, channels[keep]] += outgoing @ shares.T
    weight[:, :, channels[lost]] = 0
    if not statistics.absorbs_constants:
        return torch.zeros(len(weight), dtype=torch.float64)
    return outgoing.sum(dim=1) @ (statistics.mean[channels[lost]] - statistics.mean[channels[keep]] @ shares)


@torch.no_grad()
def write_back(
    model: nn.Module,
    statistics: InputStatistics,
    weight: Tensor,
    shift: Tensor,
    outputs: Tensor | None = None,
    *,
    repair: bool = True,
) -> None:
    """Write a rewritten weight back, add its constant to the bias or the BN, and repair that BN's variance.

    Args:
        weight: (outputs, taps, channels), all of it.
        shift: (outputs,) the constant.
        outputs: True for those that were rewritten, all by default; the others stay as they are, to the bit.
        repair: whether the BN's variance follows.
    """
    which = torch.ones(len(weight), dtype=torch.bool) if outputs is None else outputs
    tensor = get(model, statistics.weight)
    tensor.copy_(statistics.back(weight, tensor))
    if statistics.bn:
        read = (weight != 0).flatten(0, 1).any(dim=0)
        after = variances(weight[:, :, read], statistics.taps, statistics.covariance[read][:, read].double())
        after = torch.where(which, after, statistics.variance) if repair else statistics.variance
        _repair(model.get_submodule(statistics.bn), shift, after, statistics.variance)
    elif statistics.bias:
        bias = get(model, statistics.bias)
        bias.copy_((bias.double().cpu() + shift).to(bias.dtype))


def _repair(bn: nn.Module, shift: Tensor, after: Tensor, before: Tensor) -> None:
    """The BN expects what it now gets: the constant leaves its mean, its variance follows the model's.

    The BN's variance is multiplied by the ratio of the modelled variances, so that outputs keep their
    deviation γ. An output that is left without signal keeps its variance: its ratio would be 0/0.
    """
    mean, variance = bn.running_mean, bn.running_var
    assert isinstance(mean, Tensor)
    assert isinstance(variance, Tensor)
    mean.copy_((mean.double().cpu() - shift).to(mean.dtype))
    ratio = torch.where(before > 0, after / before.clamp(min=1e-300), torch.ones_like(before))
    ratio = torch.where(ratio > LEAST, ratio, torch.ones_like(ratio))
    variance.copy_((variance.double().cpu() * ratio).to(variance.dtype))
