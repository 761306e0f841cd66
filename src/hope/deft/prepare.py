"""`hope.deft.prepare`: merge, sever, freeze, attach a new head; then train with any loop and optimizer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hope._util.tensors import get
from hope.deft.checks import check_sever, check_weights
from hope.deft.cost import cost_of, report_cost
from hope.deft.heads import head_of, new_head
from hope.deft.partition import Partition
from hope.deft.severing import Absorbed, absorb
from hope.deft.tuning import Tuning
from hope.errors import InvalidPartition
from hope.methods.method import listed
from hope.storage.adapter import Cost


def prepare(
    model: nn.Module,
    partition: Partition,
    *,
    head: int | nn.Module | None = None,
    freeze_statistics: bool = False,
    sever: str | None = None,
    calibration: Iterable[Any] | None = None,
    batches: Iterable[tuple[Tensor, Tensor]] | None = None,
) -> Tuning:
    """A copy of the model with a frozen core and trainable slack. The model itself is not changed.

    Weights from slack to core are severed in all readers and taps, W₀ = M ⊙ W_source (paper, Section
    "Consistency at Initialization"). With `sever="absorb"` the core and a constant first compensate for the
    slack inputs of the core, and of the source head in `source()` (see `hope.deft.severing`). The core then
    starts closer to the original, and is frozen as well.

    Everything that belongs to a core neuron is frozen: its filter, bias, BN scale and shift, and what it
    shares with others. Gradients of frozen entries are zero before any optimizer uses them, and frozen
    entries are the same to the bit after every step, with any weight decay (see `Gate`).

    A stream whose channels are normalised together (LayerNorm, GroupNorm) is completely core. Weights from
    slack into it are severed but trainable, because slack has no other path to the head: core reads slack
    while the new task runs, and not in `source()`; `tuning.notes` names the stream.

    In training, BN statistics of all channels adapt to the target data, as in the paper, and `source()`
    restores the source's. With `freeze_statistics=True` core channels are normalised by the source's
    statistics in training, too: then the core computes the same for the target as for the source.

    `tuning.cost` is the cost of severing for the source task: its predicted fidelity (see `hope.fidelity`),
    and its accuracy on labelled inputs. It is reported on standard error, as a warning (`LostSource`) if less
    than half is left.

    Args:
        model: the partitioned model.
        partition: the result of `hope.deft.partition` for it.
        head: number of outputs of the new head, a module, or None to start from the source's head, or to
            share a frozen one.
        freeze_statistics: freeze the running statistics of core channels. The hooks belong to the BN modules:
            use `SyncBatchNorm.convert_sync_batchnorm` before `prepare`, not after.
        sever: "mask" as in the paper, or "absorb"; weights with unknown input moments are masked, and
            `tuning.notes` names them. By default that of the partition; a refitted core has nothing to sever.
        calibration: a few unlabelled batches to measure moments on for absorption; required without BN.
        batches: labelled inputs of the source task, pairs (x, y).

    Raises:
        InvalidPartition: `sever` is unknown, or `calibration` is not needed.
        CheckpointMismatch: the partition was made for other weights.
        InvalidExample: `batches` are not pairs of inputs and labels.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
        ... )
        >>> part = hope.deft.partition(net, torch.zeros(2, 4), percentile=20)
        >>> tuning = hope.deft.prepare(net, part, head=2)
        >>> optimizer = torch.optim.AdamW(tuning.model.parameters(), weight_decay=0.1)
        >>> tuning.model(torch.randn(16, 4)).square().mean().backward()
        >>> optimizer.step()
        >>> tuning.moved()
        []
        >>> core = part.core["0"]
        >>> torch.equal(tuning.model[1].weight[core], net[1].weight[core]) or len(part.merges) > 0
        True
    """
    check_weights(model, partition.original)
    how: dict[str, Any] = {"freeze_statistics": freeze_statistics, "sever": sever, "calibration": calibration}
    cost = partial(cost_of, model, partition, batches=batches)
    tuning = ready(model, partition, head=head, cost=cost, **how)
    if tuning.cost is not None:
        report_cost(tuning.cost, partition)
    return tuning


def ready(
    model: nn.Module,
    partition: Partition,
    *,
    head: int | nn.Module | None = None,
    freeze_statistics: bool = False,
    sever: str | None = None,
    calibration: Iterable[Any] | None = None,
    cost: Callable[[Tuning], Cost] | None = None,
) -> Tuning:
    """The same without measuring the cost, unless `cost` does."""
    sever = partition.sever if sever is None else check_sever(sever)
    if sever != partition.sever and (partition.fresh or sever == "refit"):
        raise InvalidPartition(
            f"a partition must be made with sever={sever!r} for it, got one of another kind: call "
            f"hope.deft.partition(..., sever={sever!r})"
        )
    if calibration is not None and sever != "absorb":
        raise InvalidPartition("calibration must be left out unless sever='absorb', got some: omit it")
    tuned = partition.consolidated(model)
    absorbed = absorb(tuned, partition, calibration) if sever == "absorb" else Absorbed({}, ())
    cut(tuned, partition)
    return Tuning(
        tuned,
        method="deft",
        head=partition.head,
        new_head=new_head(head_of(tuned, partition.head), head, partition.head, model),
        frozen=partition.frozen,
        columns=partition.head_columns,
        freeze_statistics=freeze_statistics,
        original=partition.original,
        masks_source=True,
        rewritten=_differences(model if partition.growth is None else partition.growth.widen(model), tuned),
        growth=partition.growth,
        shares_head=head is None,
        absorbed_head=absorbed.head,
        notes=(*absorbed.notes, *_notes(partition)),
        cost=cost,
    )


def _notes(partition: Partition) -> list[str]:
    """Notes about core that reads slack outside of `source()`."""
    trained = [
        unit
        for unit in partition.units
        if any(p.role == "out" and p.tensor in partition.relearnable for p in unit.places)
    ]
    mixed = [
        f"core reads slack through the stream of {unit.name}, except in source(): {unit.mixed}"
        for unit in trained
        if unit.mixed
    ]
    whole = [unit.name for unit in trained if not unit.mixed]
    if whole:
        mixed.append(f"slack writes into {listed(whole)}, whose neurons are all core; except in source()")
    return mixed


@torch.no_grad()
def cut(model: nn.Module, partition: Partition) -> None:
    """Set all weights from slack to core to zero, in place."""
    for name, mask in partition.severed.items():
        tensor = get(model, name)
        tensor.masked_fill_(mask.to(tensor.device), 0)


def _differences(before: nn.Module, after: nn.Module) -> dict[str, Tensor]:
    """Tensor -> where it changed, for those that did."""
    old, new = before.state_dict(), after.state_dict()
    found = {name: (old[name] != new[name]).cpu() for name in new if isinstance(new[name], Tensor)}
    return {name: mask for name, mask in found.items() if bool(mask.any())}
