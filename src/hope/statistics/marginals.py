"""Measured marginals: mean and deviation of every signal before its activation, from a few unlabelled inputs.

Where no BN stores how large a signal is, one pass over a few batches measures it: y ~ N(mean, deviation²)
replaces a BN's (β, γ). The captured network is run, so that any signal can be observed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hope.errors import InvalidExample
from hope.ops.norm import bn_of
from hope.statistics.observe import observe
from hope.structure.anatomy import Anatomy
from hope.structure.observation_points import ObservationPoint
from hope.trace.blocks import Block
from hope.trace.program import Program


@dataclass(frozen=True, eq=False)
class Marginal:
    """A signal at one tap.

    Attributes:
        mean, spread: (places of the tap's dimension,) mean and deviation over inputs and all other places.
        tap: where it was measured.
    """

    mean: Tensor
    spread: Tensor
    tap: ObservationPoint

    def of(self, values: Tensor) -> Tensor:
        """(neurons, channels that a neuron has there) of values by place."""
        owner = torch.from_numpy(self.tap.owner)
        own = (owner >= 0).nonzero()[:, 0]
        order = own[torch.argsort(owner[own], stable=True)]
        return values[order].reshape(int(owner.max()) + 1, -1)


Marginals = Mapping[tuple[str, str], Marginal]


class _ChannelSums:
    """Mean and squared deviations per channel, batch after batch, without cancellation (Chan et al.)."""

    def __init__(self) -> None:
        self.count = 0
        self.mean = self.square = torch.zeros((), dtype=torch.float64)

    def add(self, x: Tensor, dim: int) -> None:
        rows = x.detach().double().movedim(dim, 0).flatten(1).cpu()
        count, mean = rows.shape[1], rows.mean(dim=1)
        square = (rows - mean[:, None]).square().sum(dim=1)
        gap, total = mean - self.mean, self.count + count
        self.square = self.square + square + gap.square() * (self.count * count / total)
        self.mean = self.mean + gap * (count / total)
        self.count = total

    @property
    def spread(self) -> Tensor:
        return torch.sqrt(self.square / self.count)


def measured_marginals(
    model: nn.Module,
    anatomy: Anatomy,
    inputs: Iterable[object],
    *,
    synthetic: bool = False,
    progress: bool | None = None,
) -> dict[tuple[str, str], Marginal]:
    """(Unit, reading weight) -> what the weight sees of the unit, before the activation; and (block, "") ->
    its skip's signal.

    Args:
        inputs: batches as `example` takes them, or pairs of inputs and labels; labels are not used.
        progress: show how far it is; None shows it on a terminal or in a notebook.
    """
    taps = dict(anatomy.taps)
    skips = {(b.name, ""): _skip(b, anatomy.program) for b in anatomy.blocks if b.residual}
    taps |= {key: tap for key, tap in skips.items() if tap is not None}
    sums = {(tap.operation, tap.dim): _ChannelSums() for tap in taps.values()}
    wanted: dict[str, set[int]] = {}
    for name, dim in sums:
        wanted.setdefault(name, set()).add(dim)

    def observer(name: str, result: Tensor) -> None:
        for dim in wanted[name]:
            sums[name, dim].add(result, dim)

    how: dict[str, Any] = {"trace": anatomy.trace, "synthetic": synthetic, "progress": progress}
    observe(model, anatomy.program, inputs, wanted, observer, **how)
    found = {}
    for key, tap in taps.items():
        one = sums[tap.operation, tap.dim]
        if one.count and len(one.mean) == len(tap.owner):
            if not bool(one.square.isfinite().all()):
                raise InvalidExample(
                    f"calibration must give finite signals, got NaN or infinite ones at {key[0]}: leave such "
                    "inputs out"
                )
            found[key] = Marginal(one.mean, one.spread, tap)
    return found


def _skip(block: Block, program: Program) -> ObservationPoint | None:
    """Where a block's skip can be observed: after the BN that wrote its signal last, or at the add."""
    own = next((o for o in program if block.skip_bn and bn_of(o) == block.skip_bn), None)
    if own is None:
        end = next((o.position for o in program if o.name == block.branch_output), None)
        add = next((o for o in program if end in o.inputs), None)
        others = [k for k in add.inputs if k != end] if add is not None else []
        own = program[others[0]] if len(others) == 1 else None
    if own is None or own.shape is None or len(own.shape) != block.ndim:
        return None
    return ObservationPoint(own.name, block.channel_dim, np.arange(own.shape[block.channel_dim]))
