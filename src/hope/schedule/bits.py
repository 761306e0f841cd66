"""Bits and neurons: what rounding each weight costs, and a run that ranks both by cost per byte."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

import msgspec
import torch
from torch import nn

from hope import ops
from hope._util.progress import ROUND, bar
from hope.actions import Action, Quantise
from hope.actions.quantise import moments_of
from hope.errors import InfeasibleBudget
from hope.geometry.rounding import ColumnMoments
from hope.methods.absorb import metric
from hope.methods.method import NetworkStatistics
from hope.ops.reading import sources
from hope.ops.weight import is_weight
from hope.reasons import LISTED
from hope.schedule.bit_options import BitOptions
from hope.statistics.input_statistics import InputStatistics, bn_and_bias, statistics_of, stored
from hope.statistics.measured import measured_statistics, plain_readers
from hope.statistics.propagated import Propagated
from hope.structure.anatomy import Anatomy
from hope.structure.removed import Removed
from hope.structure.sizes import USUAL
from hope.trace.program import module_of

MOST = 0.999  # of a signal that rounding may take away, where costs are logarithms


def with_readers(
    known: NetworkStatistics, weights: Mapping[str, int], model: nn.Module, **options: Any
) -> NetworkStatistics:
    """The same statistics with those of all these weights, where they are not known yet: propagated, or
    without BN measured on the inputs that were collected.

    Args:
        options: of `measured_statistics`.
    """
    found: dict[str, InputStatistics] = {}
    lacking = {weight: dim for weight, dim in weights.items() if weight not in known.input_statistics}
    if lacking and known.surrogate is not None:
        found = statistics_of(known.anatomy, known.surrogate, lacking)
        found |= _single(known, known.surrogate, lacking.keys() - found.keys())
    rest = lacking.keys() - found.keys()
    if rest and known.inputs and not known.anatomy.eps:
        rows = plain_readers(model, known.anatomy, rest)
        found |= measured_statistics(model, known.anatomy, known.inputs, {}, readers=rows, **options)
    return replace(known, input_statistics={**known.input_statistics, **found})


def _single(
    known: NetworkStatistics, surrogate: Propagated, weights: Collection[str]
) -> dict[str, InputStatistics]:
    """Statistics of depthwise weights: the mean of the one channel that each output reads, and the BN."""
    after, found = bn_and_bias(known.anatomy), {}
    none = torch.zeros(1, 1, dtype=torch.float64)
    for form in ops.forms(known.anatomy.program):
        if not is_weight(form) or form.operation.tensors["weight"] not in weights:
            continue
        weight, signal = form.operation.tensors["weight"], surrogate.signals[form.inputs[0]]
        outputs, inputs = known.anatomy.shapes[weight][:2]
        if signal is None or inputs != 1 or outputs % len(signal.mean):
            continue
        mean = stored(signal.mean[sources(len(signal.mean), outputs)])
        bn, bias = after[weight]
        found[weight] = InputStatistics(weight, 1, mean, none, none, torch.zeros_like(mean), 1, bn, bias)
    return found


def readers(anatomy: Anatomy, exclude: Sequence[str] = ()) -> dict[str, int]:
    """Weights that can be rounded (see `structure.roundable`) and are not excluded -> the dimension that
    reads.
    """
    return {
        weight: 1
        for weight, reason in anatomy.roundable.items()
        if reason is None and not any(fnmatchcase(module_of(weight), pattern) for pattern in exclude)
    }


def check_readers(weights: Collection[str]) -> None:
    """Refuse a run of roundings alone where no weight can be rounded."""
    if not weights:
        raise InfeasibleBudget(f"bits must have a weight to round, got none: {LISTED}")


def groups_note(anatomy: Anatomy, weights: Collection[str], group: int) -> tuple[str, ...]:
    """How many weights have one scale per output because a group does not divide their inputs."""
    uneven = [name for name in weights if group and math.prod(anatomy.shapes[name][1:]) % group]
    words = (
        f"{len(uneven)} of {len(weights)} weights have one scale per output: group={group} does not divide"
    )
    return (f"{words} their inputs",) if uneven else ()


@dataclass(frozen=True)
class Rounding:
    """What rounding one weight to fewer and fewer bits costs.

    Attributes:
        steps: its actions, each with its cost after the one before.
    """

    steps: tuple[Quantise, ...]


def roundings(
    known: NetworkStatistics,
    weights: Collection[str],
    bits: BitOptions,
    share: Callable[[str], float],
    *,
    progress: bool | None = None,
) -> list[Rounding]:
    """What rounding each weight costs, in the unit of absorption: −log of the share of its outputs' signal
    that is left, times the branch's share of its stream.

    Args:
        weights: to be rounded.
        bits: how they may be.
        share: block -> the share of its branch in the stream.
    """
    found = []
    with bar(ROUND, len(weights), progress) as show:
        for done, weight in enumerate(sorted(weights)):
            show(done)
            home = known.anatomy.home(weight)
            part = share(home) if home is not None else 1.0
            columns = math.prod(known.anatomy.shapes[weight][1:])
            group = 0 if bits.group and columns % bits.group else bits.group
            steps, before = [], 0.0
            for count in bits.counts:
                action = Quantise(weight, count, group, bits.rounding)
                lost = lost_by(action, known)
                cost = max(before, -part * math.log(1 - min(lost, MOST)))
                saved = _saved(known.anatomy, weight, count)
                steps.append(
                    msgspec.structs.replace(action, cost=cost - before, release=saved, left=1 - lost)
                )
                before = cost
            found.append(Rounding(tuple(steps)))
    return found


def lost_by(action: Quantise, known: NetworkStatistics) -> float:
    """The share of a weight's output signal that an action takes away, in the original network; without input
    statistics, of its squared entries.
    """
    tensor = known.numbers[action.name]
    flat = tensor.detach().cpu().double().flatten(1)
    statistics = known.input_statistics.get(action.name)
    moments = moments_of(statistics) if statistics is not None else None
    if statistics is None or moments is None or len(moments.diagonal) != flat.shape[1]:
        change = action.rounded(flat, ColumnMoments.identity(flat.shape[1])) - flat
        return float(change.square().sum() / flat.square().sum().clamp(min=1e-300))
    change = action.rounded(flat, moments) - flat
    return float((moments.error(change) * metric(statistics, known)).sum())


def _saved(anatomy: Anatomy, weight: str, bits: int) -> int:
    """Bytes that a weight of so many bits has less than the original, without its scales."""
    shape = anatomy.shapes[weight]
    return max(1, round(math.prod(shape) * (anatomy.itemsize.get(weight, USUAL) - bits / 8)))


def interleaved(
    anatomy: Anatomy, steps: Sequence[Action], stops: Sequence[int], roundings: Sequence[Rounding]
) -> tuple[list[Action], tuple[int, ...]]:
    """A run of removals and of roundings in one order, by cost per byte that is saved at that moment.

    Removals keep their order. What the run of removals costs per parameter is read off its lower convex hull,
    so that a cheap removal after an expensive one is not kept waiting for it.

    Args:
        steps: removals, in order.
        stops: after how many of them the run may be ended; empty if after any.

    Returns:
        All steps, and after how many of them the run may be ended; empty if after any.
    """
    now = _Bytes(anatomy)
    ends = sorted({*stops, 0}) if stops else range(len(steps) + 1)
    parts = [list(steps[a:b]) for a, b in pairwise(ends)]
    slopes = _hull(parts)
    heap = [(_ratio(one.steps[0], now), n, 0) for n, one in enumerate(roundings) if one.steps]
    heapq.heapify(heap)
    found: list[Action] = []
    allowed = [0]
    at = 0
    while heap or at < len(parts):
        while heap:  # what a rounding saves falls as its weight is cut
            ratio, n, k = heap[0]
            fresh = _ratio(roundings[n].steps[k], now)
            if fresh <= ratio * (1 + 1e-9):
                break
            heapq.heapreplace(heap, (fresh, n, k))
        removal = slopes[at] / now.per_parameter(parts[at]) if at < len(parts) else math.inf
        if heap and heap[0][0] <= removal:
            _, n, k = heapq.heappop(heap)
            taken: Sequence[Action] = [roundings[n].steps[k]]
            if k + 1 < len(roundings[n].steps):
                heapq.heappush(heap, (0.0, n, k + 1))
        elif at < len(parts):
            taken = parts[at]
            at += 1
        else:
            break
        for step in taken:
            found.append(step)
            now.take(step)
        allowed.append(len(found))
    return found, tuple(allowed) if stops else ()


def rounded_first(
    steps: Sequence[Action], stops: Sequence[int], roundings: Sequence[Rounding]
) -> tuple[list[Action], tuple[int, ...]]:
    """All roundings and then the removals, for runtimes that are faster once every weight is rounded; the run
    may be ended before the first and after the last of the roundings (see `interleaved`).
    """
    first: list[Action] = [step for one in roundings for step in one.steps]
    return [*first, *steps], (0, *(len(first) + stop for stop in {0, *(stops or range(len(steps) + 1))}))


def _ratio(step: Quantise, now: _Bytes) -> float:
    saved = now.saved(step)
    return step.cost / saved if saved > 0 else math.inf


def _hull(parts: Sequence[Sequence[Action]]) -> list[float]:
    """Of each part of a run, its slope on the lower convex hull of cost over released parameters."""
    hull: list[tuple[float, float, int]] = []  # cost, parameters, parts
    for part in parts:
        cost, release, count = sum(s.cost for s in part), float(sum(max(1, s.release) for s in part)), 1
        while hull and hull[-1][0] * release >= cost * hull[-1][1]:
            before = hull.pop()
            cost, release, count = cost + before[0], release + before[1], count + before[2]
        hull.append((cost, release, count))
    return [cost / release for cost, release, count in hull for _ in range(count)]


class _Bytes:
    """What is stored of each tensor at some moment of a run."""

    def __init__(self, anatomy: Anatomy) -> None:
        self._anatomy, self._removed = anatomy, Removed(anatomy)
        self._shapes = {name: list(shape) for name, shape in anatomy.shapes.items()}
        self._bits = {name: 8.0 * anatomy.itemsize.get(name, USUAL) for name in anatomy.shapes}

    def saved(self, step: Quantise) -> float:
        """Bytes that a rounding saves now."""
        return math.prod(self._shapes[step.name]) * (self._bits[step.name] - self._entry(step)) / 8

    def _entry(self, step: Action) -> float:
        """Bits of an entry of the weight that it rounds, with its part of a scale."""
        (scale, group), columns = step.scale_bits(self._anatomy)[step.name], self._shapes[step.name][1:]
        return step.entry_bits(self._anatomy)[step.name] + scale / max(1, group or math.prod(columns))

    def per_parameter(self, steps: Sequence[Action]) -> float:
        """Bytes of a parameter in the tensors that steps cut, on average."""
        names = [name for step in steps[:1] for name in self._touched(step)]
        entries = sum(math.prod(self._shapes[name]) for name in names)
        stored = sum(math.prod(self._shapes[name]) * self._bits[name] / 8 for name in names)
        return stored / entries if entries else float(USUAL)

    def _touched(self, step: Action) -> list[str]:
        if step.evicts is not None:
            return [name for name in self._anatomy.block(step.evicts).tensors if name in self._shapes]
        return [part.tensor for part in self._anatomy.unit(step.name).places]

    def take(self, step: Action) -> None:
        """Note a step."""
        if step.weight_grid is not None:
            self._bits[step.name] = self._entry(step)
        for name, lost in self._removed.take(step).items():
            for part in self._anatomy.unit(name).places:
                shape = self._shapes[part.tensor]
                shape[part.dim] = max(0, shape[part.dim] - len(lost) * part.index.shape[1])
        if step.evicts is not None:
            block = self._anatomy.block(step.evicts)
            for name in self._shapes:
                if block.removes(name):
                    self._shapes[name] = [0]
