"""`hope.deft.partition`: split a trained network into a frozen core and trainable slack."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hope._util.calls import Example, duplicate, unlabelled
from hope._util.finite import check_finite
from hope.actions import Action, Merge
from hope.deft import masks
from hope.deft.bounds import Bounds, CoreSlackSplit, find_bounds
from hope.deft.capacities import Energies, unit_state
from hope.deft.checks import MERGES, check_options, check_same, check_sever
from hope.deft.elasticity import (
    Lock,
    UnitPartition,
    by_capacity,
    by_prune_cost,
    lock_threshold,
    prune_costs,
    walk,
)
from hope.deft.freed import consolidate
from hope.deft.separable import find_units
from hope.deft.targets import find_subject
from hope.errors import InvalidExample, InvalidPartition
from hope.evaluate.fidelity import Fidelity, images_for
from hope.methods.calibration import batches_of
from hope.methods.pairs import PaperState
from hope.reasons import Reason
from hope.statistics.checkpoint import Checkpoint
from hope.statistics.marginals import measured_marginals
from hope.storage.run import fingerprint
from hope.structure.analyse import read_model
from hope.structure.anatomy import Anatomy
from hope.structure.units import Unit


@dataclass(frozen=True, eq=False, repr=False)
class Partition:
    """A network split into core and slack. `print` it for a table, `plot` it for a picture.

    Attributes:
        anatomy: the network.
        head: the module that a new task replaces.
        by: "prune-cost" or "capacity".
        percentile: P.
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
        example: an input of the network; synthetic inputs have its shape.

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
    _judges: list[Fidelity] = field(default_factory=list)

    def judge(self, model: nn.Module) -> Fidelity | None:
        """Fidelity to the source, on synthetic inputs; created once. None without an example, or if the
        network returns no tensor.

        Args:
            model: the partitioned model.
        """
        if not self._judges and self.example is not None:
            anatomy, count = self.anatomy, images_for(self.anatomy.size().macs)
            with suppress(InvalidExample):
                judge = Fidelity(model, self.example, anatomy.program, count, trace=anatomy.trace)
                self._judges.append(judge)
        return self._judges[0] if self._judges else None

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
    def voices(self) -> dict[str, Tensor]:
        """Weight -> a mask, True if slack may learn to write into a stream that is normalised as a whole."""
        return masks.voices(self.anatomy, self.units, self.severed)

    @cached_property
    def frozen(self) -> dict[str, Tensor]:
        """Tensor -> a mask that broadcasts to it, True if frozen."""
        return self.locked | {name: self.locked[name] & ~mask for name, mask in self.voices.items()}

    @cached_property
    def head_columns(self) -> dict[str, Tensor]:
        """The head's weights -> a mask that broadcasts to them, True if they read slack."""
        return masks.head_columns(self.anatomy, self.units, self.core, self.head)

    def consolidated(self, model: nn.Module) -> nn.Module:
        """A copy of the model with redundant neurons merged and freed neurons reset, nothing severed."""
        copy = duplicate(model)
        consolidate(copy, self.anatomy, self.merges, self.freed, self.seed)
        return copy

    def counts(self) -> dict[str, tuple[int, int, int]]:
        """Layer or stream -> (core, slack without the freed, freed)."""
        found = {}
        for name, core in self.core.items():
            locked, freed = int(core.sum()), len(self.freed.get(name, ()))
            found[name] = (locked, len(core) - locked - freed, freed)
        return found

    def plot(self, path: str | PathLike[str]) -> Path:
        """Draw core, slack and freed neurons of every layer into a file (needs matplotlib)."""
        from hope.deft.picture import draw

        return draw(self, Path(path))

    def __repr__(self) -> str:
        core, slack, freed = (sum(column) for column in zip((0, 0, 0), *self.counts().values(), strict=True))
        return (
            f"Partition({self.anatomy.model}: {core} core, {slack} slack, {freed} freed, by {self.by}, "
            f"percentile {self.percentile:g})"
        )

    def __str__(self) -> str:
        from hope.deft.summary import render

        return render(self)

    def _repr_html_(self) -> str:
        from hope._util.tables import html
        from hope.deft.summary import parts_of

        return html(*parts_of(self))


def partition(  # noqa: PLR0913
    model: nn.Module,
    example: Example | None = None,
    *,
    percentile: float | None = None,
    fidelity: float | None = None,
    by: str = "prune-cost",
    merge: bool | str = True,
    head: str | None = None,
    core: str | Sequence[str] = (),
    anatomy: Anatomy | None = None,
    seed: int = 0,
    sever: str = "mask",
    calibration: Iterable[Any] | str | None = None,
    progress: bool | None = None,
) -> Partition:
    """Split a trained network into core and slack, without data. The model is not changed.

    By prune cost, neurons with J_prune < J_lock are slack; J_lock is the percentile of all such costs (paper,
    Section "DEFT"), or the largest of them if the percentile is near zero, or 1 if that is, too. By capacity,
    neurons with ‖f_i‖ ≤ τ are slack; τ is the percentile of all capacities after merging (Algorithm "DEFT").
    Evictions are off, and the last neuron of a layer is core. A channel of a residual stream has one
    elasticity over all its writers and readers; its squared capacity is Σ_readers ‖W_c‖²·E z_c², with z_c the
    reader's input.

    Args:
        model: a trained model, with BN or with `calibration`.
        example: an input it can run on.
        percentile: P, of costs or capacities. Higher values give more slack and keep less of the source.
        fidelity: instead of a percentile, the smallest predicted fidelity (see `hope.fidelity`) of the source
            after severing: the highest whole percentile that keeps it, found by bisection. If neither is
            given: fidelity=0.95 by prune cost, without merging if that alone costs more; percentile=20 by
            capacity, or without an example.
        by: "prune-cost" or "capacity".
        merge: merge redundant neurons of the core, at a cost below J_lock; the freed neurons become slack.
            True or "sum": a parent approximates the sum of two neurons; "pair": the paper's; False: none.
        head: the module that a new task replaces; found automatically if only one layer writes the outputs.
        core: pattern or patterns (`*`, `?`) of layers and streams that are completely core.
        anatomy: the result of `hope.inspect`, to avoid a second analysis.
        seed: of the fresh weights of freed neurons.
        calibration: a few unlabelled batches to measure statistics on, instead of reading them from BNs (see
            `hope.Paper`). Required without BN.
        sever: "mask" or "absorb" (see `prepare`): it affects `fidelity`, and is the default of `prepare`.
        progress: show progress; by default on a terminal only.

    Raises:
        InvalidPartition: an argument is invalid, or the weights are not finite.
        NotSeparable: slack would reach core other than through weights; the message names the place.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        ...     torch.nn.Conv2d(8, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
        ...     torch.nn.AdaptiveAvgPool2d(1), torch.nn.Flatten(), torch.nn.Linear(8, 4),
        ... ).eval()
        >>> part = hope.deft.partition(net, torch.zeros(1, 3, 8, 8), percentile=50)
        >>> part.head, {name: mask.shape[0] for name, mask in part.core.items()}
        ('8', {'0': 8, '3': 8})
        >>> 0 < sum(int(mask.sum()) for mask in part.core.values()) < 16
        True
        >>> safe = hope.deft.partition(net, torch.zeros(1, 3, 8, 8), fidelity=0.95, merge=False)
        >>> hope.deft.prepare(net, safe, head=3).cost.fidelity >= 0.95
        True
    """
    asked = fidelity is not None
    percentile, fidelity = check_options(percentile, fidelity, example, by, merge)
    check_sever(sever)
    patterns = [core] if isinstance(core, str) else core
    anatomy = _read(model, example, anatomy, progress)
    subject = find_subject(anatomy, head, patterns)
    batches = _batches(calibration, model, example, anatomy, progress)
    known = _energies(model, anatomy, batches, progress)
    mode = MERGES[merge]
    states = [unit_state(unit, known, merges=mode is not None) for unit in subject.free]
    paths = [walk(state) for state in states]
    original, judges = fingerprint(model), list[Fidelity]()

    def make(percentile: float, mode: str | None) -> Partition:
        lock, fates = _fates(states, paths, percentile, mode)
        threshold, locks = lock.threshold, {name: fate.core for name, fate in fates.items()}
        merges = tuple(one for fate in fates.values() for one in fate.merges)
        freed = {name: fate.freed for name, fate in fates.items() if fate.freed}
        merged = duplicate(model)  # their future inputs are unknown
        consolidate(merged, anatomy, merges, freed, None)
        energies = _energies(merged, anatomy, batches, progress)
        left = {unit.name: unit_state(unit, energies, merges=False) for unit in subject.free}
        after = {name: state.capacities for name, state in left.items()}
        if by == "capacity":
            threshold, locks = by_capacity(after, freed, percentile)
        masks = subject.masks(locks)
        split = CoreSlackSplit(anatomy, subject.head, subject.units, masks, merges, freed, energies, left)
        return Partition(
            anatomy=anatomy,
            head=subject.head,
            by=by,
            percentile=percentile,
            threshold=threshold,
            lock=lock,
            merge=mode,
            core=split.core,
            merges=merges,
            freed=freed,
            costs={name: fate.costs for name, fate in fates.items()},
            capacities=after,
            bounds=find_bounds(split, threshold if by == "capacity" else None, mode != "pair" or not merges),
            left_alone=subject.left_alone,
            original=original,
            seed=seed,
            sever=sever,
            example=example,
            _judges=judges,
        )

    if fidelity is None:
        return make(percentile, mode)
    from hope.deft import search

    return (search.widest if asked else search.widest_if_merged)(model, make, mode, fidelity, batches)


def _read(
    model: nn.Module, example: Example | None, anatomy: Anatomy | None, progress: bool | None
) -> Anatomy:
    """The network's structure: nothing is cut, so no dry run is needed."""
    tensors = {n: t.detach().cpu() for n, t in [*model.named_parameters(), *model.named_buffers()]}
    if anatomy is None:
        anatomy, _ = read_model(model, example, progress=progress)
    else:
        check_same(anatomy, tensors)
    check_finite(tensors, anatomy.parameters, InvalidPartition)
    return anatomy


def _fates(
    states: Sequence[PaperState], paths: Sequence[Sequence[Action]], percentile: float, merge: str | None
) -> tuple[Lock, dict[str, UnitPartition]]:
    """J_lock over the paths of all units, and the partition of each unit."""
    lock = lock_threshold([cost for steps in paths for cost in prune_costs(steps)], percentile)
    return lock, {
        state.name: by_prune_cost(state, steps, lock.threshold, merge)
        for state, steps in zip(states, paths, strict=True)
    }


def _batches(
    calibration: Iterable[Any] | str | None,
    model: nn.Module,
    example: Example | None,
    anatomy: Anatomy,
    progress: bool | None,
) -> list[Any] | None:
    """Inputs that can be iterated over twice: the network is measured before and after its merges."""
    if calibration is None:
        return None
    batches, _ = batches_of(calibration, model, example, anatomy, progress=progress)
    return list(unlabelled(model, batches))


def _energies(
    model: nn.Module, anatomy: Anatomy, batches: list[Any] | None, progress: bool | None
) -> Energies:
    """Second moments of a network's signals, from BNs or inputs."""
    measured = None if batches is None else measured_marginals(model, anatomy, batches, progress=progress)
    return Energies(anatomy, Checkpoint.of(model, anatomy, measured=measured))
