"""Severing by absorption: the core and a constant compensate for severed slack.

The paper sets weights from slack to core to zero, so core neurons lose their inputs from slack. Here each
weight's slack inputs are first projected onto the span of 1 and its core inputs, under the propagated
surrogate: d = C_cc⁻¹C_cs, W_core,core += W_core,slack·d as in `geometry.projection`. Only rows of core
outputs are rewritten: slack outputs still read everything. The constant is subtracted from the mean of the
following BN, or added to the bias, and the BN's variance is corrected. All of this happens once, before
anything is frozen.

In `source()` the weights of the source head for slack are zero. A copy of the head is rewritten in the same
way: its weights for core and its bias compensate.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hope._util.tensors import get
from hope.actions.absorption import compensate, write_back
from hope.deft.heads import head_of
from hope.deft.masks import in_head, owned
from hope.deft.partition import Partition
from hope.ops.norm import uses_of_bns
from hope.ops.uses import uses_of_weights
from hope.statistics.checkpoint import Checkpoint
from hope.statistics.input_statistics import InputStatistics, propagated_statistics
from hope.statistics.measured import measured_statistics
from hope.structure.units import Unit


@dataclass(frozen=True)
class Absorbed:
    """What absorption came to, beyond the model that it rewrote."""

    head: Mapping[str, Tensor]  # the source head's parameters (names within it) where it reads no slack
    notes: tuple[str, ...]  # where it did not work and a mask has to do, with the reason


@torch.no_grad()
def absorb(model: nn.Module, partition: Partition, calibration: Iterable[Any] | None = None) -> Absorbed:
    """Let the core compensate for slack, in place; weights from slack to core are 0 afterwards.

    Args:
        calibration: inputs to measure moments on, in place of the propagated ones.
    """
    anatomy = partition.anatomy
    dims = {p.tensor: p.dim for unit in partition.units for p in unit.places if p.role == "in"}
    input_statistics, _ = propagated_statistics(anatomy, Checkpoint.of(model, anatomy), dims=dims)
    measured = calibration is not None
    if calibration is not None:
        input_statistics = measured_statistics(
            model, anatomy, calibration, input_statistics, units=partition.units
        )
    uses = uses_of_weights(anatomy.program) + uses_of_bns(anatomy.program)
    head = head_of(model, partition.head)
    before = {name: value.clone() for name, value in head.state_dict().items()}
    notes = []
    for weight in sorted(partition.severed.keys() | partition.head_columns.keys()):
        last = in_head(weight, partition.head)
        if not bool((partition.head_columns if last else partition.severed)[weight].any()):
            continue
        statistics = input_statistics.get(weight)
        if statistics is not None and last:
            statistics = replace(statistics, bn="")  # a BN after the head is not part of the head
        found = _channels(statistics, weight, partition, uses, measured)
        if isinstance(found, str):
            notes.append(f"{weight}: its weights for slack are masked, not absorbed: {found}")
            continue
        frozen = torch.ones(()) if last else partition.locked[weight]
        _rewrite(model, *found, frozen.expand(anatomy.shapes[weight]))
    after = {name: value.clone() for name, value in head.state_dict().items()}
    head.load_state_dict(before)
    return Absorbed({n: v for n, v in after.items() if not torch.equal(v, before[n])}, tuple(notes))


def _rewrite(
    model: nn.Module, statistics: InputStatistics, channels: Tensor, removed: Tensor, frozen: Tensor
) -> None:
    """Rewrite the core outputs of one weight."""
    rows = statistics.laid(frozen).flatten(1).bool().any(dim=1)
    weight = statistics.laid(get(model, statistics.weight).cpu())
    core = weight[rows]
    shift = torch.zeros(len(weight), dtype=torch.float64)
    shift[rows] = compensate(statistics, core, channels, removed)
    weight[rows] = core
    write_back(model, statistics, weight, shift, rows)


def _channels(
    statistics: InputStatistics | None,
    weight: str,
    partition: Partition,
    uses: Mapping[str, int],
    measured: bool,
) -> tuple[InputStatistics, Tensor, Tensor] | str:
    """A weight's input statistics, the channels with known moments, and which of them are slack; or a
    reason.
    """
    if statistics is None:
        return "the moments of its input are unknown"
    if uses[weight] > 1 or uses.get(statistics.bn, 0) > 1:
        return "it, or the BN after it, is used several times"
    size = partition.anatomy.shapes[weight][statistics.dim]
    if size != len(statistics.mean) * statistics.repeat:
        return "it reads its inputs in groups"
    known, slack = torch.zeros(2, size, dtype=torch.bool)
    for unit in partition.units:
        for place in unit.places:
            if place.role == "in" and place.tensor == weight:
                slack |= owned(place, ~partition.core[unit.name])
                if measured or _normalised(unit, weight):
                    known |= owned(place, torch.ones(unit.neurons, dtype=torch.bool))
    if bool((slack & ~known).any()):
        return "there is no BN before its input"
    known, slack = (mask.reshape(-1, statistics.repeat) for mask in (known, slack))
    if not all(torch.equal(mask.any(dim=1), mask.all(dim=1)) for mask in (known, slack)):
        return "its input channels do not match the neurons"
    channels = known.any(dim=1).nonzero()[:, 0]
    return statistics, channels, slack.any(dim=1)[channels]


def _normalised(unit: Unit, weight: str) -> bool:
    """Whether a BN stores the moments of a unit's signals: without one they are an assumption."""
    if unit.kind == "layer":
        return all(reader.last("bn") is not None for reader in unit.readers if reader.weight == weight)
    return any(place.tensor.endswith(".running_var") for place in unit.places)
