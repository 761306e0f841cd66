"""How often a network is right, and how sure that is."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def accuracy(model: nn.Module, images: Tensor, labels: Tensor, batch: int = 125) -> float:
    """Share of images whose highest score is the label's."""
    hits = 0
    with torch.inference_mode():
        for start in range(0, len(images), batch):
            scores = model(images[start : start + batch])
            hits += int((scores.argmax(dim=1) == labels[start : start + batch]).sum())
    return hits / len(images)


def interval(share: float, count: int) -> tuple[float, float]:
    """A 95% interval of a share of so many, after Wilson (1927).

    >>> [round(bound, 4) for bound in interval(81 / 263, 263)]
    [0.2553, 0.3662]
    >>> [round(bound, 4) for bound in interval(0.0, 20)]
    [0.0, 0.1611]
    """
    z = 1.959964
    middle = share + z**2 / (2 * count)
    half = z * (share * (1 - share) / count + (z / (2 * count)) ** 2) ** 0.5
    low, high = ((middle + side * half) / (1 + z**2 / count) for side in (-1, 1))
    return max(0.0, low), min(1.0, high)
