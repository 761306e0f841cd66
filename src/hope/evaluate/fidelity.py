"""A judge without data: how much of a network's answer is left, on inputs made of noise.

Both networks see the same probes (`probes.py`). What is compared is the answers' direction, what they have in
common over all inputs removed: it does not matter by how much an answer is scaled, and a constant answer
counts for nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from hope._util.calls import Example, as_call, evaluation
from hope.errors import InvalidExample
from hope.statistics.dreams import probes
from hope.statistics.token_weights import mask_of
from hope.trace.program import Program
from hope.trace.trace import Trace

IMAGES = 32
GRID, REFINEMENTS = 20, 6  # looks at a run's fidelity
LOOKS = GRID + REFINEMENTS
LEAST_IMAGES, WORK = 8, 6.4e10  # fewer images for large networks: so many multiply-accumulates a look


def images_for(macs: int) -> int:
    """How many probes a network of this size is looked at with.

    >>> images_for(40_000_000), images_for(4_100_000_000)
    (32, 15)
    """
    return int(min(IMAGES, max(LEAST_IMAGES, WORK / max(1, macs))))


class Fidelity:
    """Compares networks with one original on the same probes.

    Args:
        model: the original.
        example: an input it runs on; its shape is what the probes take.
        program: the original's order of operations, for the scale of its input.
        count: how many probes.
        progress: show how the probes are made; None shows it on a terminal.
        inputs: batches to look at instead of probes, the first `count` inputs of them.
    """

    def __init__(
        self,
        model: nn.Module,
        example: Example | None,
        program: Program = (),
        count: int = IMAGES,
        *,
        progress: bool | None = False,
        inputs: Sequence[Example] = (),
    ) -> None:
        call: tuple[tuple[Any, ...], dict[str, Any]]
        if not inputs:
            call = probes(model, example, program, count=count, progress=progress)
        else:
            call = _joined(inputs, count)
        self._args, self._kwargs = call
        self._mask = mask_of(model, self._args or self._kwargs)
        self._answers = _centred(self._run(model))

    def _run(self, model: nn.Module) -> Tensor:
        with evaluation(model), torch.no_grad():
            answers = _first_tensor(model(*self._args, **self._kwargs)).double().cpu()
        if self._mask is not None and answers.shape[:-1] == self._mask.shape:
            return answers[self._mask.bool().cpu()]  # what is said of padding is no answer
        return answers

    def __call__(self, model: nn.Module) -> float:
        """Mean cosine between the original's answers and this network's, at most 1."""
        answers, known = _centred(self._run(model)), self._answers
        if answers.shape != known.shape:
            raise InvalidExample(
                f"the two networks answer differently: {tuple(known.shape)} and {tuple(answers.shape)}; "
                "compare a network with its own compressed form"
            )
        bottom = answers.norm(dim=1) * known.norm(dim=1)
        cosine = (answers * known).sum(dim=1) / bottom.clamp(min=1e-300)
        cosine[(answers == known).all(dim=1)] = 1.0
        return float(cosine.nan_to_num(0.0).mean())


def _joined(batches: Sequence[Example], count: int) -> Any:
    """The first inputs, as one call: of as many batches as that takes and as are alike otherwise. Tensors
    that are not as long as the batch stay whole.
    """
    first, form = tree_flatten(as_call(batches[0]))
    size = _rows(first)
    for batch in batches[1:]:
        more, other = tree_flatten(as_call(batch))
        rows = _rows(more)
        if other != form or not rows or not 0 < size < count:
            break
        pairs = [*zip(first, more, strict=True)]
        if not all(_alike(a, b, size, rows) for a, b in pairs):
            break
        first = [torch.cat([a, b]) if _long(a, size) else a for a, b in pairs]
        size += rows
    return tree_unflatten([v[:count] if _long(v, size) else v for v in first], form)


def _rows(leaves: Sequence[Any]) -> int:
    """How many inputs a batch has; 0 if that is not told."""
    return next((len(v) for v in leaves if isinstance(v, Tensor) and v.ndim > 1), 0)


def _long(value: Any, size: int) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and 0 < size == len(value)


def _alike(a: Any, b: Any, size: int, rows: int) -> bool:
    """Whether two batches' entries can be one after another, or are one and the same."""
    if _long(a, size) and _long(b, rows):
        return (a.dtype, a.device, a.shape[1:]) == (b.dtype, b.device, b.shape[1:])
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b) if (a.dtype, a.device, a.shape) == (b.dtype, b.device, b.shape) else False
    return type(a) is type(b) and not isinstance(a, Tensor) and bool(a == b)


def _first_tensor(answer: Any) -> Tensor:
    if isinstance(answer, Tensor):
        return answer
    parts: Any = answer.values() if isinstance(answer, Mapping) else answer
    for part in parts:
        if isinstance(part, Tensor) and part.is_floating_point() and part.ndim:  # a loss has none
            return part
    raise InvalidExample("the model returns no tensor that could be compared")


def _centred(answers: Tensor) -> Tensor:
    """Answers without what all classes and all inputs have in common; every token of a text has its own."""
    answers = answers if answers.ndim > 1 else answers[None]
    flat = answers if answers.ndim == 3 else answers.flatten(1)
    if flat.shape[-1] > 1:
        flat = flat - flat.mean(dim=-1, keepdim=True)
    flat = flat - flat.mean(dim=0) if len(flat) > 1 else flat
    return flat.flatten(0, -2)


def fidelity(
    original: nn.Module,
    compressed: nn.Module,
    example: Example | None = None,
    *,
    count: int = IMAGES,
) -> float:
    """How much of a network's answers its compressed form keeps, without data: 1 is all of it.

    Both run on the same noise, which takes the example's shape (of large images, half of it where the network
    takes that) and is brought to what the original's BN statistics describe. The figure ranks compressed
    forms of one network much as their accuracy does; it is no accuracy. The same networks give the same
    figure.

    Args:
        original: the network before.
        compressed: what was made of it.
        example: an input.
        count: how many inputs of noise.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)
        ... ).eval()
        >>> hope.fidelity(net, net, torch.zeros(1, 3, 8, 8))
        1.0
    """
    program = Trace().captured(original, example, progress=None).program
    return Fidelity(original, example, program, count)(compressed)


def longest_above(
    least: float, total: int, after: Callable[[int], float], show: Callable[[float], None]
) -> int:
    """The longest prefix of a run that never dips below a fidelity, on a grid of steps that is then refined.

    Args:
        total: how many steps the run has.
        after: steps -> the fidelity after them.
        show: is told how many looks were taken.
    """
    looks = sorted({round(total * k / GRID) for k in range(1, GRID + 1)})
    low = 0
    for done, steps in enumerate(looks):
        show(done)
        if after(steps) < least:
            high = steps
            break
        low = steps
    else:
        return total
    for done in range(REFINEMENTS):
        show(GRID + done)
        if high - low <= 1:
            break
        middle = (low + high) // 2
        if after(middle) < least:
            high = middle
        else:
            low = middle
    return low
