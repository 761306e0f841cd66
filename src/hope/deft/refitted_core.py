"""Cores that are chosen and refitted as compression does it: `sever="refit"`.

Slack is what `hope.encode` would remove: neurons are ranked by absorption, and the layer-wise refit fits the
rest to the original's activations. The freed places become slack with fresh incoming weights and zero
outgoing ones, so the network starts as exactly the core. Residual streams are completely core: slack writes
into them through weights that are zero in `source()`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from hope._util.calls import Example
from hope._util.progress import MEASURE, RANK, busy
from hope._util.tensors import get
from hope.actions import Action
from hope.deft.freed import consolidate
from hope.deft.targets import Targets
from hope.errors import InvalidPartition
from hope.evaluate.fidelity import Fidelity, images_for
from hope.evaluate.sensitivity import with_sensitivities
from hope.methods.absorb import Absorb
from hope.reasons import LISTED
from hope.rewrite.apply import kept_places, outcome
from hope.rewrite.refit import compressed
from hope.schedule.search_space import SearchSpace, search_space, waiting
from hope.structure.anatomy import Anatomy


@dataclass(frozen=True, eq=False)
class Ranking:
    """The removals of absorption in order, and what a refit needs."""

    model: nn.Module
    space: SearchSpace
    steps: tuple[Action, ...]
    able: int  # neurons that can be slack
    progress: bool | None

    @property
    def anatomy(self) -> Anatomy:
        """The network."""
        return self.space.anatomy

    def core(self, free: float) -> RefittedCore:
        """The refitted core with so large a share of slack."""
        steps = self.steps[: round(free * self.able)]
        known = self.space.statistics
        small = compressed(
            self.model,
            self.anatomy,
            steps,
            input_statistics=known.input_statistics,
            rewrite=self.space.method.rewrite,
            inputs=known.inputs,
            progress=self.progress,
        )
        return RefittedCore(self.anatomy, steps, small)


@dataclass(frozen=True, eq=False)
class RefittedCore:
    """A compressed network that becomes the core of the original's architecture."""

    anatomy: Anatomy  # of the original
    steps: tuple[Action, ...]  # the removals
    model: nn.Module  # the network after them, refitted

    @property
    def slack(self) -> dict[str, tuple[int, ...]]:
        """Layer -> the removed neurons."""
        return outcome(self.anatomy, self.steps).removed

    @torch.no_grad()
    def write(self, model: nn.Module, seed: int) -> None:
        """Write the core into a copy of the original, in place, with fresh slack."""
        consolidate(model, self.anatomy, (), self.slack, seed)
        kept = kept_places(self.anatomy, outcome(self.anatomy, self.steps))
        for name, small in self.model.state_dict(keep_vars=True).items():
            tensor = get(model, name)
            places = [
                kept.get((name, dim), torch.arange(size)).to(tensor.device)
                for dim, size in enumerate(tensor.shape)
            ]
            if places:
                tensor[torch.meshgrid(*places, indexing="ij")] = small.detach()


def ranking(
    model: nn.Module,
    example: Example | None,
    anatomy: Anatomy,
    targets: Targets,
    calibration: Iterable[Any] | str | None,
    progress: bool | None,
) -> Ranking:
    """Rank the neurons that may be slack.

    Args:
        calibration: of the method; without it, it is data-free.
    """
    method = Absorb(calibration="patterns" if calibration is None else calibration)
    with busy(MEASURE, progress):
        statistics = method.collect(model, example, anatomy, progress=progress)
    space = search_space(statistics, method.resolve(statistics), evict=False)
    if space.method.needs_sensitivity:
        probes = Fidelity(model, example, count=images_for(anatomy.size().macs), inputs=statistics.inputs)
        space = with_sensitivities(model, space, probes, progress=progress)
    allowed = {unit.name for unit in targets.free}
    space = replace(space, states=tuple(state for state in space.states if state.name in allowed))
    if not space.states:
        waits = waiting(anatomy, space.left_alone)
        way = f"{waits}; pass a few inputs, calibration=batches" if waits else LISTED
        raise InvalidPartition(f"{anatomy.model} must have a neuron that can be slack, got none: {way}")
    able = sum(state.neurons for state in space.states)
    with busy(RANK, progress):
        return Ranking(model, space, tuple(space.steps()), able, progress)
