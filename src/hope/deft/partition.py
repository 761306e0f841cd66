"""`Partition`: a network split into a frozen core and trainable slack."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path

from torch import Tensor, nn

from hope._util.calls import Example, duplicate
from hope._util.memo import Memo
from hope.actions import Merge
from hope.deft import masks
from hope.deft.bounds import Bounds
from hope.deft.elasticity import Lock
from hope.deft.freed import consolidate
from hope.deft.grow import Growth
from hope.deft.refitted_core import RefittedCore
from hope.deft.separable import find_units
from hope.errors import InvalidExample
from hope.evaluate.fidelity import Fidelity, images_for
from hope.reasons import Reason
from hope.structure.anatomy import Anatomy
from hope.structure.units import Unit


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """A network split into core and slack. `print` it for a table, `plot` it for a picture.

    Attributes:
        anatomy: the network.
        head: the module that a new task replaces; "" if the head is frozen.
        by: "prune-cost", "capacity", "absorption" if the core was refitted, or "growth".
        percentile: P; of a refitted core the share of slack, in percent.
        threshold: the upper limit of slack: J_lock, or τ.
        lock: J_lock, below which redundant neurons are merged, and its origin.
        merge: "sum", "pair" or None.
        core: layer or stream -> (neurons,) True if frozen: the elasticity map, E = 0 for core.
        merges: merges of redundant neurons, in order.
        freed: layer -> the neurons that merging frees; they are slack.
        costs: layer or stream -> (neurons,) J_prune when each was removed; infinite for the last one.
        capacities: layer or stream -> (neurons,) ‖f_i‖ after the merges; freed neurons do not count as
            readers.
        bounds: bounds on the effect of severing and merging on the core.
        left_alone: what has no elasticity and is completely core, with the reason.
        original: fingerprint of the checkpoint.
        seed: of the fresh weights of freed neurons.
        sever: how `prepare` severs by default.
        refitted: the refitted core, with sever="refit".
        growth: how the network was widened, with grow=; the partition is then of the wider network.
        example: an input of the network; synthetic inputs have its shape.
        clamp: whether parents have the BN numbers that the paper prints.
        known: a memo of its fidelity, which the partitions of one search share.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
        ... )
        >>> part = hope.deft.partition(net, torch.zeros(2, 4), percentile=50)
        >>> core, slack = int(part.core["0"].sum()), int((~part.core["0"]).sum())
        >>> core + slack, part.head, core > 0, slack > 0
        (8, '3', True, True)
    """

    anatomy: Anatomy
    head: str
    by: str
    percentile: float
    threshold: float
    lock: Lock
    merge: str | None
    core: Mapping[str, Tensor]
    merges: tuple[Merge, ...]
    freed: Mapping[str, tuple[int, ...]]
    costs: Mapping[str, Tensor]
    capacities: Mapping[str, Tensor]
    bounds: Bounds
    left_alone: Mapping[str, Reason]
    original: str
    seed: int = 0
    sever: str = "mask"
    example: Example | None = None
    refitted: RefittedCore | None = None
    growth: Growth | None = None
    clamp: bool = False
    known: Memo[str, Fidelity | None] = field(default_factory=Memo)

    def fidelity(self, model: nn.Module) -> Fidelity | None:
        """Fidelity to the source, on synthetic inputs; created once. None without an example, or if the
        network returns no tensor.

        Args:
            model: the partitioned model.
        """
        return self.known.of("fidelity", lambda: self._fidelity(model))

    def _fidelity(self, model: nn.Module) -> Fidelity | None:
        anatomy, count = self.anatomy, images_for(self.anatomy.size().macs)
        if self.example is not None:
            with suppress(InvalidExample):
                return Fidelity(model, self.example, anatomy.program, count, trace=anatomy.trace)
        return None

    @cached_property
    def units(self) -> list[Unit]:
        """Layers and streams with all their positions."""
        return [unit for unit in find_units(self.anatomy) if unit.name in self.core]

    @cached_property
    def locked(self) -> dict[str, Tensor]:
        """Tensor -> a mask that broadcasts to it, True if it belongs to the core."""
        return masks.frozen_masks(self.anatomy, self.units, self.core, self.head)

    @cached_property
    def severed(self) -> dict[str, Tensor]:
        """Weight -> a mask that broadcasts to it, True for weights from slack to core."""
        return masks.severed_masks(self.anatomy, self.units, self.core, self.locked, self.head)

    @cached_property
    def relearnable(self) -> dict[str, Tensor]:
        """Weight -> a mask, True for severed weights that may be trained, because slack has no other path to
        the head.
        """
        last = () if self.head else masks.last_weights(self.anatomy)
        whole = [unit for unit in self.units if unit.mixed or (self.fresh and self.core[unit.name].all())]
        return masks.relearnable(self.anatomy, whole, self.severed, last)

    @cached_property
    def frozen(self) -> dict[str, Tensor]:
        """Tensor -> a mask that broadcasts to it, True if frozen."""
        return self.locked | {name: self.locked[name] & ~mask for name, mask in self.relearnable.items()}

    @cached_property
    def head_columns(self) -> dict[str, Tensor]:
        """The head's weights -> a mask that broadcasts to them, True if they read slack."""
        return masks.head_columns(self.anatomy, self.units, self.core, self.head)

    def consolidated(self, model: nn.Module) -> nn.Module:
        """A copy of the model with redundant neurons merged and freed neurons reset, nothing severed; or with
        its refitted core; or wider.
        """
        if self.growth is not None:
            return self.growth.network(model, self.anatomy, self.core, self.seed)
        copy = duplicate(model)
        if self.refitted is not None:
            self.refitted.write(copy, self.seed)
            return copy
        consolidate(copy, self.anatomy, self.merges, self.freed, self.seed, clamp=self.clamp)
        return copy

    def counts(self) -> dict[str, tuple[int, int, int]]:
        """Layer or stream -> (core, slack without the freed, freed)."""
        found = {}
        for name, core in self.core.items():
            locked, freed = int(core.sum()), len(self.freed.get(name, ()))
            found[name] = (locked, len(core) - locked - freed, freed)
        return found

    @property
    def fresh(self) -> bool:
        """Whether slack is new, and nothing has to be severed: the core is refitted, or the network wider."""
        return self.refitted is not None or self.growth is not None

    @property
    def free(self) -> float:
        """The share of slack, freed neurons included, among all neurons that can be slack."""
        able = [~mask for name, mask in self.core.items() if name not in self.left_alone]
        return sum(int(mask.sum()) for mask in able) / max(1, sum(len(mask) for mask in able))

    def plot(self, path: str | PathLike[str]) -> Path:
        """Draw core, slack and freed neurons of every layer into a file (needs matplotlib)."""
        from hope.deft.picture import draw

        return draw(self, Path(path))

    @property
    def amount(self) -> str:
        """How much was asked for, in words."""
        return f"percentile {self.percentile:g}" if not self.fresh else f"{self.free:.1%} free"

    def __repr__(self) -> str:
        core, slack, freed = (sum(column) for column in zip((0, 0, 0), *self.counts().values(), strict=True))
        some = f"{core} core, {slack} slack" + (f", {freed} freed" if not self.fresh else "")
        return f"Partition({self.anatomy.model}: {some}, by {self.by}, {self.amount})"

    def __str__(self) -> str:
        from hope.deft.partition_table import render

        return render(self)

    def _repr_html_(self) -> str:
        from hope._util.tables import html
        from hope.deft.partition_table import parts_of

        return html(*parts_of(self))
