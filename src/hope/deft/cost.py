"""How much of the source task severing costs, reported by `prepare`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from hope._util.calls import evaluation
from hope._util.notes import note
from hope.deft.partition import Partition
from hope.deft.tuning import Tuning
from hope.errors import InvalidExample, LostSource
from hope.storage.adapter import Cost

LEAST = 0.5  # share of the source below which there is a warning


def cost_of(
    model: nn.Module,
    partition: Partition,
    tuning: Tuning,
    batches: Iterable[tuple[Tensor, Tensor]] | None = None,
) -> Cost:
    """Fidelity on synthetic inputs, and accuracy on labelled ones, of the source task in its
    present state.
    """
    judge = partition.judge(model)
    with tuning.source() as source:
        fidelity = None if judge is None else judge(source)
        if batches is None:
            return Cost(fidelity=fidelity)
        right, total = [0, 0], 0
        with evaluation(model), torch.inference_mode():
            for batch in batches:
                inputs, labels = _pair(batch)
                for position, one in enumerate((model, source)):
                    right[position] += int((one(inputs).argmax(dim=1) == labels.to(inputs.device)).sum())
                total += len(labels)
    if total == 0:
        raise InvalidExample("batches= has no labelled inputs: pass pairs of inputs and labels, or omit it")
    return Cost(fidelity=fidelity, before=right[0] / total, after=right[1] / total, inputs=total)


def _pair(batch: object) -> tuple[Tensor, Tensor]:
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        inputs, labels = batch
        if isinstance(inputs, Tensor) and isinstance(labels, Tensor) and len(inputs) == len(labels):
            return inputs, labels
    raise InvalidExample("batches= must be pairs of inputs and labels, one label per input: [(x, y), ...]")


def tell(cost: Cost) -> None:
    """A note about the cost, or a warning if little is left."""
    if cost.kept is not None and cost.kept < LEAST:
        warnings.warn(
            f"severing leaves little of the source task ({cost}): use a lower percentile, sever='absorb', or "
            "hope.deft.partition(..., fidelity=0.95)",
            LostSource,
            stacklevel=3,
        )
    elif cost.kept is not None:
        note(f"the source task after severing: {cost}")
