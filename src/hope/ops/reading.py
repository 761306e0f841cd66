"""What a weight reads, and the moments of what it computes from it.

Across the places that one kernel covers, the correlation falls off as q^distance, with q read off the
checkpoint: of all q, the one whose modelled variances fit the BN's running variances best (least spread of
their log-ratio).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hope.geometry.matrices import interleaved, product, symmetric_product, tap_distances
from hope.ops.norm import Bn
from hope.ops.registry import Form, Signal

if TYPE_CHECKING:
    from hope.statistics.propagated import Propagated

DECAYS = tuple(k / 20 for k in range(20))
DEFAULT_DECAY = 0.5


@dataclass(frozen=True)
class Reading:
    """What a weight reads.

    Attributes:
        signal: of its input.
        weights: of each network (outputs, taps, inputs), groups written out.
        taps: (taps, taps) correlation between the places that the kernel covers.
        variance: (outputs,) of what it computes, as modelled.
        bn: the BN right behind it, if there is one.
        decay: q.
        op: position of the operation.
    """

    signal: Signal
    weights: tuple[Tensor, ...]
    taps: Tensor
    variance: Tensor
    bn: Bn | None
    decay: float
    op: int

    def central(self, between: Tensor) -> Tensor:
        """The covariance with another signal behind the weight, through the tap in the middle.

        Args:
            between: (inputs, other) in front of it.
        """
        middle, ways = self.taps[len(self.taps) // 2], len(self.weights)
        parts = [
            product(torch.einsum("t,oti->oi", middle, weight), between[way::ways])
            for way, weight in enumerate(self.weights)
        ]
        return interleaved(parts) if ways > 1 else parts[0]


def dense(raw: Tensor, groups: int) -> Tensor:
    """(outputs, taps, inputs) of a convolution's weight, groups written out.

    Args:
        raw: (outputs, inputs per group, taps).
    """
    if groups == 1:
        return raw.transpose(1, 2).contiguous()
    out, into = len(raw) // groups, raw.shape[1]
    found = torch.zeros(len(raw), raw.shape[2], into * groups, dtype=torch.float64)
    for group in range(groups):
        rows = slice(group * out, (group + 1) * out)
        found[rows, :, group * into : (group + 1) * into] = raw[rows].transpose(1, 2)
    return found


def isotropic(raw: Tensor) -> Signal:
    """The paper's surrogate for a layer whose inputs are not known: isotropic, to be warped by its BN."""
    filters = raw.double().flatten(1)
    return Signal(torch.zeros(len(filters), dtype=torch.float64), filters @ filters.T, guess=True)


def weigh(
    at: Propagated, form: Form, x: Signal, weights: Sequence[Tensor], kernel: tuple[int, ...]
) -> Signal:
    """Moments of what a dense weight computes; the reading is noted.

    Args:
        weights: of each network that is followed, (outputs, taps, inputs).
        kernel: its sizes in space, () if the taps are places of a flattened signal.
    """
    position, bn = form.operation.position, at.behind.get(form.operation.position)
    weight, ways = weights[0], len(weights)
    reached = [product(one, x.covariance[way::ways]) for way, one in enumerate(weights)]  # (O, T, ways·I)
    own = reached[0][:, :, ::ways]
    pairs = torch.einsum("osi,oti->ost", own, weight) if weight.shape[1] > 1 else None
    q, taps = decay(pairs, bn, kernel, at.decays)
    mixed = [torch.einsum("st,oti->osi", taps, some) if len(taps) > 1 else some for some in reached]
    if ways > 1:
        found = _joint(mixed, weights)
    elif position in at.read:
        found = symmetric_product(mixed[0].flatten(1), weight.flatten(1).T)
    else:  # it is the last: its variance will do
        found = torch.diag((mixed[0] * weight).sum(dim=(1, 2)))
    reading = Reading(x, tuple(weights), taps, found.diagonal().clone(), bn, q, position)
    at.by_operation[position] = reading
    at.readings.setdefault(form.operation.tensors["weight"], reading)
    if weight.shape[1] == 1:
        at.known.setdefault((position, form.inputs[0]), interleaved(reached)[:, 0])
    means = [one.sum(dim=1) @ x.mean[way::ways] for way, one in enumerate(weights)]
    return Signal(interleaved(means) + _shift(at, form), found)


def _joint(mixed: Sequence[Tensor], weights: Sequence[Tensor]) -> Tensor:
    """The covariance of what several networks compute, their channels in turn."""
    ways, outputs = len(weights), len(weights[0])
    found = torch.empty(ways * outputs, ways * outputs, dtype=torch.float64)
    for a, left in enumerate(mixed):
        for b, weight in enumerate(weights[: a + 1]):
            block = product(left[:, :, b::ways].flatten(1), weight.flatten(1).T)
            found[a::ways, b::ways] = block
            found[b::ways, a::ways] = block.T
    return found


def depthwise(at: Propagated, form: Form, x: Signal, raw: Sequence[Tensor]) -> Signal | None:
    """One channel in, some out: no dense weight is needed, and no neuron is read here.

    Args:
        raw: the weight of each network that is followed.
    """
    kernel = interleaved([one.double().flatten(1) for one in raw])  # (O, T)
    if len(kernel) % len(x.mean):
        return None
    source = sources(len(x.mean), len(kernel), at.ways)
    own, first = x.covariance.diagonal()[source][:: at.ways], kernel[:: at.ways]
    pairs = own[:, None, None] * first[:, :, None] * first[:, None, :] if kernel.shape[1] > 1 else None
    _, taps = decay(pairs, at.behind.get(form.operation.position), tuple(raw[0].shape[2:]), at.decays)
    found = x.covariance[source][:, source] * (kernel @ taps @ kernel.T)
    mean = kernel.sum(dim=1) * x.mean[source] + _shift(at, form)
    return Signal(mean, (found + found.T) / 2, gain=kernel @ taps[len(taps) // 2])


def sources(inputs: int, outputs: int, ways: int = 1) -> Tensor:
    """The input channel that each output channel of a depthwise convolution comes from."""
    own = torch.arange(inputs // ways).repeat_interleave(outputs // inputs)
    return (own[:, None] * ways + torch.arange(ways)).flatten()


def _shift(at: Propagated, form: Form) -> Tensor:
    name = form.operation.tensors.get("bias", "")
    biases = [tensors[name].double() for tensors in at.networks if name in tensors]
    return interleaved(biases) if biases else torch.zeros((), dtype=torch.float64)


def decay(
    pairs: Tensor | None, bn: Bn | None, kernel: tuple[int, ...], decays: Sequence[float]
) -> tuple[float, Tensor]:
    """q and the correlations between taps.

    Args:
        pairs: (O, T, T) covariances of what each two taps contribute, if they moved as one; None for one.
        decays: the q that are tried.
    """
    if pairs is None:
        return 1.0, torch.ones(1, 1, dtype=torch.float64)
    distance = tap_distances(kernel or pairs.shape[1])
    if bn is None:
        return DEFAULT_DECAY, DEFAULT_DECAY**distance
    best = (math.inf, DEFAULT_DECAY)
    moving = bn.variance > 1e-12
    for q in decays:
        variance = (pairs * q**distance).sum(dim=(1, 2))[moving]
        if len(variance) < 2 or not (variance > 0).all():
            continue
        ratio = torch.log(variance / bn.variance[moving])
        best = min(best, (float(ratio.var()), q))
    return best[1], best[1] ** distance
