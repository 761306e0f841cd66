"""How large a network is: the only arithmetic of parameters, MACs and ΔP."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from hope.structure.removed import Removal, Removed

if TYPE_CHECKING:
    from hope.structure.anatomy import Anatomy
    from hope.structure.units import IndexMap

Counts: TypeAlias = NDArray[np.int64]
USUAL = 4  # bytes of an entry


@dataclass(frozen=True)
class Size:
    """How large a network is."""

    neurons: int  # neurons in compressible layers
    parameters: int  # `nn.Parameter` entries (buffers are not parameters)
    macs: int  # multiply-accumulates of convolutions and linear layers on the example


def sizes(anatomy: Anatomy, steps: Sequence[Removal]) -> Counts:
    """(steps + 1, 3) neurons, parameters and MACs before the first and after each step, all at once."""
    return _tally(anatomy, *_account(anatomy, steps), len(steps) + 1)


def stored(anatomy: Anatomy, steps: Sequence[Removal]) -> Counts:
    """(steps + 1,) bytes of all parameters and buffers, each in its own type."""
    lost, evicted_at, biased = _account(anatomy, steps)
    total = np.zeros(len(steps) + 1, dtype=np.int64)
    bits = _entry_bits(anatomy, steps)
    for tensor, now in _dimensions(anatomy, lost, evicted_at, len(total)):
        if tensor in bits:
            entry, scale, group = bits[tensor]
            columns = now[..., 1:].prod(axis=-1)
            scales = np.where(columns > 0, np.ceil(columns / np.where(group > 0, group, np.inf)), 0)
            each = (
                np.ceil(now[..., 0] * columns * entry / 8)
                + now[..., 0] * np.maximum(scales, columns > 0) * scale / 8
            )
            total += each.astype(np.int64)
        else:
            total += now.prod(axis=-1) * anatomy.itemsize.get(tensor, USUAL)
    for name, entries in _biases(anatomy, lost, evicted_at, biased, len(total)):
        total += entries * anatomy.itemsize.get(anatomy.block(name).tensors[0], USUAL)
    return total


def _entry_bits(anatomy: Anatomy, steps: Sequence[Removal]) -> dict[str, NDArray[np.float64]]:
    """Tensor -> (3, steps + 1) bits of an entry and of a scale, and how many entries of a row share one, of
    tensors for which actions change them.
    """
    found: dict[str, NDArray[np.float64]] = {}
    for t, step in enumerate(steps, start=1):
        scales = step.scale_bits(anatomy)
        for tensor, bits in step.entry_bits(anatomy).items():
            if tensor not in found:
                found[tensor] = np.zeros((3, len(steps) + 1))
                found[tensor][0] = 8.0 * anatomy.itemsize.get(tensor, USUAL)
            found[tensor][:, t:] = np.array([bits, *scales.get(tensor, (0, 0))])[:, None]
    return found


def widths(anatomy: Anatomy, steps: Sequence[Removal]) -> Iterator[tuple[str, Counts]]:
    """Tensors, and (steps + 1, dimensions) their shape before the first and after each step, zeros once they
    are removed. Of a tensor that is never cut: (1, dimensions).
    """
    lost, evicted_at, _ = _account(anatomy, steps)
    return _dimensions(anatomy, lost, evicted_at, len(steps) + 1)


def _account(
    anatomy: Anatomy, steps: Sequence[Removal]
) -> tuple[dict[str, Counts], dict[str, int], list[str]]:
    """What `_tally` wants to know of steps."""
    length = len(steps) + 1
    lost: dict[str, Counts] = {}
    evicted_at: dict[str, int] = {}
    biased: list[str] = []
    account = Removed(anatomy)
    for t, step in enumerate(steps, start=1):
        if step.evicts is not None:
            evicted_at[step.evicts] = t
            biased += [step.evicts] if step.bias is not None else []
        for name, neurons in account.take(step).items():
            lost.setdefault(name, np.zeros(length, dtype=np.int64))[t] += len(neurons)
    return {name: counts.cumsum() for name, counts in lost.items()}, evicted_at, biased


def size_after(
    anatomy: Anatomy, removed: Mapping[str, int], evicted: Collection[str], biases: Collection[str]
) -> Size:
    """The size after a cut: see `Anatomy.size`."""
    biased = [name for name in biases if name in evicted]
    lost = _lost(anatomy, removed, evicted)
    return Size(*map(int, _tally(anatomy, lost, dict.fromkeys(evicted, 0), biased, 1)[0]))


def released_by(anatomy: Anatomy, block: str) -> int:
    """The parameters that evicting one block saves; only what it touches is counted."""
    lost = _lost(anatomy, {}, [block])
    touched = {part.tensor for layer in anatomy.layers if layer.name in lost for part in layer.places}
    touched |= _ends(anatomy, {block: 0}, 1).keys()
    shapes = {name: anatomy.shapes[name] for name in touched if name in anatomy.parameters}
    now = _dimensions(replace(anatomy, shapes=shapes), lost, {block: 0}, 1)
    return sum(prod(shapes[name]) - int(left.prod()) for name, left in now)


def widths_after(
    anatomy: Anatomy, removed: Mapping[str, int], evicted: Collection[str] = ()
) -> Iterator[tuple[str, Counts]]:
    """Tensors, and (1, dimensions) their shape after a cut: see `Anatomy.size`."""
    return _dimensions(anatomy, _lost(anatomy, removed, evicted), dict.fromkeys(evicted, 0), 1)


def _lost(anatomy: Anatomy, removed: Mapping[str, int], evicted: Collection[str]) -> dict[str, Counts]:
    """Unit -> how many of its neurons a cut takes, those that go along with blocks among them."""
    account = Removed(anatomy)
    for name, count in removed.items():
        account.of(name).update(range(count))
    for name in evicted:
        account.evict(name)
    return {name: np.array([len(neurons)]) for name, neurons in account.neurons.items()}


def _tally(
    anatomy: Anatomy,
    lost: Mapping[str, Counts],
    evicted_at: Mapping[str, int],
    biased: Sequence[str],
    length: int,
) -> Counts:
    """Neurons, parameters and MACs at so many moments.

    A tensor's size is the product of its dimensions, each shrunk by what its units have lost by then.

    Args:
        lost: unit -> how many of its neurons are removed at each moment.
        evicted_at: block -> the moment from which on it is evicted.
        biased: those of the evicted blocks that leave a bias; it is removed with a block around them.
    """
    table = np.zeros((length, 3), dtype=np.int64)
    alive_until = _ends(anatomy, evicted_at, length)
    for layer in anatomy.layers:
        left = layer.neurons - lost.get(layer.name, np.zeros(length, dtype=np.int64))
        left[max(alive_until.get(weight, length) for weight in layer.written) :] = 0
        table[:, 0] += left
    for tensor, now in _dimensions(anatomy, lost, evicted_at, length):
        counted, positions = tensor in anatomy.parameters, anatomy.positions.get(tensor, 0)
        if counted or positions:
            size = now.prod(axis=-1)
            table[:, 1] += size if counted else 0
            table[:, 2] += size * positions
    for _, entries in _biases(anatomy, lost, evicted_at, biased, length):
        table[:, 1] += entries
    return table


def _dimensions(
    anatomy: Anatomy, lost: Mapping[str, Counts], evicted_at: Mapping[str, int], length: int
) -> Iterator[tuple[str, Counts]]:
    """Tensors, and (moments, dimensions) their shape at so many moments, zeros once they are removed; of one
    that is never cut (1, dimensions). The arguments are those of `_tally`.
    """
    alive_until = _ends(anatomy, evicted_at, length)
    shrink: dict[tuple[str, int], Counts] = {}
    for layer in anatomy.layers:
        if layer.name in lost:
            for part in layer.places:
                key = (part.tensor, part.dim)
                shrink[key] = shrink.get(key, 0) + lost[layer.name] * part.each
    touched = {tensor for tensor, _ in shrink} | alive_until.keys()
    for tensor, shape in anatomy.shapes.items():
        now = np.tile(np.array(shape, dtype=np.int64), (length if tensor in touched else 1, 1))
        for dim in range(len(shape)):
            if (tensor, dim) in shrink:
                now[:, dim] -= shrink[tensor, dim]
        if tensor in alive_until:
            now = now if shape else np.ones((length, 1), dtype=np.int64)  # a number has no dimension to lose
            now[alive_until[tensor] :] = 0
        yield tensor, now


def _ends(anatomy: Anatomy, evicted_at: Mapping[str, int], length: int) -> dict[str, int]:
    """Tensor -> the moment from which on it is removed with a block: with the last of its names."""
    blocks = [(anatomy.block(name), t) for name, t in evicted_at.items()]
    found: dict[str, int] = {}
    for tensor in anatomy.shapes if blocks else ():
        times = [min((t for b, t in blocks if b.removes(n)), default=length) for n in anatomy.names(tensor)]
        if max(times) < length:
            found[tensor] = max(times)
    return found


def _biases(
    anatomy: Anatomy,
    lost: Mapping[str, Counts],
    evicted_at: Mapping[str, int],
    biased: Sequence[str],
    length: int,
) -> Iterator[tuple[str, Counts]]:
    """Evicted blocks that leave a bias, and its entries at so many moments: it is removed with a block
    around it, and channels of its stream take theirs along. The arguments are those of `_tally`.
    """
    for name in biased:
        block = anatomy.block(name)
        others = ((anatomy.block(other), t) for other, t in evicted_at.items() if other != name)
        around = (t for other, t in others if other.removes(block.place))
        entries = np.zeros(length, dtype=np.int64)
        here = slice(evicted_at[name], min(around, default=length))
        entries[here] = block.channels
        for stream, part in anatomy.ends(block).items():
            if stream in lost:
                entries[here] -= lost[stream][here] * part.each
        yield name, entries


class ParameterSavings:
    """ΔP of removing a neuron and of evicting a block, in the network as it is at some moment of a run.

    A neuron releases its incoming and outgoing weights over all readers, its bias, and the four BN numbers.
    Evicting a residual branch releases the weights of its internal layers and all its BN numbers; its last
    weight is not counted (paper, Section "Block Eviction"). A block without a skip releases all it holds, and
    all that is removed with its neurons.
    """

    def __init__(self, anatomy: Anatomy) -> None:
        self._anatomy = anatomy
        self._shapes = {name: list(shape) for name, shape in anatomy.shapes.items()}
        self._removed = Removed(anatomy)
        self._inside: dict[str, list[str]] = {}

    def unit(self, name: str) -> int:
        """ΔP of removing one neuron of a unit."""
        tied = self._removed.tied(name)
        return released(self._shapes, [part for one in tied for part in self._anatomy.unit(one).places])

    def block(self, name: str) -> int:
        """ΔP of evicting a block."""
        block = self._anatomy.block(name)
        if not block.residual:
            after = self._without(name)
            return sum(prod(self._shapes[tensor]) - prod(shape) for tensor, shape in after.items() if shape)
        internal = {
            part.tensor
            for layer in block.layers
            for part in self._anatomy.unit(layer).places
            if part.role in ("out", "along")
        }
        norms = {name.rpartition(".")[0] for name in block.tensors if name.endswith(".running_var")}
        weights = [n for n in internal if n.rpartition(".")[0] not in norms and n in block.tensors]
        numbers = sum(4 * self._shapes[f"{norm}.running_var"][0] for norm in norms)
        return sum(prod(self._shapes[name]) for name in weights) + numbers

    def take(self, action: Removal) -> None:
        """Shrink what an action shrinks."""
        self._shapes.update(self._after(action))
        self._removed.take(action)

    def _after(self, action: Removal) -> dict[str, list[int]]:
        """The shapes that an action changes, as they are after it."""
        return (
            self._cut(self._removed.removed_by(action))
            if action.evicts is None
            else self._without(action.evicts)
        )

    def _without(self, name: str) -> dict[str, list[int]]:
        """The shapes that a block's eviction changes, as they are after it."""
        after = self._cut(self._removed.removed_with(name))
        after.update((tensor, [0] * len(self._shapes[tensor])) for tensor in self._held(name))
        return after

    def _cut(self, removed: Mapping[str, Collection[int]]) -> dict[str, list[int]]:
        after: dict[str, list[int]] = {}
        for name, neurons in removed.items():
            for part in self._anatomy.unit(name).places:
                if self._shapes[part.tensor][part.dim]:
                    shape = after.setdefault(part.tensor, list(self._shapes[part.tensor]))
                    shape[part.dim] -= part.each * len(neurons)
        return after

    def _held(self, name: str) -> list[str]:
        """The tensors of a block's modules."""
        if name not in self._inside:
            block = self._anatomy.block(name)
            self._inside[name] = [tensor for tensor in self._shapes if block.removes(tensor)]
        return self._inside[name]


def released(
    shapes: Mapping[str, Sequence[int]], places: Sequence[IndexMap], uses: Mapping[str, int] | None = None
) -> int:
    """Entries that vanish with one neuron; the crossing of a row and a column counts once.

    Args:
        uses: tensor -> how often an entry counts, for MACs; by default each counts once.
    """
    kept: dict[str, list[int]] = {}
    for part in places:
        if shapes[part.tensor][part.dim]:  # what was removed with a block is not released again
            kept.setdefault(part.tensor, list(shapes[part.tensor]))[part.dim] -= part.each
    often = dict.fromkeys(kept, 1) if uses is None else uses
    return sum(often.get(name, 0) * (prod(shapes[name]) - prod(shape)) for name, shape in kept.items())
