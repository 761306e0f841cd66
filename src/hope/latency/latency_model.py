"""A network's time, predicted from its widths.

T = s·(operators with weights, looked up) + a·(operations) + b·(entries that those without weights write) +
c·(entries laid out anew around convolutions which leave the engine's blocks) + d. Each term follows
the widths of the network after a prefix of steps; the factors, none below 0, are fitted to a few whole
networks that are measured: only they show effects between operators (caches, dispatch, fusion).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from hope.actions import Action
from hope.latency.surface import LatencyCurve
from hope.latency.timed_operators import TimedNetwork, WeightlessOps
from hope.structure.anatomy import Anatomy
from hope.structure.removed import Removal
from hope.structure.sizes import Counts, ParameterSavings, widths, widths_after

Floats = NDArray[np.float64]
Cut = tuple[Mapping[str, int], Sequence[str]]  # neurons removed from units, and evicted blocks
LEAST = 0.02  # of its even share of the time, what a neuron counts for at least


class LatencyModel:
    """Predicted times of one network (see `schedule.cost_model.CostModel`).

    Attributes:
        multiples: of what widths may have to be multiples, to stay in the engine's blocks or to fill them.
    """

    resource = "latency"

    def __init__(self, anatomy: Anatomy, layout: TimedNetwork, curves: Sequence[LatencyCurve]) -> None:
        self.anatomy, self.layout, self.curves = anatomy, layout, curves
        self.factors: Floats = np.array([1.0, 0.0, 0.0, 0.0, 0.0])
        self.multiples = tuple(sorted({one for curve in curves for one in curve.multiples} | {1}))
        self._needed = {curve.site.weight for curve in curves}
        self._needed |= {tensor for rest in layout.rests for tensor, _ in rest.sources}

    def counts(self, steps: Sequence[Action]) -> Counts:
        """(steps + 1,) nanoseconds before the first and after each step."""
        evicted_at = {step.evicts: t for t, step in enumerate(steps, start=1) if step.evicts is not None}
        return self._predicted(self._terms(widths(self.anatomy, steps), evicted_at, len(steps) + 1))

    def after(self, removed: Mapping[str, int], evicted: Collection[str] = ()) -> int:
        """Nanoseconds after a cut."""
        return int(self._predicted(self._after(removed, evicted))[0])

    def savings(self) -> LatencySavings:
        """What steps save, from the original on."""
        return LatencySavings(self)

    def to_list(self) -> list[int]:
        """Numbers that identify a latency model: a run that was ranked by another one is not resumed."""
        halves = {unit.name: unit.neurons // 2 for unit in self.anatomy.layers}
        return [self.after({}), self.after(halves)]

    def fit(self, cuts: Sequence[Cut], measured: Sequence[float]) -> None:
        """Find the factors from whole networks: what was removed from each, and its nanoseconds."""
        terms = np.concatenate([self._after(*cut) for cut in cuts])
        self.factors = nonnegative(terms, np.array(measured))

    def _after(self, removed: Mapping[str, int], evicted: Collection[str] = ()) -> Floats:
        return self._terms(widths_after(self.anatomy, removed, evicted), dict.fromkeys(evicted, 0), 1)

    def _predicted(self, terms: Floats) -> Counts:
        return np.rint(terms @ self.factors).astype(np.int64)

    def _terms(
        self, shapes: Iterable[tuple[str, Counts]], evicted_at: Mapping[str, int], length: int
    ) -> Floats:
        """(moments, 5) what the factors stand before."""
        now = {tensor: some.astype(np.float64) for tensor, some in shapes if tensor in self._needed}
        terms = np.zeros((length, 5))
        terms[:, 4] = 1
        for curve in self.curves:
            reads, writes = _reads(curve, now)
            terms[:, 0] += curve(reads, writes)
            terms[:, 1] += (reads > 0) & (writes > 0)
            terms[:, 3] += _reordered(curve, now)
        for rest in self.layout.rests:
            share = np.broadcast_to(_share(rest, now, self.anatomy), (length,)).copy()
            share[min((evicted_at[name] for name in rest.blocks if name in evicted_at), default=length) :] = 0
            terms[:, 1] += rest.count * (share > 0)
            terms[:, 2] += rest.entries * share
        return terms


def _reads(curve: LatencyCurve, now: Mapping[str, Floats]) -> tuple[Floats, Floats]:
    site = curve.site
    return now[site.weight][..., site.reads], now[site.weight][..., site.writes]


def _reordered(curve: LatencyCurve, now: Mapping[str, Floats]) -> Floats:
    """Entries that are laid out anew around a convolution, if it leaves the engine's blocks."""
    reads, writes = _reads(curve, now)
    before, after = curve.site.places
    return curve.strays(reads) * (reads * before + writes * after)


def _share(rest: WeightlessOps, now: Mapping[str, Floats], anatomy: Anatomy) -> Floats:
    """How much is left of what operations read."""
    if not rest.sources:
        return np.ones(1)
    whole = sum(anatomy.shapes[tensor][dim] for tensor, dim in rest.sources)
    left = sum((now[tensor][..., dim] for tensor, dim in rest.sources), np.zeros(1))
    return left / max(1, whole)


class LatencySavings(ParameterSavings):
    """Time that steps would save in the network as it is at some moment of a run (see
    `schedule.cost_model.Savings`).

    A neuron's saving is that of half of its unit's neurons, divided by their number: times that go in steps
    are smoothed, and noise of the measurements with them.
    """

    def __init__(self, model: LatencyModel) -> None:
        super().__init__(model.anatomy)
        self._model = model
        self._at: dict[str, list[LatencyCurve]] = {}
        for curve in model.curves:
            self._at.setdefault(curve.site.weight, []).append(curve)
        self._fed_by: dict[str, list[WeightlessOps]] = {}
        for rest in model.layout.rests:
            for tensor in {tensor for tensor, _ in rest.sources}:
                self._fed_by.setdefault(tensor, []).append(rest)
        self._units: dict[str, set[str]] = {}
        for unit in model.anatomy.layers:
            for part in unit.places:
                self._units.setdefault(part.tensor, set()).add(unit.name)
        self._known: dict[str, float] = {}
        self._blocks: dict[str, tuple[float, set[str]]] = {}  # a block's saving, and the tensors it hangs on

    def unit(self, name: str) -> float:  # type: ignore[override]
        """Nanoseconds that a neuron's removal saves."""
        if name not in self._known:
            self._known[name] = self._neuron(name)
        return self._known[name]

    def _neuron(self, name: str) -> float:
        tied = self._removed.tied(name)
        left = self._anatomy.unit(name).neurons - len(self._removed.of(name))
        some = max(1, left // 2)
        after: dict[str, list[int]] = {}
        for part in (part for one in tied for part in self._anatomy.unit(one).places):
            if self._shapes[part.tensor][part.dim]:
                shape = after.setdefault(part.tensor, list(self._shapes[part.tensor]))
                shape[part.dim] = max(0, shape[part.dim] - part.each * some)
        whole = sum(self._time(tensor, self._shapes) for tensor in after)
        return max(self._saved(after) / some, LEAST * whole / max(1, left), 1e-3)

    def block(self, name: str) -> float:  # type: ignore[override]
        """Nanoseconds that a block's eviction saves."""
        if name not in self._blocks:
            after = self._without(name)
            self._blocks[name] = self._whole(name, after), set(after)
        return self._blocks[name][0]

    def _whole(self, name: str, after: Mapping[str, Sequence[int]]) -> float:
        saved, factors = self._saved(after), self._model.factors
        for rest in self._model.layout.rests:  # removed with its modules, whatever wrote its input
            if name in rest.blocks and not set(rest.blocks) & set(self._removed.evicted):
                saved += factors[1] * rest.count + factors[2] * rest.entries * self._share(rest, self._shapes)
        return max(saved, 1e-3)

    def take(self, action: Removal) -> set[str]:  # type: ignore[override]
        """Note an action; returns the units of which a neuron saves something else from now on."""
        touched = self._after(action).keys()
        changed = {name for tensor in touched for name in self._units.get(tensor, ())}
        super().take(action)
        stale = action.evicts is not None
        self._blocks = {k: v for k, v in self._blocks.items() if not stale and not v[1] & touched}
        for name in changed:
            self._known.pop(name, None)
        return changed

    def _saved(self, after: Mapping[str, Sequence[int]]) -> float:
        """What it saves that some tensors get other shapes."""
        shapes = {**{tensor: self._shapes[tensor] for tensor in after}, **after}
        saved = sum(self._time(t, self._shapes) - self._time(t, shapes) for t in after)
        rests = {id(rest): rest for tensor in after for rest in self._fed_by.get(tensor, ())}
        for rest in rests.values():
            now = self._share(rest, self._shapes)
            lost = now - self._share(rest, {**self._shapes, **after})
            saved += self._model.factors[2] * rest.entries * lost
        evicted = sum(
            len(self._at.get(t, ())) for t, shape in after.items() if not all(shape) and all(self._shapes[t])
        )
        return float(saved + self._model.factors[1] * evicted)

    def _time(self, tensor: str, shapes: Mapping[str, Sequence[int]]) -> float:
        shape = shapes[tensor]
        some = (
            curve.smooth(*_numbers(shape[curve.site.reads], shape[curve.site.writes]))
            for curve in self._at.get(tensor, ())
        )
        return float(self._model.factors[0]) * sum(float(one) for one in some)

    def _share(self, rest: WeightlessOps, shapes: Mapping[str, Sequence[int]]) -> float:
        whole = sum(self._anatomy.shapes[tensor][dim] for tensor, dim in rest.sources)
        return (
            sum(shapes[tensor][dim] for tensor, dim in rest.sources) / max(1, whole) if rest.sources else 1.0
        )


def _numbers(*values: int) -> tuple[Floats, ...]:
    return tuple(np.array(float(value)) for value in values)


def nonnegative(terms: Floats, measured: Floats) -> Floats:
    """The factors, none below 0, that come closest to what was measured, relative to it.

    >>> nonnegative(np.array([[1.0, 1], [2, 1], [4, 1]]), np.array([5.0, 8, 14])).round(6).tolist()
    [3.0, 2.0]
    """
    rows = terms / measured[:, None]
    best, least = np.zeros(terms.shape[1]), np.inf
    columns = [k for k in range(terms.shape[1]) if rows[:, k].any()]
    for size in range(1, len(columns) + 1):
        for some in map(list, combinations(columns, size)):
            found = np.linalg.lstsq(rows[:, some], np.ones(len(rows)), rcond=None)[0]
            error = float(np.square(rows[:, some] @ found - 1).sum())
            if (found >= 0).all() and error < least - 1e-12:
                best, least = np.zeros(terms.shape[1]), error
                best[some] = found
    return best
