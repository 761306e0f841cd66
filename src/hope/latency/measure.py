"""Build the latency model of a network: measure what is missing, and fit the rest to whole networks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from torch import nn

from hope._util.calls import Example, as_call, duplicate, tensors_in
from hope._util.progress import TIME, busy
from hope.actions import Action, Evict, Prune
from hope.errors import UnknownMethod
from hope.latency.cache import Table
from hope.latency.integers import FASTER, IntegerLatency
from hope.latency.latency_model import Cut, LatencyModel
from hope.latency.runtime import Runtime, block_of, check_device, runtime_of
from hope.latency.stopwatch import Stopwatch
from hope.latency.surface import ALIGNED, FRACTIONS, LatencyCurve
from hope.latency.timed_operators import movable, read_layout
from hope.rewrite.apply import reshape
from hope.rewrite.rounded import as_integers
from hope.schedule.budget import Budget
from hope.statistics.input_scale import input_range
from hope.structure.anatomy import Anatomy

ODD = (1.0, 0.5, 0.25)  # shares of the widths at which networks with uneven widths are measured


def runtime_for(budget: Budget, given: Runtime | str | None, example: Example | None) -> Runtime | None:
    """The resolved runtime of a latency budget; None for other budgets."""
    if budget.kind.timed:
        return resolve_runtime(runtime_of(given), example)
    if given is not None:
        raise UnknownMethod(
            f"the budget must be a latency where runtime is given, got {budget}: use latency=, or omit it"
        )
    return None


def resolve_runtime(runtime: Runtime, example: Example | None) -> Runtime:
    """A runtime with all values resolved."""
    return runtime.resolved(next((len(one) for one in tensors_in(as_call(example)) if one.ndim), 1))


def latency_model(
    model: nn.Module,
    example: Example | None,
    anatomy: Anatomy,
    runtime: Runtime,
    *,
    integers: bool = False,
    inputs: Sequence[Example] = (),
    progress: bool | None = None,
) -> LatencyModel | IntegerLatency:
    """The latency model of a network. Whole networks are measured first, to report early what cannot run.

    Args:
        integers: whether weights may be rounded for integer kernels; they are if the network is faster then.
        inputs: real ones, on which ranges of activations would be measured.
    """
    check_device(model)
    assert runtime.batch is not None
    table, stopwatch = Table(runtime), Stopwatch(runtime)
    cuts = _cuts(anatomy, block_of(runtime))

    def networks() -> list[float]:
        with busy(TIME, progress):
            return stopwatch.networks([narrow(model, anatomy, *cut) for cut in cuts], example)

    measured = table.networks(_digest(anatomy, runtime, cuts), len(cuts), networks)
    layout, moves = read_layout(anatomy, runtime.batch, runtime.engine), set(movable(anatomy))
    curves = [LatencyCurve(site, moves, block_of(runtime)) for site in layout.sites]
    points = [(curve.site.operator, width) for curve in curves for width in curve.points()]
    table.fill(points, stopwatch.operators, progress=progress)
    for curve in curves:
        curve.set_times(table.lookup)
    found = LatencyModel(anatomy, layout, curves)
    found.fit(cuts, measured)
    if not integers:
        return found

    def rounded() -> list[float]:
        with busy(f"measuring {anatomy.model} with integers, once: {runtime}", progress):
            models = [narrow(model, anatomy, *cut) for cut in cuts]
            entry = None if inputs else input_range(model, example, anatomy.trace)
            some = [as_integers(small, anatomy, entry, inputs[:1]) for small in models]
            return stopwatch.networks(models, example, some)

    key = f"{_digest(anatomy, runtime, cuts)}-integers-{len(inputs[:1])}"
    whole = table.networks(key, len(cuts), rounded)
    if whole[0] > FASTER * measured[0]:
        return found
    small = LatencyModel(anatomy, layout, curves)
    small.fit(cuts, whole)
    return IntegerLatency(found, small)


def _cuts(anatomy: Anatomy, block: int) -> list[Cut]:
    """What to remove for the networks to which the latency model is fitted: all layers at a few shares of
    their widths, also uneven ones if these are slower, and all residual blocks.
    """
    kept = [{u.name: _kept(u.neurons, share, block) for u in anatomy.layers} for share in FRACTIONS]
    if block > 1:
        kept += [{name: max(1, n - 1) for name, n in kept[FRACTIONS.index(share)].items()} for share in ODD]
    removed = [{u.name: u.neurons - one[u.name] for u in anatomy.layers} for one in kept]
    cuts: list[Cut] = [(one, ()) for n, one in enumerate(removed) if one not in removed[:n]]
    outer = tuple(one.name for one in anatomy.blocks if one.residual and one.inside is None)
    return [*cuts, ({}, outer)] if outer else cuts


def _kept(neurons: int, share: float, block: int) -> int:
    """So many neurons; a multiple if that is faster."""
    step = ALIGNED if block > 1 and neurons >= 2 * ALIGNED and share < 1 else 1
    return max(step, round(neurons * share / step) * step)


def narrow(
    model: nn.Module, anatomy: Anatomy, removed: Mapping[str, int], evicted: Sequence[str] = ()
) -> nn.Module:
    """The network without the last neurons of its layers; its outputs do not matter."""
    small = duplicate(model)
    steps: list[Action] = [
        Prune(name, tuple(range(anatomy.unit(name).neurons - count, anatomy.unit(name).neurons)))
        for name, count in removed.items()
        if count
    ]
    reshape(small, anatomy, [*steps, *map(Evict, evicted)])
    return small.eval()


def _digest(anatomy: Anatomy, runtime: Runtime, cuts: Sequence[Cut]) -> str:
    """A key that distinguishes networks with different times."""
    operations = [
        (one.operator, one.inputs, one.shapes, sorted(one.tensors.items())) for one in anatomy.program
    ]
    done = [(sorted(removed.items()), list(evicted)) for removed, evicted in cuts]
    text = repr((anatomy.model, operations, sorted(anatomy.shapes.items()), runtime.batch, done))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
