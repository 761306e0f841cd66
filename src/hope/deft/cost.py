"""How much of the source task severing costs, reported by `prepare`."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

import torch
from msgspec import structs
from torch import Tensor, nn

from hope._util.calls import evaluation
from hope._util.notes import note
from hope.deft.elasticity import least_percentile
from hope.deft.partition import Partition
from hope.deft.tuning import Tuning
from hope.errors import InvalidExample, LostSource, first_line
from hope.storage.adapter import Cost

LEAST = 0.5  # share of the source below which there is a warning


def kept_fidelity(model: nn.Module, partition: Partition, tuning: Tuning) -> float | None:
    """The source's predicted fidelity on the masked path; None without an example or a tensor to compare."""
    predicted = partition.fidelity(model)
    with tuning.source() as source:
        return None if predicted is None else predicted(source)


def cost_of(
    model: nn.Module,
    partition: Partition,
    tuning: Tuning,
    batches: Iterable[tuple[Tensor, Tensor]] | None = None,
) -> Cost:
    """Fidelity on synthetic inputs, and accuracy on labelled ones, of the source task in its
    present state: on the masked path, and of the network as it is.
    """
    predicted = partition.fidelity(model)
    found: dict[str, Any] = {"fidelity": kept_fidelity(model, partition, tuning)}
    if predicted is not None:
        with tuning.source(masked=False) as network:
            found["fidelity_as_is"] = predicted(network)
    if batches is None:
        return Cost(**found)
    batches = list(batches)
    with evaluation(model):
        found["before"] = accuracy_on(model, batches)
    return structs.replace(measured(tuning, batches), **found)


def measured(tuning: Tuning, batches: Iterable[tuple[Tensor, Tensor]]) -> Cost:
    """The source's accuracy now, on the masked path and of the network as it is."""
    batches = list(batches)
    found = {}
    for name, masked in (("after", True), ("after_as_is", False)):
        with tuning.source(masked=masked) as network:
            found[name] = accuracy_on(network, batches)
    return Cost(inputs=sum(len(_pair(batch)[1]) for batch in batches), **found)


def accuracy_on(network: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> float:
    """The share of labelled inputs that a network gets right."""
    right = total = 0
    with torch.inference_mode():
        for inputs, labels in map(_pair, batches):
            try:
                answers = network(inputs)
            except (RuntimeError, ValueError) as error:
                raise InvalidExample(
                    f"batches must be inputs of the source task's size, got {tuple(inputs.shape)}, on which "
                    f"it does not run ({first_line(error)}): resize them"
                ) from error
            answers = getattr(answers, "logits", answers)  # a model of transformers
            classes = 1 if answers.shape[:1] + answers.shape[2:] == labels.shape else -1  # last, of tokens
            right += int((answers.argmax(dim=classes) == labels.to(inputs.device)).sum())
            total += labels.numel()
    if total == 0:
        raise InvalidExample(
            "batches must be pairs of inputs and labels, got none: pass such pairs, or omit it"
        )
    return right / total


def _pair(batch: object) -> tuple[Tensor, Tensor]:
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        inputs, labels = batch
        if isinstance(inputs, Tensor) and isinstance(labels, Tensor) and len(inputs) == len(labels):
            return inputs, labels
    raise InvalidExample("batches= must be pairs of inputs and labels, one label per input: [(x, y), ...]")


def report_cost(cost: Cost, partition: Partition) -> None:
    """A note about the cost, or a warning if little is left."""
    if cost.kept is not None and cost.kept < LEAST:
        way = "use a lower percentile" if partition.refitted is None else "use a smaller free="
        if partition.lock.reason == "supremum":  # more neurons have no cost than the percentile covers
            way = f"use a percentile from {least_percentile(partition.costs)}, as most neurons cost nothing"
        warnings.warn(
            f"severing leaves little of the source task ({cost}): {way}, or "
            "hope.deft.partition(..., fidelity=0.95)",
            LostSource,
            stacklevel=3,
        )
    elif cost.kept is not None:
        note(f"the source task after severing: {cost}")
