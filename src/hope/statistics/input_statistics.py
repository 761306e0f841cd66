"""What weights read, as far as absorption needs to know: one `InputStatistics` per reading weight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hope import ops
from hope.ops.norm import bn_of, centres, is_bn
from hope.ops.uses import added_biases
from hope.ops.weight import is_weight
from hope.statistics.checkpoint import Checkpoint
from hope.statistics.propagated import Propagated
from hope.structure.anatomy import Anatomy
from hope.structure.units import Unit


@dataclass(frozen=True, eq=False)
class InputStatistics:
    """What one weight reads, and what a surrogate says of it: all that absorption needs to rewrite it."""

    weight: str  # its name
    dim: int  # the dimension that reads
    mean: Tensor  # (channels,) of the signal it reads
    covariance: Tensor  # (channels, channels); float32 where it is held in a file
    taps: Tensor  # (taps, taps) correlation between the places that the kernel covers
    variance: Tensor  # (outputs,) of what it computes
    repeat: int = 1  # input places that stand for one channel (after a flatten)
    bn: str = ""  # the BN right after it, "" without one
    bias: str = ""  # name of its bias, "" without one

    @property
    def absorbs_constants(self) -> bool:
        """Whether a constant can be folded in: into the BN's mean, or a bias."""
        return bool(self.bn or self.bias)

    def to_dict(self) -> dict[str, Any]:
        """As plain data; moments in float32, which they were rounded to."""
        return {name: one.float() if isinstance(one, Tensor) else one for name, one in vars(self).items()}

    @classmethod
    def from_dict(cls, saved: Mapping[str, Any]) -> InputStatistics:
        """The reverse of `to_dict`; the covariance stays as it is."""
        moments = {name: saved[name].double() for name in ("mean", "taps", "variance")}
        return cls(**{**saved, **moments})

    @property
    def is_finite(self) -> bool:
        """Whether no moment is NaN or beyond float32."""
        return all(bool(one.isfinite().all()) for one in (self.mean, self.covariance, self.variance))

    @property
    def moments(self) -> Tensor:
        """What signals are projected under: their covariance, or without a place for constants their second
        moments.
        """
        covariance = self.covariance.double()
        return covariance if self.absorbs_constants else covariance + torch.outer(self.mean, self.mean)

    def laid(self, weight: Tensor) -> Tensor:
        """A weight as (outputs, taps, channels), float64; always a copy."""
        moved = weight.detach().to(torch.float64, copy=True).movedim(self.dim, -1)
        moved = moved.reshape(len(moved), -1, moved.shape[-1])
        if self.repeat == 1:
            return moved
        return moved.reshape(len(moved), -1, self.repeat).transpose(1, 2)

    def back(self, laid: Tensor, like: Tensor) -> Tensor:
        """The reverse of `laid`."""
        if self.repeat > 1:
            laid = laid.transpose(1, 2).reshape(len(laid), 1, -1)
        shape = like.movedim(self.dim, -1).shape
        return laid.reshape(shape).movedim(-1, self.dim).to(like.dtype)


def stored(tensor: Tensor) -> Tensor:
    """Moments as they are saved with a run (float32), so that a replay computes with the same numbers."""
    return tensor.float().double()


def bn_and_bias(anatomy: Anatomy) -> dict[str, tuple[str, str]]:
    """Reading weight -> (the BN right after it, its bias); "" for none."""
    forms = [form for form in ops.forms(anatomy.program) if form is not None]
    bns = {form.inputs[0]: bn_of(form.operation) for form in forms if is_bn(form)}
    readers = Counter(position for form in forms for position in set(form.inputs))
    found, added = {}, added_biases(anatomy.program)
    for form in forms:
        if is_weight(form):
            position, tensors = form.operation.position, form.operation.tensors
            weight = tensors["weight"]
            bn = bns.get(position, "") if readers[position] == 1 else ""
            found[weight] = (bn, tensors.get("bias") or added.get(weight, ("",))[0])
    return found


def propagated_statistics(
    anatomy: Anatomy,
    numbers: Checkpoint,
    *,
    dims: Mapping[str, int] | None = None,
    **options: Any,
) -> tuple[dict[str, InputStatistics], Propagated]:
    """What weights read according to the propagated surrogate.

    Args:
        dims: reading weight -> the dimension that reads; by default all that read neurons of layers.
        options: of `Propagated`.
    """
    surrogate = Propagated(anatomy.program, numbers.tensors, **options)
    if dims is None:
        reads = {reader.weight for layer in anatomy.layers for reader in layer.readers}
        slices = [part for layer in anatomy.layers for part in layer.places if part.role == "in"]
        dims = {part.tensor: part.dim for part in slices if part.tensor in reads}
    return statistics_of(anatomy, surrogate, dims), surrogate


def statistics_of(
    anatomy: Anatomy, surrogate: Propagated, dims: Mapping[str, int]
) -> dict[str, InputStatistics]:
    """What weights read according to a propagated surrogate, where it has followed them.

    Args:
        dims: reading weight -> the dimension that reads.
    """
    neighbours = bn_and_bias(anatomy)
    found = {}
    for weight in sorted(dims.keys() & surrogate.readings.keys()):
        reading = surrogate.readings[weight]
        bn, bias = neighbours[weight]
        if reading.bn is None:
            bn = ""
        signal = reading.signal
        one = InputStatistics(
            weight,
            dims[weight],
            stored(signal.mean),
            stored(signal.covariance),
            stored(reading.taps),
            stored(reading.variance),
            signal.repeat,
            bn,
            bias,
        )
        if one.is_finite:  # otherwise they are as good as unknown
            found[weight] = one
    return found


def centred(anatomy: Anatomy, weight: str) -> str:
    """The weight of the LayerNorm whose result a weight reads, if it is of a stream that may lose channels;
    "" if there is none.

    Such a norm takes out the mean over channels, so that each is minus the sum of all others, for whoever
    believes in moments. The smaller norm takes out another mean, and that sum says nothing. So moments are
    those of channels that have something in common, as large as they are.
    """
    for unit in anatomy.layers:
        for reader in unit.readers if unit.kind == "stream" else ():
            last = reader.path[-1] if reader.path else None
            if reader.weight == weight and last is not None and centres(last):
                return last.tensor
    return ""


def permanent_channels(anatomy: Anatomy, unit: Unit, statistics: InputStatistics) -> Tensor:
    """Channels that a weight reads together with those of a stream and that are never removed, such as those
    that a skip pads: they compensate for removed channels, too. A layer has none.
    """
    if unit.kind != "stream":
        return torch.zeros(0, dtype=torch.long)
    prunable = torch.zeros(len(statistics.mean), dtype=torch.bool)
    for one in anatomy.layers:
        part = one.at(statistics.weight, "in")
        if part is not None:
            prunable[torch.from_numpy(part.owned) // statistics.repeat] = True
    return (~prunable).nonzero()[:, 0]


def channels_of(layer: Unit, statistics: InputStatistics) -> Tensor | None:
    """(neurons, channels) where a layer's neurons stand in what a weight reads; None if not plainly."""
    part = layer.at(statistics.weight, "in")
    assert part is not None
    index = torch.from_numpy(part.index)
    if statistics.repeat > 1:
        first = index[:, :1] // statistics.repeat
        plain = index.shape[1] == statistics.repeat and bool((index // statistics.repeat == first).all())
        return first if plain else None
    return index
