"""The measured surrogate: moments of what weights read, from one pass over a few unlabelled inputs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hope import ops
from hope._util.disk_cache import cached
from hope._util.memory import PART, allowed, filed
from hope.errors import InvalidExample
from hope.geometry.matrices import tap_distances
from hope.geometry.projection import variances
from hope.ops.reading import DEFAULT_DECAY
from hope.ops.weight import Weighted, spatial
from hope.statistics.input_statistics import InputStatistics, bn_and_bias, centred, stored
from hope.statistics.observe import observe
from hope.statistics.token_weights import counts, mask_of, normed_adds, without_padding
from hope.structure.anatomy import Anatomy
from hope.structure.units import Unit
from hope.trace.program import Ref

SPARE = 0.3  # of the samples, more than there are signals: fewer do not determine correlations
MOST = 0.9  # the largest share that others may leave unexplained
TWIN = 1e-9  # signals whose correlation is this close to 1 are one signal
PLACES = 4  # places of one input that count as one more sample
KINDS = 5  # matrices of a layer's size that absorption holds: moments, and twice two that it works with


class _MomentSums:
    """First and second moments of a module's input, gathered batch by batch, and how neighbours relate."""

    def __init__(self, repeat: int, spatial: int) -> None:
        self.repeat, self.spatial = repeat, spatial
        self.count = self.inputs = self.informative = 0
        self.weight = 0.0
        self.total = self.square = torch.zeros(())
        self.near = self.own = 0.0

    def add(self, x: Tensor, counts: Tensor | None = None) -> None:
        """A batch, and what each of its places counts."""
        x = x.detach().double().cpu()
        self.inputs += len(x)
        if self.spatial:
            self._neighbours(x)
            x = x.movedim(-self.spatial - 1, -1)
        if self.repeat > 1:
            x = x.reshape(*x.shape[:-1], -1, self.repeat).transpose(-1, -2)
        rows = x.reshape(-1, x.shape[-1])
        self.count += len(rows)
        self.informative += len(rows) if self.spatial else self._informative(rows, counts)
        part = rows if counts is None else rows * counts.double().cpu().reshape(-1, 1)
        self.weight += len(rows) if counts is None else float(counts.double().sum())
        self.total = self.total + part.sum(dim=0)
        product = part.T @ rows
        self.square = self.square.add_(product) if self.square.ndim else self.square + product

    def _informative(self, rows: Tensor, counts: Tensor | None) -> int:
        """How many places are informative: neither padding, nor tokens that an expert was not sent."""
        nonzero = rows.any(dim=1)
        return int((nonzero if counts is None else nonzero & (counts.cpu().reshape(-1) > 0)).sum())

    def _neighbours(self, x: Tensor) -> None:
        over = tuple(d for d in range(x.ndim) if d != x.ndim - self.spatial - 1)
        centred = x - x.mean(dim=over, keepdim=True)
        if x.shape[-1] > 1:
            self.near += float((centred[..., 1:] * centred[..., :-1]).mean())
            self.own += float((centred**2).mean())

    @property
    def counted(self) -> float:
        """Independent samples: neighbouring places of one input are correlated."""
        return min(self.informative, self.inputs * max(1.0, self.informative / max(1, self.inputs) / PLACES))

    @property
    def mean(self) -> Tensor:
        return self.total / self.weight

    @property
    def covariance(self) -> Tensor:
        return self.square / self.weight - torch.outer(self.mean, self.mean)

    @property
    def decay(self) -> float:
        return min(0.99, max(0.0, self.near / self.own)) if self.own > 0 else DEFAULT_DECAY


def measured_statistics(
    model: nn.Module,
    anatomy: Anatomy,
    inputs: Iterable[Any],
    known: Mapping[str, InputStatistics],
    *,
    units: Sequence[Unit] | None = None,
    total: int | None = None,
    synthetic: bool = False,
    progress: bool | None = None,
) -> dict[str, InputStatistics]:
    """What every weight reads, measured on a few inputs.

    Args:
        inputs: batches as `example` takes them, or pairs of inputs and labels; labels are not used.
        known: input_statistics of the propagated surrogate, kept where nothing could be measured.
        units: whose readers; all layers by default.
        total: how many batches there are, where `inputs` has no length.
        progress: show how far it is; None shows it on a terminal or in a notebook.
    """
    readers = _readers(model, anatomy, anatomy.layers if units is None else units)
    how: dict[str, Any] = {"total": total, "synthetic": synthetic, "progress": progress}
    many, found = many_moments(anatomy), dict(known)
    parts = list(_parts(anatomy, readers)) if many else [list(readers)]
    inputs = list(inputs) if many else inputs

    def measured(part: Sequence[str]) -> list[dict[str, Any]]:
        sums = {weight: _MomentSums(*readers[weight][1:]) for weight in part}
        _gather(model, anatomy, inputs, sums, **how)
        return [one.to_dict() for _, one in _finished(model, anatomy, readers, sums, known)]

    for number, part in enumerate(parts):
        for one in cached(f"moments-{number}-of-{len(parts)}", partial(measured, part)):
            covariance: Tensor = one["covariance"]
            one["covariance"] = filed(covariance) if many else covariance.double()
            found[one["weight"]] = InputStatistics.from_dict(one)
    return found


def many_moments(anatomy: Anatomy) -> bool:
    """Whether all layers' moments are more than memory should hold at once; then they are measured and worked
    with a layer at a time, and held in files.
    """
    return KINDS * sum(_bytes(anatomy, weight) for weight in _weights(anatomy)) > allowed()


def _weights(anatomy: Anatomy) -> set[str]:
    return {reader.weight for layer in anatomy.layers for reader in layer.readers}


def _bytes(anatomy: Anatomy, weight: str) -> int:
    """Of the second moments of what a weight reads."""
    found = 0
    for layer in anatomy.layers:
        part = layer.at(weight, "in")
        if part is not None:
            repeat = part.each if layer.channels == 1 else 1
            found = max(found, 8 * (anatomy.shapes[weight][part.dim] // repeat) ** 2)
    return found


def _parts(anatomy: Anatomy, weights: Iterable[str]) -> Iterator[list[str]]:
    """Weights in their order, as many at a time as memory should hold the moments of."""
    part: list[str] = []
    held, most = 0, allowed() / PART
    for weight in weights:
        size = _bytes(anatomy, weight)
        if part and held + size > most:
            yield part
            part, held = [], 0
        part.append(weight)
        held += size
    if part:
        yield part


def _gather(
    model: nn.Module,
    anatomy: Anatomy,
    inputs: Iterable[Any],
    sums: dict[str, _MomentSums],
    **options: Any,
) -> None:
    """One pass over the inputs: what these weights read."""
    readers: dict[str, list[str]] = {}  # operation -> the weights that read its result
    for operation in anatomy.program:
        entry = ops.find(operation)
        names = entry.names if isinstance(entry, Weighted) else Weighted.names
        source, weight = operation.arguments.get(names[0]), operation.tensors.get(names[1])
        if weight in sums and isinstance(source, Ref):
            readers.setdefault(anatomy.program[source.position].name, []).append(weight)

    streams = {weight: anatomy.program[at].name for weight, at in normed_adds(anatomy.program).items()}
    streams = {weight: name for weight, name in streams.items() if weight in sums}
    waiting: dict[str, Tensor] = {}  # what such a weight has read, until the stream after it is known
    mask: list[Tensor | None] = [None]

    def begin(batch: Any) -> None:
        mask[0] = mask_of(model, batch)

    def add(weight: str, x: Tensor, known: Tensor | None = None) -> None:
        plain = sums[weight].repeat == 1 and not sums[weight].spatial
        sums[weight].add(x, without_padding(known, mask[0], x.shape[:-1]) if plain else known)

    def observer(name: str, result: Tensor) -> None:
        for weight in [one for one in waiting if streams[one] == name]:
            add(weight, waiting.pop(weight), counts(result))
        for weight in readers.get(name, ()):
            if weight in streams and sums[weight].repeat == 1:
                waiting[weight] = result.clone()
            else:
                add(weight, result)

    wanted = {*readers, *streams.values()}
    how: dict[str, Any] = {"trace": anatomy.trace, "begin": begin, **options}
    observe(model, anatomy.program, inputs, wanted, observer, **how)


def _finished(
    model: nn.Module,
    anatomy: Anatomy,
    readers: Mapping[str, tuple[int, int, int]],
    sums: dict[str, _MomentSums],
    known: Mapping[str, InputStatistics],
) -> Iterator[tuple[str, InputStatistics]]:
    """What was gathered, one weight after another; sums are let go on the way."""
    for weight in list(sums):
        one = sums.pop(weight)
        if one.count and not one.weight > 0:
            raise InvalidExample("calibration must have tokens, got padding only: give texts")
        if one.count and not bool(one.square.isfinite().all()):
            raise InvalidExample(
                f"calibration must give finite signals, got NaN or infinite ones at {weight}: leave such "
                "inputs out"
            )
        if one.count == 1 and weight not in known:
            raise InvalidExample(
                "calibration must have at least two tokens or inputs, got one: give a few hundred"
            )
        if one.count:
            yield weight, _combined(weight, readers[weight][0], one, model, anatomy, known.get(weight))


def _readers(model: nn.Module, anatomy: Anatomy, units: Sequence[Unit]) -> dict[str, tuple[int, int, int]]:
    """Weights whose inputs can be measured -> (their reading dimension, places per channel, dimensions of
    space).
    """
    found = {}
    for unit in units:
        for part in unit.places:
            owner, _, attribute = part.tensor.rpartition(".")
            if part.role != "in" or attribute != "weight" or not part.even:
                continue
            module = model.get_submodule(owner)
            space = spatial(module)
            if space:
                found[part.tensor] = (part.dim, 1, space)
            elif space == 0 or len(anatomy.shapes[part.tensor]) == 2:
                repeat = part.each if unit.channels == 1 else 1
                found[part.tensor] = (part.dim, repeat, 0)
    return found


def apart(covariance: Tensor, samples: int = 3) -> Tensor:
    """The prior for correlations: none, unless one signal is a multiple of another.

    Of 1,536 neurons and 2,048 tokens, the others seem to determine each neuron.

    Args:
        samples: that they were measured on; with two samples any signals are multiples.

    Example:
        >>> import torch
        >>> apart(torch.tensor([[1.0, 0.5, -2.0], [0.5, 1.0, -1.0], [-2.0, -1.0, 4.0]])).tolist()
        [[1.0, 0.0, -2.0], [0.0, 1.0, 0.0], [-2.0, 0.0, 4.0]]
    """
    if samples < 3:
        return covariance.diagonal().diag()
    scale = covariance.diagonal().clamp(min=0).sqrt()
    same = covariance.abs() >= (1 - TWIN) * torch.outer(scale, scale)
    first = same.int().argmax(dim=1)  # of those that are one signal
    signed = torch.where(covariance.gather(1, first[:, None])[:, 0] < 0, -scale, scale)
    together = torch.outer(signed, signed)
    return torch.where(first[:, None] == first, together, torch.zeros((), dtype=together.dtype))


def unexplained_share(covariance: Tensor, samples: int) -> float:
    """The share of a signal that others do not explain, averaged over signals and corrected for the number of
    samples; a half if they are too few to estimate it.

    Example:
        >>> import torch
        >>> unexplained_share(torch.tensor([[1.0, 0.8], [0.8, 1.0]]), 10_000)  # 1 - 0.8²
        0.36...
    """
    alive = covariance.diagonal() > 0
    alike = covariance[alive][:, alive].double()
    free = samples - len(alike)
    if free < SPARE * samples or not len(alike):
        return 0.5
    scale = alike.diagonal().sqrt()
    alike = alike / torch.outer(scale, scale) + TWIN * torch.eye(len(alike), dtype=alike.dtype)
    left = 1 / torch.linalg.inv(alike).diagonal()
    return min(MOST, float(left.clamp(0, 1).mean()) * samples / free)


def _combined(
    weight: str, dim: int, one: _MomentSums, model: nn.Module, anatomy: Anatomy, known: InputStatistics | None
) -> InputStatistics:
    tensor = dict(model.named_parameters())[weight]
    bn, bias = bn_and_bias(anatomy).get(weight, ("", ""))
    if known is not None:
        bn, bias = known.bn, known.bias
    mean, covariance = one.mean, one.covariance
    before, left = (mean, covariance), 0.5
    if known is None:
        before = mean, apart(covariance, one.informative)
        left = unexplained_share(covariance, one.informative)
    elif known.repeat == one.repeat and known.mean.shape == mean.shape:
        before = known.mean, known.covariance
    trust = one.counted * (1 - left)  # what was known before counts as one sample per channel
    trust /= trust + len(mean) * left
    mean = trust * mean + (1 - trust) * before[0]
    covariance = trust * covariance + (1 - trust) * before[1]
    taps = one.decay ** tap_distances(tuple(tensor.shape[2:]) if one.spatial else one.repeat)
    blank = torch.zeros(0)
    statistics = InputStatistics(
        weight, dim, stored(mean), stored(covariance), stored(taps), blank, one.repeat, bn, bias
    )
    variance = stored(variances(statistics.laid(tensor.cpu()), statistics.taps, statistics.covariance))
    norm = centred(anatomy, weight)
    if norm and one.repeat == 1:
        common = dict(model.named_parameters())[norm].detach().double().cpu()
        covariance = stored(statistics.covariance + torch.outer(common, common))
        statistics = replace(statistics, covariance=covariance)
    statistics = replace(statistics, variance=variance)
    if not statistics.is_finite:
        raise InvalidExample(f"calibration: the inputs of {weight} must be within float32, got larger ones")
    return statistics
