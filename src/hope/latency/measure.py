"""From a network to its clock: measure what is not known yet, and fit the rest to whole networks."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hope._util.calls import Example, as_call, duplicate
from hope._util.progress import busy
from hope.anatomy.anatomy import Anatomy
from hope.anatomy.steps import Prune
from hope.latency.clock import Clock
from hope.latency.mesh import ALIGNED, FRACTIONS, Curve
from hope.latency.operators import movable, read_layout
from hope.latency.runtime import Runtime, block_of, check_device
from hope.latency.stopwatch import Stopwatch
from hope.latency.table import Table
from hope.surgery.apply import operate

ODD = (1.0, 0.5, 0.25)  # of the widths, where networks of uneven widths are measured


def settled(runtime: Runtime, example: Example | None) -> Runtime:
    """A runtime with nothing left open."""
    leaves = (leaf for leaf in pytree.tree_leaves(as_call(example)) if isinstance(leaf, Tensor) and leaf.ndim)
    first = next(leaves, None)
    return runtime.settled(len(first) if first is not None else 1)


def clock_of(
    model: nn.Module,
    example: Example | None,
    anatomy: Anatomy,
    runtime: Runtime,
    *,
    progress: bool | None = None,
) -> Clock:
    """The clock of a network: whole networks first, so that what cannot be run is told first.

    Args:
        runtime: with nothing left open.
    """
    check_device(model)
    assert runtime.batch is not None
    table, stopwatch = Table(runtime), Stopwatch(runtime)
    cuts = _cuts(anatomy, block_of(runtime))

    def networks() -> list[float]:
        with busy(f"measuring {anatomy.model} at {len(cuts)} widths, once: {runtime}", progress):
            return stopwatch.networks([narrow(model, anatomy, removed) for removed in cuts], example)

    measured = table.networks(_digest(anatomy, runtime, cuts), networks)
    layout, moves = read_layout(anatomy, runtime.batch, runtime.engine), set(movable(anatomy))
    curves = [Curve(site, moves, block_of(runtime)) for site in layout.sites]
    points = [(curve.site.operator, width) for curve in curves for width in curve.points()]
    table.fill(points, stopwatch.operators, progress=progress)
    for curve in curves:
        curve.settle(table.look)
    clock = Clock(anatomy, layout, curves)
    clock.fit(cuts, measured)
    return clock


def _cuts(anatomy: Anatomy, block: int) -> list[Mapping[str, int]]:
    """What to remove for the networks that the clock is fitted to: all layers at a few shares of their
    widths, and where uneven widths are slower, at uneven ones.
    """
    cuts = [
        {u.name: u.neurons - _kept(u.neurons, share, block) for u in anatomy.layers} for share in FRACTIONS
    ]
    if block > 1:
        uneven = (
            {u.name: u.neurons - max(1, _kept(u.neurons, share, block) - 1) for u in anatomy.layers}
            for share in ODD
        )
        cuts += uneven
    return [cut for n, cut in enumerate(cuts) if cut not in cuts[:n]]


def _kept(neurons: int, share: float, block: int) -> int:
    """So many neurons; multiples where these are faster."""
    step = ALIGNED if block > 1 and neurons >= 2 * ALIGNED and share < 1 else 1
    return max(step, round(neurons * share / step) * step)


def narrow(model: nn.Module, anatomy: Anatomy, removed: Mapping[str, int]) -> nn.Module:
    """The network without the last neurons of its layers; what it computes does not matter."""
    small = duplicate(model)
    steps = [
        Prune(name, tuple(range(anatomy.unit(name).neurons - count, anatomy.unit(name).neurons)))
        for name, count in removed.items()
        if count
    ]
    operate(small, anatomy, steps, arithmetic=False)
    return small.eval()


def _digest(anatomy: Anatomy, runtime: Runtime, cuts: Sequence[Mapping[str, int]]) -> str:
    """What tells networks apart that take different times."""
    told = [(one.operator, one.inputs, one.shapes, sorted(one.tensors.items())) for one in anatomy.program]
    text = repr(
        (
            anatomy.model,
            told,
            sorted(anatomy.shapes.items()),
            runtime.batch,
            [sorted(c.items()) for c in cuts],
        )
    )
    return hashlib.sha256(text.encode()).hexdigest()[:16]
