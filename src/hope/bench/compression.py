"""A network of one's own on images of one's own: accuracy against what is kept, without fine-tuning."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hope.bench import images
from hope.bench.accuracy import accuracy, interval
from hope.bench.budgets import candidates
from hope.bench.results import versions
from hope.errors import InvalidExample, first_line
from hope.rewrite.recalibrate import recalibrate_bn

FORMAT, VERSION = "hope-bench-compression", 2
BUDGETS = tuple(f"density={d}" for d in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3))


def outputs(name: str, model: nn.Module, example: Tensor) -> int:
    """The number of classes of a network.

    Raises:
        UnusableImages: it does not answer with one score per class.
    """
    try:
        with torch.inference_mode():
            scores = model(example)
    except Exception as error:  # whatever the model raises
        raise InvalidExample(
            f"{name} cannot run on inputs of shape {tuple(example.shape)} ({first_line(error)}): give --input"
        ) from error
    if not isinstance(scores, Tensor) or scores.ndim != 2:
        raise images.UnusableImages(
            f"{name} must return one score per class, got something else: wrap it in a function that does"
        )
    return int(scores.shape[1])


def read_images(name: str, model: nn.Module, example: Tensor, source: Path, **options: Any) -> images.Images:
    """Labelled images for a network; the options are those of `hope.bench.images.read`."""
    return images.read(source, example.shape[1:], outputs(name, model, example), **options)


def measure(
    name: str,
    model: nn.Module,
    chosen: images.Images,
    *,
    seed: int = 0,
    note: Callable[[str], None] = lambda line: None,
    **networks: Any,
) -> dict[str, Any]:
    """Accuracies of a network and its compressed forms, as they are and after BN re-estimation on images that
    are not measured on.

    Args:
        networks: methods, budgets and multiples: see `hope.bench.budgets.candidates`.
    """
    torch.manual_seed(seed)
    rows: list[dict[str, Any]] = []
    notes: list[str] = []

    def keep_note(line: str) -> None:
        notes.append(line)
        note(line)

    for one in candidates(model, chosen.images[:1], note=keep_note, **{"budgets": BUDGETS, **networks}):
        again = recalibrate_bn(one.model, torch.split(chosen.unlabelled, 32))
        row = dict(one.facts)
        for figure, network in (("accuracy", one.model), ("recalibrated", again)):
            row[figure] = accuracy(network, chosen.images, chosen.labels)
            row[f"{figure} interval"] = interval(row[figure], len(chosen.images))
        rows.append(row)
    return {
        "format": FORMAT,
        "version": VERSION,
        "versions": versions(),
        "model": name,
        "images": len(chosen.images),
        "seed": seed,
        "notes": notes,
        "rows": rows,
    }
