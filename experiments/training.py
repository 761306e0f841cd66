"""Plain supervised training of small image networks: SGD with momentum, a cosine, random flips and crops."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn
from torch.nn import functional

PADDING = 4  # pixels around an image that a crop may reach into


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Attributes:
        epochs: over all images.
        rate: the first one; a cosine takes it to zero.
        batch: images a step.
        decay: weight decay.
    """

    epochs: int
    rate: float
    batch: int = 64
    decay: float = 5e-4


def augmented(images: Tensor) -> Tensor:
    """Each image moved by up to `PADDING` pixels, and every second one mirrored, at random.

    >>> augmented(torch.ones(2, 3, 8, 8)).shape
    torch.Size([2, 3, 8, 8])
    """
    count, _, height, width = images.shape
    padded = functional.pad(images, (PADDING,) * 4)
    rows = torch.randint(2 * PADDING + 1, (count, 1)) + torch.arange(height)
    columns = torch.arange(width).expand(count, -1)
    columns = torch.where(torch.rand(count, 1) < 0.5, columns.flip(1), columns)
    columns = columns + torch.randint(2 * PADDING + 1, (count, 1))
    which = torch.arange(count)[:, None, None]
    # (N, H, W, C), so that the result lies channels-last, which convolutions on a CPU are faster with
    return padded[which, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def train(
    model: nn.Module,
    images: Tensor,
    labels: Tensor,
    recipe: Recipe,
    *,
    seed: int,
    progress: bool | None = None,
) -> nn.Module:
    """Train a model in place and return it in evaluation mode.

    The seed fixes the order of the images and how they are augmented, whatever the network.

    Args:
        progress: show a bar; None shows it on a terminal only.
    """
    torch.manual_seed(seed)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=recipe.rate, momentum=0.9, weight_decay=recipe.decay, nesterov=True
    )
    batches = max(1, len(images) // recipe.batch)  # what is left over waits for another epoch's order
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, max(1, recipe.epochs * batches))
    console = Console(stderr=True)
    show = console.is_terminal if progress is None else progress
    model.train()
    with Progress(console=console, transient=True, disable=not show) as bar:
        line = bar.add_task("training", total=recipe.epochs * batches)
        for _ in range(recipe.epochs):
            order = torch.randperm(len(images))
            for some in torch.split(order[: batches * recipe.batch], recipe.batch):
                loss = functional.cross_entropy(model(augmented(images[some])), labels[some])
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                bar.advance(line)
    return model.eval()
