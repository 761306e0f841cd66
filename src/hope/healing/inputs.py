"""The inputs of healing: one row each, a part of them held out, and images changed at random."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hope._util.batching import Nesting, as_example, batching_of, flatten
from hope._util.calls import Example, unlabelled
from hope._util.progress import bar
from hope._util.tokens import check_tokens
from hope.errors import InvalidExample
from hope.statistics.dreams import dreamed
from hope.statistics.observe import check_batch
from hope.trace.trace import Trace

HELD, LEAST, MOST = 8, 8, 256  # one input of so many is held out, at least so many and at most so many
CHANNELS, SIDE = 4, 8  # an image has at most so many channels, and sides of at least so many pixels
SHIFT = 8  # images are shifted by up to one part of so many of a side
ENTRIES = 1 << 22  # entries of inputs and outputs in a batch
BATCH = (4, 64)
DREAMS = 4  # parts of synthetic inputs, each as many as calibration uses
INPUTS = "making inputs to heal on"


@dataclass(frozen=True, eq=False)
class Inputs:
    """Inputs of a network, one per row.

    Attributes:
        values: the values of a call: tensors with a row per input, others as they are.
        rows: whether a value has a row per input.
        form: how they are nested.
    """

    values: tuple[Any, ...]
    rows: tuple[bool, ...]
    form: Nesting

    @classmethod
    def of(cls, model: nn.Module, batches: Iterable[Any]) -> Inputs:
        """The rows of all batches.

        Raises:
            InvalidExample: there are none, or two batches have inputs of different shapes.
        """
        parts: list[list[Any]] = []
        form, alike = None, ""
        for number, batch in enumerate(unlabelled(model, batches)):
            check_batch(batch, number, "heal")
            check_tokens(model, batch, f"heal: batch {number}")
            if form is None:
                batching = batching_of(model, batch)
            values, found = flatten(batch, batching)
            form = form or found
            shapes = _shapes(values)
            alike = alike or shapes
            if not shapes:
                raise InvalidExample(
                    f"heal: batch {number} must have tensors: give batches as the model takes"
                )
            if shapes != alike or found != form:
                raise InvalidExample(
                    f"heal: inputs of all batches must have the same shape, got {shapes} in batch {number} "
                    f"and {alike} in batch 0: crop or pad them"
                )
            parts.append(values)
        if form is None:
            raise InvalidExample("heal: batches must not be empty: give an iterable of batches, or None")
        size = len(next(v for v in parts[0] if isinstance(v, Tensor) and v.ndim))
        rows = tuple(isinstance(v, Tensor) and v.ndim > 0 and len(v) == size for v in parts[0])
        values = [
            torch.cat([part[k] for part in parts]) if several else parts[0][k]
            for k, several in enumerate(rows)
        ]
        return cls(tuple(values), rows, form)

    def __len__(self) -> int:
        return next(len(v) for v, several in zip(self.values, self.rows, strict=True) if several)

    def taken(self, which: Tensor) -> Inputs:
        """Some of the inputs."""
        pairs = zip(self.values, self.rows, strict=True)
        return replace(self, values=tuple(v[which.to(v.device)] if several else v for v, several in pairs))

    def on(self, device: torch.device) -> Example:
        """As one batch on a device, images with their channels last, which convolutions are faster on."""
        values = [v.to(device) if isinstance(v, Tensor) else v for v in self.values]
        images = [isinstance(v, Tensor) and v.ndim == 4 for v in values]
        last = torch.channels_last
        return as_example(
            [v.to(memory_format=last) if is_image else v for v, is_image in zip(values, images, strict=True)],
            self.form,
        )

    def split(self) -> tuple[Inputs, Inputs]:
        """Inputs to train on, and inputs that are held out.

        Raises:
            InvalidExample: there are too few.
        """
        if len(self) < 2 * LEAST:
            raise InvalidExample(
                f"heal must have at least {2 * LEAST} inputs, of which it holds {LEAST} out, got "
                f"{len(self)}: give more"
            )
        count = min(MOST, max(LEAST, len(self) // HELD))
        order = torch.randperm(len(self), generator=torch.Generator().manual_seed(0))
        return self.taken(order[count:]), self.taken(order[:count])

    def images(self) -> int | None:
        """Which value has images; None if none has, or several have."""
        found = [
            k
            for k, v in enumerate(self.values)
            if self.rows[k] and v.ndim == 4 and v.is_floating_point()
            if v.shape[1] <= CHANNELS and min(v.shape[2:]) >= SIDE
        ]
        return found[0] if len(found) == 1 else None

    def augmented(self, generator: torch.Generator) -> Inputs:
        """With images flipped, shifted and mixed at random."""
        at = self.images()
        if at is None:
            return self
        changed = augmented(self.values[at], generator)
        return replace(self, values=(*self.values[:at], changed, *self.values[at + 1 :]))


def _shapes(values: Iterable[Any]) -> str:
    """What batches of one kind have in common."""
    return ", ".join("x".join(map(str, v.shape[1:])) or "a number" for v in values if isinstance(v, Tensor))


def augmented(x: Tensor, generator: torch.Generator) -> Tensor:
    """Images, each of them flipped with chance one half and shifted, and half of them mixed with another.

    >>> augmented(torch.randn(4, 3, 8, 8), torch.Generator().manual_seed(0)).shape
    torch.Size([4, 3, 8, 8])
    """
    count, _, height, width = x.shape

    def uniform() -> Tensor:
        return torch.rand(count, generator=generator)

    def moved(side: int) -> Tensor:
        most = max(1, side // SHIFT)
        shift = torch.randint(-most, most + 1, (count, 1), generator=generator)
        at = (torch.arange(side) + shift).abs()  # reflected at the borders
        return side - 1 - (side - 1 - at).abs()

    down, right = moved(height), moved(width)
    right = torch.where(uniform()[:, None] < 0.5, right.flip(1), right)
    images = torch.arange(count)[:, None, None]
    here = (images.to(x.device), down[:, :, None].to(x.device), right[:, None, :].to(x.device))
    found = x[here[0], :, here[1], here[2]].movedim(-1, 1)
    share = torch.where(uniform() < 0.5, uniform(), 1.0).to(x)[:, None, None, None]
    others = torch.randperm(count, generator=generator).to(x.device)
    return (share * found + (1 - share) * found[others]).contiguous()


def batch_size(inputs: Inputs, outputs: int) -> int:
    """How many inputs a step takes.

    Args:
        outputs: entries that the network returns for an input.
    """
    pairs = zip(inputs.values, inputs.rows, strict=True)
    entries = outputs + max(int(v[0].numel()) for v, several in pairs if several)
    least, most = BATCH
    return min(len(inputs), most, max(least, ENTRIES // entries))


def synthetic(model: nn.Module, example: Example | None, *, progress: bool | None = None) -> list[Any]:
    """Dreams, or texts that the model writes: several times as many as calibration uses."""
    trace = Trace()
    found = []
    with bar(INPUTS, DREAMS, progress) as show:
        for seed in range(DREAMS):
            show(seed)
            found += dreamed(model, example, trace, seed=seed, progress=progress)
    return found
