"""Several processes that heal together: each takes a part of every batch, and gradients are averaged."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor
from torch import distributed as dist

from hope.healing.inputs import Inputs


class Processes:
    """The processes of `torchrun` or `accelerate launch`, or of `torch.distributed` where the user has
    initialised it; else one.

    >>> Processes().rank, Processes().count
    (0, 1)
    """

    @cached_property
    def count(self) -> int:
        """How many there are; a launcher's are connected when it is first asked for."""
        if dist.is_available() and dist.is_torchelastic_launched() and not dist.is_initialized():
            dist.init_process_group()  # from the launcher's environment variables
        return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1

    @cached_property
    def rank(self) -> int:
        """Which of them this is."""
        return dist.get_rank() if self.count > 1 else 0

    def part(self, batch: Inputs) -> Inputs:
        """This process's part of a batch."""
        if self.count == 1:
            return batch
        return batch.taken(torch.arange(len(batch) // self.count * self.count)[self.rank :: self.count])

    def average(self, gradients: Sequence[Tensor]) -> None:
        """Average tensors over the processes, in place."""
        if self.count > 1:
            for one in gradients:
                dist.all_reduce(one)
                one /= self.count

    def first(self, value: float) -> float:
        """The first process's value."""
        if self.count == 1:
            return value
        found = [value]
        dist.broadcast_object_list(found, src=0)
        return found[0]

    def all(self, condition: bool) -> bool:
        """Whether it holds in all of them."""
        if self.count == 1:
            return condition
        found: list[object] = [None] * self.count
        dist.all_gather_object(found, condition)
        return all(found)
