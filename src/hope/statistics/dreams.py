"""Inputs made without data: patterns, optimised towards what a network's BN statistics describe.

Patterns (`patterns.py`) get the scale that the first BN expects, and can then be changed by a few gradient
steps, until what reaches the BNs has the means and deviations that they remember from training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from math import prod
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from hope import ops
from hope._util.batching import Nesting, as_example, batching_of, flatten, unflatten
from hope._util.calls import Example, as_call, evaluation
from hope._util.progress import DREAM, bar
from hope.errors import HopeError, UnknownMethod
from hope.ops.norm import bn_of, is_bn
from hope.ops.uses import first_convolution
from hope.statistics.bn_inputs import bn_distance, keeps_statistics, observing
from hope.statistics.patterns import again, noise
from hope.statistics.sample import sampled, token_input
from hope.trace.interpreter import Interpreter
from hope.trace.program import Operation, Program, Ref
from hope.trace.trace import Trace

Batch: TypeAlias = Callable[[Tensor], Example]  # images -> a batch as the model takes it

STEPS = 10  # from noise to what the BNs describe: more improves fidelity little
NEAR = 0.025  # squared deviations from what the BNs remember: batches of real images are .02 to .035 away
PASSES = 20  # steps at most
PIXELS = {"patterns": 3 << 19, "dream": 1 << 17}  # to make up, in so many inputs:
INPUTS = {"patterns": (32, 256), "dream": (32, 128)}
RATE = 0.1  # of the input's deviation, per step
SIDE = 128  # of images: larger ones are halved where the network takes it; moments lose nothing by it


def synthetic_inputs(  # noqa: PLR0913
    model: nn.Module,
    example: Example | None,
    program: Program,
    *,
    count: int,
    steps: int = STEPS,
    seed: int = 0,
    near: float = 0.0,
    leaves: bool = False,
    trace: Trace | None = None,
    progress: bool | None = False,
) -> tuple[list[Any], Nesting]:
    """So many inputs for a network, in the example's shape (large images smaller, see `smaller`): values with
    one input per row, and how they are nested (see `unflatten`).

    Args:
        near: stop when they are as near to what the BNs remember.
        leaves: images start as dead leaves instead of noise.
        trace: the network's captured graphs.
    """
    batching = batching_of(model, example)
    values, form = flatten(smaller(model, example), batching)
    args, kwargs = as_call(example)
    first = len(flatten(args, batching)[0])
    rows = _rows(model, program)
    entries = [one.name for one in program if one.operator == "input"][:first]
    entries += [*sorted(kwargs), *[""] * len(values)]
    made = [
        noise(value, count, seed + 1000 * k, leaves, rows.get(entry, 0))
        for k, (value, entry) in enumerate(zip(values, entries, strict=False))
    ]
    images = [k for k, v in enumerate(made) if isinstance(v, Tensor) and v.is_floating_point() and v.ndim > 1]
    if len(images) == 1:
        (k,) = images

        def batch(x: Tensor) -> Example:
            return as_example(_fitted(model, [*made[:k], x, *made[k + 1 :]]), form)

        with bar(DREAM, steps, progress) as show:
            trace = trace or Trace()
            made[k] = _normalised(model, example, made[k], batch, trace) if program else made[k]
            made[k] = _dreamed(model, made[k], batch, steps, show, near, trace)
    return _fitted(model, made), form


def dream(
    model: nn.Module,
    example: Example | None = None,
    *,
    count: int | None = None,
    steps: int = PASSES,
    seed: int = 0,
    progress: bool | None = None,
) -> list[tuple[Any, ...] | dict[str, Any]]:
    """Batches of synthetic inputs that match the network's BN statistics. Images start as dead leaves
    (overlapping shapes), other inputs as noise. A language model of transformers, given an example with
    `input_ids`, generates texts of the example's length.

    Use them wherever inputs are needed. For `hope.refit` and `calibration=` pass the words "dream" and
    "patterns" instead: then HOPE treats the inputs as synthetic. Images larger than 128 pixels a side are
    halved if the network accepts that.

    Args:
        count: their number; by default 128 small images, fewer large ones, at least 32.
        steps: the largest number of forward and backward passes; optimisation stops when the inputs are as
            close to the statistics as real batches are. 0 gives patterns at the scale of the first BN.
        seed: of the random numbers.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
        >>> [batch[0].shape for batch in hope.dream(net, torch.zeros(1, 3, 8, 8), count=40, steps=2)]
        [torch.Size([32, 3, 8, 8]), torch.Size([8, 3, 8, 8])]
    """
    for name, number, least in (("count", count, 1), ("steps", steps, 0)):
        if number is not None and (not isinstance(number, int) or number < least):
            raise UnknownMethod(
                f"{name} must be a whole number from {least}, got {number!r}: leave it out for the default"
            )
    return dreamed(model, example, Trace(), count=count, steps=steps, seed=seed, progress=progress)


def dreamed(
    model: nn.Module,
    example: Example | None,
    trace: Trace,
    *,
    count: int | None = None,
    steps: int = PASSES,
    seed: int = 0,
    progress: bool | None = None,
) -> list[tuple[Any, ...] | dict[str, Any]]:
    """What `dream` returns, with the network's captured graphs."""
    if count is None:
        values, _ = flatten(smaller(model, example), batching_of(model, example))
        count = enough(values, "dream" if steps else "patterns")
    written = token_input(model, as_call(example)[1]) if steps else None
    if written is not None:
        given = as_call(example)[1]
        texts = sampled(model, count, given[written].shape[1], seed, progress=progress)
        made, form = flatten({name: again(value, count) for name, value in given.items()} | {written: texts})
    else:
        program = trace.captured(model, example, progress=progress).program
        how: dict[str, Any] = {"steps": steps, "seed": seed, "near": NEAR, "leaves": True}
        made, form = synthetic_inputs(
            model, example, program, count=count, trace=trace, progress=progress, **how
        )
    parts = (slice(start, start + 32) for start in range(0, count, 32))
    return [
        as_example([v[some] if isinstance(v, Tensor) and v.ndim else v for v in made], form) for some in parts
    ]


def enough(values: Sequence[Any], kind: str) -> int:
    """How many inputs are synthesised: as many as have so many places together.

    >>> [enough([torch.zeros(1, 3, side, side)], "patterns") for side in (8, 112, 1000)]
    [256, 128, 32]
    """
    places = max((prod(v.shape[2:]) for v in values if isinstance(v, Tensor)), default=1)
    least, most = INPUTS[kind]
    return int(min(most, max(least, -(-(PIXELS[kind] // max(1, places)) // 32) * 32)))


def smaller(model: nn.Module, example: Example | None) -> Example | None:
    """An example with images of at most `SIDE` a side, halved as often as it takes, if the network runs on
    it and answers in the same shape; else the example.
    """
    values, form = flatten(example, batching_of(model, example))
    images = [v for v in values if isinstance(v, Tensor) and v.is_floating_point() and v.ndim == 4]
    if len(images) != 1 or min(images[0].shape[2:]) <= SIDE:
        return example
    size = [int(s) for s in images[0].shape[2:]]
    while min(size) > SIDE:
        size = [s // 2 for s in size]
    little = images[0].new_zeros((*images[0].shape[:2], *size))

    def shapes(image: Tensor) -> list[tuple[int, ...]]:
        args, kwargs = unflatten([image if v is images[0] else v for v in values], form)
        with evaluation(model), torch.no_grad():
            out = model(*args, **kwargs)
        return [tuple(leaf.shape) for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]

    try:
        if shapes(little) != shapes(images[0]):
            return example
    except Exception:  # whatever its forward raises: then it takes one size only
        return example
    return as_example([little if v is images[0] else v for v in values], form)


def _rows(model: nn.Module, program: Program) -> dict[str, int]:
    """Input -> the rows of the table that it selects, such as the words of a vocabulary."""
    shapes = {name: parameter.shape for name, parameter in model.named_parameters(remove_duplicate=False)}
    found = {}
    for operation in program:
        indices, table = operation.arguments.get("indices"), operation.tensors.get("weight")
        if operation.operator == "embedding" and table in shapes and isinstance(indices, Ref):
            source = program[indices.position]
            found.update({source.name: int(shapes[table][0])} if source.operator == "input" else {})
    return found


def _fitted(model: nn.Module, values: Sequence[Any]) -> list[Any]:
    """On the model's device, floating numbers in its type."""
    like = next((p for p in model.parameters() if p.is_floating_point()), torch.zeros(()))
    return [
        v.to(like.device, like.dtype if v.is_floating_point() else v.dtype) if isinstance(v, Tensor) else v
        for v in values
    ]


def _run(model: nn.Module, batch: Example) -> Any:
    args, kwargs = as_call(batch)
    return model(*args, **kwargs)


def entry(model: nn.Module, program: Program) -> tuple[Operation, Tensor, nn.Module] | None:
    """The convolution that reads the input, its weight, and the BN after it, whose statistics imply the scale
    of inputs; None if there are none.
    """
    first, forms = first_convolution(program), ops.forms(program)
    bns = {form.inputs[0]: bn_of(form.operation) for form in reversed(forms) if is_bn(form)}
    if first is None or first.position not in bns:
        return None
    bn = model.get_submodule(bns[first.position])
    weight = dict(model.named_parameters()).get(first.tensors["weight"])
    return (first, weight, bn) if keeps_statistics(bn) and weight is not None else None


def _normalised(model: nn.Module, example: Example | None, x: Tensor, batch: Batch, trace: Trace) -> Tensor:
    """Give images the deviation and mean that the first BN's statistics imply."""
    names, count = as_call(example)[1], len(tree_leaves(as_call(example)))
    calls = [as_call(batch(x))]
    if len(tree_leaves(calls[0])) != count:  # inputs are entries of lists: few at a time are captured sooner
        calls = [as_call(batch(x[k : k + 32])) for k in range(0, max(1, len(x) - 31), 32)]
        example = calls[0][1] or calls[0][0]
    captured = trace.captured(model, example)
    known = entry(model, captured.program)
    if known is None:
        return x
    first, weight, bn = known
    mean, variance = bn.running_mean, bn.running_var
    assert isinstance(mean, Tensor)
    assert isinstance(variance, Tensor)
    reached = []
    for args, kwargs in calls:  # a convolution of an input takes any number, of any size
        call = tree_leaves((args, {name: kwargs[name] for name in names}))
        run = Interpreter(model, [captured], [call])
        run.keep([first.position])
        reached.append(run.get(first.position)[0].double().cpu())
    found = torch.cat(reached).transpose(0, 1).flatten(1).var(dim=1)
    wanted = variance.double().cpu()
    moving = (wanted > 1e-6 * wanted.mean()) & (found > 0)
    if not moving.any():
        return x
    scale = float(torch.sqrt((wanted[moving] / found[moving]).median()))
    sums = weight.detach().double().cpu().flatten(2).sum(dim=2)
    if sums.shape[1] != x.shape[1]:
        return x * scale
    offset = torch.linalg.lstsq(sums, mean.double().cpu()[:, None], driver="gelsd").solution[:, 0]
    offset = offset.clamp(-3 * scale, 3 * scale).to(x.dtype)
    shifted: Tensor = x * scale + offset.reshape(-1, *(1 for _ in x.shape[2:]))
    return shifted if bool(shifted.isfinite().all()) else x


def _dreamed(
    model: nn.Module,
    x: Tensor,
    batch: Batch,
    steps: int,
    show: Callable[[float], None],
    near: float,
    trace: Trace,
) -> Tensor:
    """A few steps of gradient descent towards the BNs' means and deviations.

    Where it may end near them, half of the steps see the first half of the BNs only: that is less work, and
    the deep ones then start from what they would be given.
    """
    scale = float(x.std())
    if not 0 < scale < math.inf:
        return x
    x = x.clone().requires_grad_(True)
    optimizer = torch.optim.Adam([x], lr=RATE * scale)
    frozen = [(p, p.requires_grad) for p in model.parameters()]
    try:
        for p, _ in frozen:
            p.requires_grad_(False)
        with evaluation(model), torch.inference_mode(False), torch.enable_grad():
            early, total = steps // 2 if near else 0, 0
            for done in range(steps):
                show(done)
                terms = _first_half(model, x, batch, total, trace) if total and done < early else None
                if terms is None:
                    early = min(early, done) if total else early  # all of them from here on
                    with observing(model) as observed:
                        _run(model, batch(x))
                    terms = [bn_distance(bn, z) for bn, z in observed]
                if not terms:
                    break
                distance = torch.stack(terms).mean()
                if float(distance.detach()) <= near:
                    if not total or done >= early:
                        break
                    early = done  # the first half is there
                total = total or len(terms)
                if not distance.requires_grad:
                    break
                optimizer.zero_grad()
                distance.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    finally:
        for p, needed in frozen:
            p.requires_grad_(needed)
    return x.detach()


def _first_half(model: nn.Module, x: Tensor, batch: Batch, total: int, trace: Trace) -> list[Tensor] | None:
    """How far the first half of the BNs are away, run no further than that; None if the captured graph does
    not have all of them.
    """
    try:
        program = trace.captured(model, batch(x.detach())).program
    except HopeError:  # it runs as a whole
        return None
    norms = [(form.inputs[0], bn_of(form.operation)) for form in ops.forms(program) if is_bn(form)]
    found = [(reads, model.get_submodule(bn)) for reads, bn in norms]
    found = [(reads, bn) for reads, bn in found if keeps_statistics(bn)]
    if len(found) != total:
        return None
    first, terms = found[: max(1, total // 2)], list[Tensor]()

    def observe(position: int) -> None:
        terms.extend(bn_distance(bn, run.value(reads)[0]) for reads, bn in first if reads == position)

    run = trace.interpreter(model, [batch(x)], after=observe, in_place=True)
    run.run_in_order(max(reads for reads, _ in first))
    return terms if any(term.requires_grad for term in terms) else None
