"""Fidelity without data: how similar the outputs of a network and of its compressed form are on noise inputs.

The direction of outputs is compared, without their mean over all inputs: a factor does not matter, and a
constant output has fidelity 0. Of several outputs the worst counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hope._util.batching import Batching, batching_of, flatten, unflatten
from hope._util.calls import Example, evaluation
from hope._util.disk_cache import cached
from hope.errors import InvalidExample
from hope.statistics.dreams import synthetic_inputs
from hope.statistics.token_weights import mask_of
from hope.trace.program import Program
from hope.trace.trace import Trace

IMAGES = 32
GRID, REFINEMENTS = 20, 6  # evaluations of a run's fidelity
EVALUATIONS = GRID + REFINEMENTS
LEAST_IMAGES, WORK = 8, 6.4e10  # fewer images for large networks: so many multiply-accumulates per evaluation


def images_for(macs: int) -> int:
    """The number of probes for a network of this size.

    >>> images_for(40_000_000), images_for(4_100_000_000)
    (32, 15)
    """
    return int(min(IMAGES, max(LEAST_IMAGES, WORK / max(1, macs))))


class Fidelity:
    """Compares networks with one original on the same probes.

    Args:
        example: an input it runs on; probes have its shape.
        program: the original's order of operations, for the scale of its input.
        progress: show progress; None shows it on a terminal or in a notebook.
        inputs: batches to use instead of probes, the first `count` inputs of them.
    """

    def __init__(
        self,
        model: nn.Module,
        example: Example | None,
        program: Program = (),
        count: int = IMAGES,
        *,
        trace: Trace | None = None,
        progress: bool | None = False,
        inputs: Sequence[Example] = (),
    ) -> None:
        call: tuple[tuple[Any, ...], dict[str, Any]]
        if not inputs:
            how: dict[str, Any] = {"count": count, "trace": trace, "progress": progress}
            call = cached(
                f"probes-{count}", lambda: unflatten(*synthetic_inputs(model, example, program, **how))
            )
        else:
            call = _joined(inputs, count, batching_of(model, inputs[0]))
        self._args, self._kwargs = call
        self._mask = mask_of(model, self._args or self._kwargs)
        self._outputs = self._run(model)

    def _run(self, model: nn.Module) -> dict[str, Tensor]:
        """Centred outputs by name."""
        with evaluation(model), torch.no_grad():
            outputs = float_outputs(model(*self._args, **self._kwargs))
        return {name: centred(self._unpadded(output.double().cpu())) for name, output in outputs.items()}

    def _unpadded(self, output: Tensor) -> Tensor:
        """An output without that of padded tokens."""
        if self._mask is not None and output.shape[:-1] == self._mask.shape:
            return output[self._mask.bool().cpu()]
        return output

    def by_output(self, model: nn.Module) -> dict[str, float]:
        """Mean cosine between each output of the original and of this network, at most 1."""
        outputs = self._run(model)
        shapes = [{name: tuple(one.shape) for name, one in some.items()} for some in (self._outputs, outputs)]
        if shapes[0] != shapes[1]:
            raise InvalidExample(
                f"the outputs of both networks must have the same shapes, got {_listed(shapes[0])} and "
                f"{_listed(shapes[1])}: compare a network with its own compressed version"
            )
        return {name: cosine(outputs[name], known) for name, known in self._outputs.items()}

    def __call__(self, model: nn.Module) -> float:
        """The least of `by_output`: a network is as good as its worst output."""
        return min(self.by_output(model).values())


def cosine(output: Tensor, known: Tensor) -> float:
    """The mean cosine of two networks' centred outputs."""
    bottom = output.norm(dim=1) * known.norm(dim=1)
    cosine = (output * known).sum(dim=1) / bottom.clamp(min=1e-300)
    cosine[(output == known).all(dim=1)] = 1.0
    return float(cosine.nan_to_num(0.0).mean())


def _listed(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}".strip() for name, shape in shapes.items())


def _joined(batches: Sequence[Example], count: int, batching: Batching = "rows") -> Any:
    """The first inputs as one call, from as many compatible batches as needed. Tensors that are not as long
    as the batch are not split.
    """
    first, form = flatten(batches[0], batching)
    size = _rows(first)
    for batch in batches[1:]:
        more, other = flatten(batch, batching)
        rows = _rows(more)
        if other != form or not rows or not 0 < size < count:
            break
        pairs = [*zip(first, more, strict=True)]
        if not all(_alike(a, b, size, rows) for a, b in pairs):
            break
        first = [torch.cat([a, b]) if _long(a, size) else a for a, b in pairs]
        size += rows
    return unflatten([v[:count] if _long(v, size) else v for v in first], form)


def _rows(leaves: Sequence[Any]) -> int:
    """The number of inputs in a batch; 0 if unknown."""
    return next((len(v) for v in leaves if isinstance(v, Tensor) and v.ndim > 1), 0)


def _long(value: Any, size: int) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and 0 < size == len(value)


def _alike(a: Any, b: Any, size: int, rows: int) -> bool:
    """Whether two batches' entries can be concatenated, or are identical."""
    if _long(a, size) and _long(b, rows):
        return (a.dtype, a.device, a.shape[1:]) == (b.dtype, b.device, b.shape[1:])
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return torch.equal(a, b) if (a.dtype, a.device, a.shape) == (b.dtype, b.device, b.shape) else False
    return type(a) is type(b) and not isinstance(a, Tensor) and bool(a == b)


def float_outputs(answer: Any) -> dict[str, Tensor]:
    """Every tensor of floats that a model returns, by its place in what it returns, but for scalars (a loss).

    >>> [*float_outputs({"boxes": [torch.ones(2, 4), torch.ones(3, 4)], "labels": torch.ones(2).int()})]
    ['boxes.0', 'boxes.1']
    """
    found = {
        name: tensor
        for name, tensor in _tensors("", answer)
        if tensor.is_floating_point() and (tensor.ndim or not name)
    }
    if not found:
        raise InvalidExample(
            "a model must return a tensor of floats, or several in lists and dicts, got "
            f"{type(answer).__name__}: pass the module whose output is a tensor"
        )
    return found


def _tensors(name: str, value: Any) -> Iterator[tuple[str, Tensor]]:
    if isinstance(value, Tensor):
        yield name, value
        return
    parts: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, Mapping):
        parts = value.items()
    elif isinstance(value, (list, tuple)):
        parts = enumerate(value)
    elif is_dataclass(value):
        parts = vars(value).items()
    for key, part in parts:
        yield from _tensors(f"{name}.{key}".lstrip("."), part)


def centred(answers: Tensor) -> Tensor:
    """Outputs without their mean over classes and inputs; every token of a text is an input."""
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
    """The fidelity of a compressed network to its original, without data: 1 is a perfect copy.

    Both run on the same noise, which has the example's shape (half of it for large images, if the network
    accepts that) and is optimised to match the original's BN statistics. The fidelity ranks compressed
    versions of one network similarly to accuracy; it is not an accuracy. The same networks give the same
    value. Of several outputs the worst counts (see `hope.fidelity_by_output`).

    Args:
        original: the network before compression.
        compressed: the compressed network.
        example: an input.
        count: the number of noise inputs.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)
        ... ).eval()
        >>> hope.fidelity(net, net, torch.zeros(1, 3, 8, 8))
        1.0
    """
    return min(fidelity_by_output(original, compressed, example, count=count).values())


def fidelity_by_output(
    original: nn.Module,
    compressed: nn.Module,
    example: Example | None = None,
    *,
    count: int = IMAGES,
) -> dict[str, float]:
    """Output -> its fidelity, for networks that return several; `hope.fidelity` is the least of these.

    Outputs are named by their places in what the network returns: "boxes.0" is the first of the list
    "boxes". A network that returns one tensor has one output, "".

    Args:
        original, compressed, example, count: see `hope.fidelity`.

    Example:
        >>> import copy, torch, hope
        >>> class TwoHeads(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.boxes, self.classes = torch.nn.Linear(6, 4), torch.nn.Linear(6, 3)
        ...     def forward(self, x):
        ...         return {"boxes": self.boxes(x), "classes": self.classes(x)}
        >>> net = TwoHeads()
        >>> broken = copy.deepcopy(net)
        >>> _ = torch.nn.init.zeros_(broken.boxes.weight)
        >>> hope.fidelity_by_output(net, broken, torch.zeros(1, 6))
        {'boxes': 0.0, 'classes': 1.0}
    """
    trace = Trace()
    program = trace.captured(original, example, progress=None).program
    return Fidelity(original, example, program, count, trace=trace).by_output(compressed)


def in_words(least: float, found: Mapping[str, float]) -> str:
    """A fidelity as a line of a summary.

    >>> in_words(0.5, {"boxes": 0.5, "classes": 1.0})
    'fidelity 0.500 (predicted; 1 is the original), of boxes, the worst of 2 outputs; the mean is 0.750'
    """
    line = f"fidelity {least:.3f} (predicted; 1 is the original)"
    if len(found) < 2:
        return line
    worst, mean = min(found, key=lambda name: found[name]), sum(found.values()) / len(found)
    return f"{line}, of {worst}, the worst of {len(found)} outputs; the mean is {mean:.3f}"


def longest_above(
    least: float, total: int, after: Callable[[int], float], show: Callable[[float], None]
) -> int:
    """The longest prefix of a run that never falls below a fidelity or score, on a grid that is then refined.

    Args:
        after: steps -> the fidelity or score after them.
    """
    points = sorted({round(total * k / GRID) for k in range(1, GRID + 1)})
    low = 0
    for done, steps in enumerate(points):
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
