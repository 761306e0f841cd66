"""What a weight reads, and the moments of what it computes from it.

Across the places that one kernel covers, the correlation falls off as q^distance, with q read off the
checkpoint: of all q, the one whose modelled variances fit the BN's running variances best (least spread of
their log-ratio).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hope.geometry.matrices import product, symmetric_product, tap_distances
from hope.ops.norm import Bn
from hope.ops.protocols import Propagation
from hope.ops.registry import Form, Signal

DECAYS = tuple(k / 20 for k in range(20))
DEFAULT_DECAY = 0.5


@dataclass(frozen=True)
class Reading:
    """What a weight reads."""

    signal: Signal  # of its input
    weight: Tensor  # (outputs, taps, inputs), groups written out
    taps: Tensor  # (taps, taps) correlation between the places that the kernel covers
    variance: Tensor  # (outputs,) of what it computes, as modelled
    bn: Bn | None  # the BN directly after it, if there is one
    decay: float  # q
    op: int  # position of the operation

    def central(self, between: Tensor) -> Tensor:
        """The covariance with another signal after the weight, through the tap in the middle.

        Args:
            between: (inputs, other) in front of it.
        """
        middle = self.taps[len(self.taps) // 2]
        return product(torch.einsum("t,oti->oi", middle, self.weight), between)


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


def weighted_sum(at: Propagation, form: Form, x: Signal, weight: Tensor, kernel: tuple[int, ...]) -> Signal:
    """Moments of what a dense weight computes; the reading is noted.

    Args:
        weight: (outputs, taps, inputs).
        kernel: its sizes in space, () if the taps are places of a flattened signal.
    """
    position, bn = form.operation.position, at.following_bn.get(form.operation.position)
    reached = product(weight, x.covariance)  # (O, T, I)
    pairs = torch.einsum("osi,oti->ost", reached, weight) if weight.shape[1] > 1 else None
    q, taps = decay(pairs, bn, kernel, at.decays)
    mixed = torch.einsum("st,oti->osi", taps, reached) if len(taps) > 1 else reached
    if position in at.read:
        found = symmetric_product(mixed.flatten(1), weight.flatten(1).T)
    else:  # it is the last: its variance will do
        found = torch.diag((mixed * weight).sum(dim=(1, 2)))
    reading = Reading(x, weight, taps, found.diagonal().clone(), bn, q, position)
    at.by_operation[position] = reading
    at.readings.setdefault(form.operation.tensors["weight"], reading)
    if weight.shape[1] == 1:
        at.known.setdefault((position, form.inputs[0]), reached[:, 0])
    return Signal(weight.sum(dim=1) @ x.mean + _shift(at, form), found)


def depthwise(at: Propagation, form: Form, x: Signal, raw: Tensor) -> Signal | None:
    """One channel in, some out: no dense weight is needed, and no neuron is read here."""
    kernel = raw.double().flatten(1)  # (O, T)
    if len(kernel) % len(x.mean):
        return None
    source = sources(len(x.mean), len(kernel))
    own = x.covariance.diagonal()[source]
    pairs = own[:, None, None] * kernel[:, :, None] * kernel[:, None, :] if kernel.shape[1] > 1 else None
    _, taps = decay(pairs, at.following_bn.get(form.operation.position), tuple(raw.shape[2:]), at.decays)
    found = x.covariance[source][:, source] * (kernel @ taps @ kernel.T)
    mean = kernel.sum(dim=1) * x.mean[source] + _shift(at, form)
    return Signal(mean, (found + found.T) / 2, gain=kernel @ taps[len(taps) // 2])


def sources(inputs: int, outputs: int) -> Tensor:
    """The input channel that each output channel of a depthwise convolution comes from."""
    return torch.arange(inputs).repeat_interleave(outputs // inputs)


def _shift(at: Propagation, form: Form) -> Tensor:
    name = form.operation.tensors.get("bias", "")
    return at.tensors[name].double() if name in at.tensors else torch.zeros((), dtype=torch.float64)


def decay(
    pairs: Tensor | None, bn: Bn | None, kernel: tuple[int, ...], decays: Sequence[float]
) -> tuple[float, Tensor]:
    """q and the correlations between taps.

    Args:
        pairs: (O, T, T) covariances of what each two taps contribute, if they moved as one; None for one.
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
