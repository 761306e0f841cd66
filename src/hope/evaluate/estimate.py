"""How long a run takes and how much memory it needs, estimated before it starts: the work of each phase is
counted, and the speed of this machine is measured on one forward pass and one matrix product.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hope._util import progress
from hope._util.batching import batching_of, flatten, unflatten
from hope._util.calls import Example, as_call, evaluation
from hope._util.memory import allowed, size_of
from hope.evaluate.eviction_search import LEVELS, TRIED
from hope.evaluate.fidelity import EVALUATIONS, images_for
from hope.methods import Method
from hope.methods.absorb import MOST
from hope.rewrite.normal_equations import LEAST, ROWS
from hope.schedule.budget import unit_of
from hope.statistics.dreams import PASSES, STEPS, enough, smaller
from hope.statistics.measured import KINDS
from hope.structure.anatomy import Anatomy

SIDE = 512  # of the matrices whose product is timed
BATCH = 8  # copies of the example in the forward pass that is timed
BACKWARD = 3  # a forward and a backward pass, in forward passes
PATH = 60  # matrix products of its width that the path of a layer takes as long as
SOLVED = 4  # matrices of a layer's size that its normal equations hold
LIVE = 6  # of the largest activations, how many a refit holds
MEASURED = 40.0  # seconds that times of operators take, once
BASE = 400_000_000  # bytes of Python and torch


@dataclass(frozen=True)
class Estimate:
    """What a run needs.

    Attributes:
        seconds: of each of its phases, in their order.
        memory: bytes at its peak.
    """

    seconds: dict[str, float]
    memory: int

    def __str__(self) -> str:
        time_taken = progress.duration(sum(self.seconds.values()))
        return f"about {time_taken} and {self.memory / 1e9:.1f} GB of memory"


def estimate(
    model: nn.Module,
    example: Example | None,
    anatomy: Anatomy,
    method: Method,
    *,
    evict: bool = True,
    unit: str = "params",
    bits: int = 0,
    evaluations: int = 0,
) -> Estimate:
    """What a run needs.

    Args:
        unit: of its budget.
        bits: how many numbers of bits weights may be rounded to.
        evaluations: how many of its networks are compared with the original afterwards.
    """
    count, made, batch = _inputs(method, model, example)
    forward = _forward(model, batch)
    probe = images_for(anatomy.size().macs) * forward
    product = _seconds(lambda: torch.mm(*[torch.ones(SIDE, SIDE, dtype=torch.float64)] * 2)) / SIDE**3
    weights, widths = [*_weights(anatomy, example)], [layer.neurons for layer in anatomy.layers]
    passes = count * forward
    moments = sum(places * count * inputs**2 for places, inputs, _, _ in weights)
    seconds = {progress.MEASURE: (made + 5) * passes + product * moments}
    if unit_of(unit).timed:
        seconds[progress.TIME] = MEASURED
    if bits:
        seconds[progress.ROUND] = product * sum(wide**2 * (wide + out) for _, _, wide, out in weights)
    if method.expects_sensitivity(anatomy, inputs=count > 0):
        seconds[progress.SENSITIVITY] = len(widths) * probe
    seconds[progress.RANK] = product * PATH * sum(width**3 for width in widths)
    if evict and method.evictions == "searched" and any(block.residual for block in anatomy.blocks):
        seconds[progress.BLOCKS] = BACKWARD * STEPS * probe + len(LEVELS) * (2 + TRIED) * probe
    refit = 0.0
    if count and method.may_refit:
        few = min(count, MOST)
        fitted = (
            (min(places * few, max(LEAST, ROWS * wide)) + wide) * wide * (wide + out)
            for places, _, wide, out in weights
        )
        refit = 4 * few * forward + product / 2 * sum(fitted)
    if unit_of(unit).searched:
        seconds[progress.SEARCH] = EVALUATIONS / 2 * (refit + probe)
    if evaluations:
        seconds |= {progress.REFIT: refit, progress.FIDELITY: evaluations * probe + (evaluations - 1) * refit}
    return Estimate(seconds, _memory(model, anatomy, count, refit > 0, example))


def _memory(model: nn.Module, anatomy: Anatomy, count: int, refits: bool, example: Example | None) -> int:
    results = (prod(one.output) for one in anatomy.program if one.inputs)
    held = 4 * LIVE * max(results, default=0) // _rows(example) * (min(count, MOST) if refits else 32)
    if refits:
        held += max(8 * SOLVED * wide**2 for _, _, wide, _ in _weights(anatomy, example))
    moments = sum(8 * KINDS * layer.neurons**2 for layer in anatomy.layers)
    return round(BASE + 3 * size_of(model) + min(moments, allowed()) + held)


def _weights(anatomy: Anatomy, example: Example | None) -> Iterator[tuple[int, int, int, int]]:
    """Of every product with a weight: places per input, channels it reads, unknowns and outputs."""
    for one in anatomy.program:
        shape = anatomy.shapes.get(one.tensors.get("weight", ""), ())
        if len(shape) > 1 and one.output:
            rows = max(1, one.output[0])
            yield max(1, prod(one.output) // shape[0] // rows), shape[1], prod(shape[1:]), shape[0]


def _inputs(method: Method, model: nn.Module, example: Example | None) -> tuple[int, int, Example | None]:
    """How many inputs statistics are measured on, how many passes it takes to make them, and one of them."""
    given, small = getattr(method, "calibration", None), smaller(model, example)
    if isinstance(given, Sequence) and not isinstance(given, str):
        return sum(map(_rows, given)), 0, example
    if isinstance(given, str):
        values, _ = flatten(small, batching_of(model, example))
        kind = "patterns" if given == "patterns" else "dream"
        return enough(values, kind), 1 if kind == "patterns" else BACKWARD * PASSES // 2, small
    return (0, 0, small) if given is None else (MOST, 0, example)


def _rows(example: Example | None) -> int:
    tensors = [leaf for leaf in tree_leaves(as_call(example)) if isinstance(leaf, Tensor) and leaf.ndim > 1]
    return max([1, *(len(one) for one in tensors[:1])])


def _forward(model: nn.Module, example: Example | None) -> float:
    """Seconds of a forward pass per input, in a batch of a few."""
    values, form = flatten(example, batching_of(model, example))
    many = [_repeated(v) if isinstance(v, Tensor) and v.ndim > 1 else v for v in values]
    args, kwargs = unflatten(many, form)
    with evaluation(model), torch.no_grad():
        return _seconds(lambda: model(*args, **kwargs)) / (BATCH * _rows(example))


def _repeated(rows: Tensor) -> Tensor:
    return rows.repeat(BATCH, *[1] * (rows.ndim - 1))


def _seconds(work: Callable[[], object]) -> float:
    """Of the second time: the first one may allocate and compile."""
    work()
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
