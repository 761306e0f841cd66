"""What a task has learned, apart from its core: taken out, put back, merged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from hope._util.calls import duplicate
from hope._util.hashing import hash_inputs
from hope.deft.heads import head_of, put_head
from hope.deft.input_size import InputSize
from hope.deft.masks import in_head
from hope.deft.statistics import Held, put_back, snapshot
from hope.errors import CheckpointMismatch, InvalidPartition

if TYPE_CHECKING:
    from hope.deft.tuning import Tuning


@dataclass(frozen=True, eq=False)
class Adapter:
    """One task's trainable entries, its head and its BN statistics."""

    values: Mapping[str, Tensor]  # parameter of the backbone -> its trainable entries
    head: nn.Module
    statistics: Mapping[str, Tensor]

    @classmethod
    def of(cls, tuning: Tuning) -> Adapter:
        """What a tuning has learned until now."""
        values = {
            name: parameter.detach()[_trainable(tuning, name, parameter)].clone()
            for name, parameter in tuning.model.named_parameters()
            if not in_head(name, tuning.head) and not bool(tuning.frozen[name].all())
        }
        statistics = {n: v for n, v in snapshot(tuning.model).items() if not in_head(n, tuning.head)}
        return cls(values, head_of(tuning.model, tuning.head), statistics)

    @torch.no_grad()
    def activate(self, tuning: Tuning) -> None:
        """Write it into the tuning's model, in place."""
        parameters = dict(tuning.model.named_parameters())
        for name, values in self.values.items():
            parameter = parameters[name]
            parameter.masked_scatter_(_trainable(tuning, name, parameter), values.to(parameter))
        like = next(iter(parameters.values()))
        put_head(tuning.model, tuning.head, self.head.to(like.device))
        put_back(tuning.model, self.statistics)


def _trainable(tuning: Tuning, name: str, parameter: Tensor) -> Tensor:
    return (~tuning.frozen[name]).to(parameter.device).expand(parameter.shape)


def core_hash(tuning: Tuning) -> str:
    """A hash of everything that a tuning freezes, and where."""
    parameters = dict(tuning.model.named_parameters())
    masks = {
        name: mask.cpu().expand(parameters[name].shape).contiguous()
        for name, mask in sorted(tuning.frozen.items())
        if name in parameters
    }
    core = [(name, mask, parameters[name].detach().cpu()[mask]) for name, mask in masks.items()]
    return str(hash_inputs([core, sorted(tuning.source_head.state_dict().items())]))


def check_core(tuning: Tuning, other: Tuning, name: str) -> None:
    """Refuse an adapter of another core."""
    own, its = core_hash(tuning), core_hash(other)
    if own != its:
        over = sum(
            int((mask & ~other.frozen[key]).expand(parameter.shape).sum())
            for key, parameter in tuning.model.named_parameters()
            if (mask := tuning.frozen.get(key)) is not None
            and key in other.frozen
            and parameter.shape == other.model.get_parameter(key).shape
        )
        overlap = f", which trains {over:,} entries of this core" if over else ""
        raise CheckpointMismatch(
            f"adapter {name!r} must have the core of this tuning, {own[:12]}, got {its[:12]}{overlap}: "
            "prepare both from one partition"
        )


def merged(tuning: Tuning, keep_source: bool) -> nn.Module:
    """A plain copy of the model without anything that freezes it."""
    if keep_source and tuning.shares_head:
        raise InvalidPartition(
            "merge_and_unload cannot keep the masked path of a source task that shares this head: call "
            "merge_and_unload(keep_source=False), or keep the tuning for source()"
        )
    model = duplicate(tuning.model)
    for module in model.modules():
        for key in [key for key, hook in module._forward_hooks.items() if isinstance(hook, Held)]:
            del module._forward_hooks[key]
    for key in [key for key, hook in model._forward_pre_hooks.items() if isinstance(hook, InputSize)]:
        del model._forward_pre_hooks[key], model._forward_pre_hooks_with_kwargs[key]
    return model.requires_grad_(True)
