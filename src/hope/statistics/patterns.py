"""Synthetic images: noise with the spectrum of natural ones, and shapes that cover one another.

Natural images have an amplitude spectrum of about 1/f and related colours; and they have edges, because
things lie in front of other things. "Dead leaves" (Matheron) have both: boxes and ellipses of random sizes,
the many small ones in front of the few large ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

COLOURS = 0.9  # correlation between the channels
SHAPES = 20  # per image
SIZES = (1 / 16, 2 / 3)  # of shapes, in parts of the image's side


def coloured_noise(count: int, channels: int, sizes: Sequence[int], seed: int = 0) -> Tensor:
    """Noise with the amplitude spectrum 1/f over the last dimensions, unit deviation, related channels.

    >>> coloured_noise(2, 3, (8, 8)).shape
    torch.Size([2, 3, 8, 8])
    """
    generator = torch.Generator().manual_seed(seed)
    white = torch.randn(count, channels, *sizes, generator=generator)
    if not sizes:
        return white
    common = torch.randn(count, 1, *sizes, generator=generator)
    white = COLOURS**0.5 * common + (1 - COLOURS) ** 0.5 * white
    square = torch.zeros(tuple(sizes))
    for dim, size in enumerate(sizes):
        shape = [1] * len(sizes)
        shape[dim] = size
        square = square + (torch.fft.fftfreq(size) ** 2).reshape(shape)
    amplitude = 1 / torch.sqrt(square).clamp(min=1 / max(sizes))
    over = tuple(range(-len(sizes), 0))
    noise: Tensor = torch.fft.ifftn(torch.fft.fftn(white, dim=over) * amplitude, dim=over).real
    return noise / noise.std().clamp(min=1e-12)


def dead_leaves(count: int, channels: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Images of boxes and ellipses that cover one another, unit deviation, related channels.

    Areas are distributed so that there is as much to see at every scale.

    >>> dead_leaves(2, 3, 8, 12).shape
    torch.Size([2, 3, 8, 12])
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform() -> Tensor:
        return torch.rand(count, 1, 1, generator=generator)

    def colour() -> Tensor:
        common = torch.randn(count, 1, generator=generator)
        own = torch.randn(count, channels, generator=generator)
        mixed: Tensor = COLOURS**0.5 * common + (1 - COLOURS) ** 0.5 * own
        return mixed[:, :, None, None]

    side = max(height, width)
    least, most = (side * size for size in SIZES)
    share = torch.rand(count, SHAPES, generator=generator)
    radii = (least**-2 - share * (least**-2 - most**-2)) ** -0.5  # density r⁻³
    radii = radii.sort(dim=1, descending=True).values
    y, x = torch.arange(height)[:, None], torch.arange(width)[None]
    image = colour().expand(-1, -1, height, width)
    for number in range(SHAPES):
        down, right = y - uniform() * height, x - uniform() * width
        angle = math.pi * uniform()
        stretch = torch.exp(torch.randn(count, 1, 1, generator=generator) / 4)
        along = (right * angle.cos() + down * angle.sin()) * stretch
        across = (down * angle.cos() - right * angle.sin()) / stretch
        box = torch.maximum(along.abs(), across.abs())
        distance = torch.where(uniform() < 0.5, box, torch.sqrt(along**2 + across**2))
        cover = (radii[:, number, None, None] - distance + 0.5).clamp(0, 1)[:, None]
        image = image + cover * (colour() - image)
    return image / image.std().clamp(min=1e-12)


def again(value: Any, count: int) -> Any:
    """An input as it is, so many times."""
    several = isinstance(value, Tensor) and value.ndim > 0
    return value[:1].expand(count, *value.shape[1:]).clone() if several else value


def noise(value: Any, count: int, seed: int, leaves: bool, rows: int = 0) -> Any:
    """Noise in the shape of an input, `count` of them, or dead leaves where it is an image; what is no tensor
    stays, and so do whole numbers that are all the same, as in a mask.
    """
    if not isinstance(value, Tensor) or value.ndim == 0:
        return value
    generator = torch.Generator().manual_seed(seed)
    if not value.is_floating_point():
        if value.numel() > 1 and bool((value == value.flatten()[0]).all()) and not rows:
            return again(value, count)
        high = max(2, int(value.max()) + 1, rows)
        return torch.randint(0, high, (count, *value.shape[1:]), generator=generator).to(value.dtype)
    if value.ndim == 1:
        return torch.randn(count, generator=generator)
    if leaves and value.ndim == 4:
        channels, height, width = (int(size) for size in value.shape[1:])
        return dead_leaves(count, channels, height, width, seed)
    return coloured_noise(count, value.shape[1], value.shape[2:], seed)
