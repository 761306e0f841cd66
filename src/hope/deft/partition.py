"""`hope.deft.partition`: split a trained network into a core that stays and slack that learns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from os import PathLike
from pathlib import Path

import torch
from torch import Tensor, nn

from hope._util.calls import Example, duplicate
from hope._util.tables import grid, text
from hope.anatomy.anatomy import Anatomy, read_model
from hope.anatomy.reasons import Cause, Reason
from hope.anatomy.steps import Merge
from hope.anatomy.units import Unit
from hope.deft import masks
from hope.deft.bounds import Bounds, find_bounds
from hope.deft.capacities import Energies, capacities, unit_state
from hope.deft.checks import check_finite, check_patterns, check_percentile, check_same
from hope.deft.elasticity import Lock, by_capacity, by_prune_cost, lock_threshold, prune_costs, walk
from hope.deft.separable import check_separable, find_head, find_units, matches
from hope.deft.vessels import consolidate
from hope.errors import InvalidPartition, NotSeparable
from hope.methods.pairs import PaperState
from hope.signals.bn import Numbers
from hope.storage.run import fingerprint

BY = ("prune-cost", "capacity")
MERGES: dict[bool | str, str | None] = {True: "sum", "sum": "sum", "pair": "pair", False: None}


@dataclass(frozen=True, eq=False)
class Partition:
    """A network split into core and slack. `print` it for a table, `plot` it for a picture.

    Attributes:
        anatomy: the network that was read.
        head: the module that a new task replaces.
        by: "prune-cost" or "capacity".
        percentile: P.
        threshold: what slack stays below: J_lock, or τ.
        lock: J_lock, below which redundant neurons are merged, and how it came about.
        merge: "sum", "pair" or None.
        core: layer or stream -> (units,) True where frozen: the elasticity map, E = 0 where core.
        merges: redundant neurons that a parent stands for, in order.
        freed: layer -> the vessels that merging releases; they are slack.
        costs: layer or stream -> (units,) J_prune when each unit left its path; infinite for the last one.
        capacities: layer or stream -> (units,) ‖f_i‖ after the merges, freed vessels not counted as readers.
        bounds: what severing and merging can do to the core.
        left_alone: what has no elasticity of its own and is core as a whole, with the reason.
        original: fingerprint of the checkpoint.
        seed: of the fresh weights of freed vessels.

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

    anatomy: Anatomy = field(repr=False)
    head: str
    by: str
    percentile: float
    threshold: float
    lock: Lock
    merge: str | None
    core: Mapping[str, Tensor] = field(repr=False)
    merges: tuple[Merge, ...] = field(repr=False)
    freed: Mapping[str, tuple[int, ...]] = field(repr=False)
    costs: Mapping[str, Tensor] = field(repr=False)
    capacities: Mapping[str, Tensor] = field(repr=False)
    bounds: Bounds = field(repr=False)
    left_alone: Mapping[str, Reason] = field(repr=False)
    original: str = field(repr=False)
    seed: int = 0

    @cached_property
    def units(self) -> list[Unit]:
        """Layers and streams with all their places."""
        return [group for group in find_units(self.anatomy) if group.name in self.core]

    @cached_property
    def frozen(self) -> dict[str, Tensor]:
        """Tensor -> a mask that broadcasts to it, True where it must not move."""
        return masks.frozen_masks(self.anatomy, self.units, self.core, self.head)

    @cached_property
    def severed(self) -> dict[str, Tensor]:
        """Weight -> a mask that broadcasts to it, True where it leads from slack to core."""
        return masks.severed_masks(self.anatomy, self.units, self.core, self.frozen, self.head)

    @cached_property
    def head_columns(self) -> dict[str, Tensor]:
        """The head's weights -> a mask that broadcasts to them, True where they read slack."""
        return masks.head_columns(self.anatomy, self.units, self.core, self.head)

    def consolidated(self, model: nn.Module) -> nn.Module:
        """A copy of the model with redundant neurons merged and their vessels emptied, nothing severed."""
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
        """Draw core, slack and freed vessels of every layer into a file (needs matplotlib)."""
        from hope.deft.picture import draw

        return draw(self, Path(path))

    def __str__(self) -> str:
        counts = self.counts()
        total = [sum(column) for column in zip(*counts.values(), strict=True)] or [0, 0, 0]
        number = f"{self.threshold:.4g}" + ("" if self.by == "capacity" else f" ({self.lock.reason})")
        table = grid(
            f"{self.anatomy.model}: {total[0]} core, {total[1]} slack, {total[2]} freed by merging "
            f"(by {self.by}, percentile {self.percentile:g}, threshold {number})",
            " layer or stream", "units", "core", "slack", "freed", "severed", "shock ≤", "merging δ", "share",
        )  # fmt: skip
        known = {bound.name: bound for bound in self.bounds.groups}
        for name, (locked, slack, freed) in counts.items():
            bound = known.get(name)
            numbers = (
                ["", "", "", ""]
                if bound is None
                else [f"{v:.3g}" for v in (bound.severed, bound.directed, bound.merging, bound.share)]
            )
            table.add_row(name, str(locked + slack + freed), str(locked), str(slack), str(freed), *numbers)
        words = "" if self.bounds.proven else " (not a bound: pair merges lose more than their δ says)"
        parts: list[object] = [table, f"unified cumulative bound {self.bounds.cumulative:.4g}{words}"]
        if self.bounds.left_out:
            parts.append(
                f"left out of it, since the capacity of what reads them is not known: "
                f"{', '.join(self.bounds.left_out)}"
            )
        parts.append(f"head: {self.head}")
        if self.left_alone:
            names = list(self.left_alone)
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            parts.append(f"core as a whole: {', '.join(names[:5])}{more}")
        return text(*parts)


def partition(
    model: nn.Module,
    example: Example | None = None,
    *,
    percentile: float = 20,
    by: str = "prune-cost",
    merge: bool | str = True,
    head: str | None = None,
    core: str | Sequence[str] = (),
    anatomy: Anatomy | None = None,
    seed: int = 0,
    progress: bool | None = None,
) -> Partition:
    """Split a trained network into core and slack, without data. The model is not changed.

    By prune cost, slack is what leaves during encoding at J_prune < J_lock, the percentile of all such costs
    (paper, Section "DEFT"); if that is near zero, the largest of them, and if that is too, 1. By capacity,
    slack is what has ‖f_i‖ ≤ τ, the percentile of all capacities after merging (Algorithm "DEFT"). Evictions
    are off, and the last neuron of a layer is core. A channel of a residual stream has one elasticity over
    all its writers and readers; its squared capacity is Σ_readers ‖W_c‖²·E z_c², z_c what the reader sees.

    Args:
        model: a trained model with BN.
        example: an input it can run on.
        percentile: P, of costs or capacities: more slack to learn with, less of the source kept.
        by: "prune-cost" or "capacity".
        merge: merge redundant neurons of the core, at a cost below J_lock, and release their vessels to the
            slack: True or "sum" for parents that stand for the sum of two neurons, "pair" for the paper's,
            False for none.
        head: the module that a new task replaces; found if one layer alone ends in the model's outputs.
        core: pattern or patterns (`*`, `?`) of layers and streams that are core as a whole.
        anatomy: what `hope.inspect` returned, to save reading the model again.
        seed: of the fresh weights of freed vessels.
        progress: show what is being done; by default on a terminal only.

    Raises:
        InvalidPartition: an argument makes no sense, or the weights are not finite.
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
    """
    check_percentile(percentile)
    if by not in BY:
        raise InvalidPartition(f"there is no partition by {by!r}: choose from {', '.join(BY)}")
    if merge not in MERGES:
        raise InvalidPartition(f"there is no merge {merge!r}: choose True, 'sum', 'pair' or False")
    core = [core] if isinstance(core, str) else core
    if anatomy is None:
        anatomy, _ = read_model(model, example, progress=progress)
    else:
        check_same(anatomy, _tensors(model))
    check_finite(_tensors(model), anatomy.parameters)
    check_patterns(anatomy, core)
    found = find_head(anatomy, head)
    groups = [group for group in find_units(anatomy) if found not in group.modules]
    left = check_separable(anatomy, groups, found, core)
    energies = Energies(anatomy, Numbers.of(model, anatomy))
    locked = {group.name for group in groups if matches(group.modules, core)}
    free = [group for group in groups if group.name not in locked]
    if not free:
        raise InvalidPartition(
            f"{anatomy.model} has nothing to split into core and slack: print(hope.inspect(...)) says why"
        )
    mode = MERGES[merge]
    states = [unit_state(group, energies) for group in free]
    paths = [walk(state) for state in states]
    lock = lock_threshold([cost for steps in paths for cost in prune_costs(steps)], percentile)
    threshold = lock.threshold
    fates = [by_prune_cost(s, steps, threshold, mode) for s, steps in zip(states, paths, strict=True)]
    known = {group.name: fate for group, fate in zip(free, fates, strict=True)}
    merges = tuple(one for fate in fates for one in fate.merges)
    freed = {name: fate.freed for name, fate in known.items() if fate.freed}
    merged = duplicate(model)
    consolidate(merged, anatomy, merges, freed, None)  # what freed vessels will listen to is not settled
    energies = Energies(anatomy, Numbers.of(merged, anatomy))
    after = {group.name: unit_state(group, energies) for group in free}
    locks = {name: fate.core for name, fate in known.items()}
    if by == "capacity":
        values = {name: state.capacities for name, state in after.items()}
        threshold, locks = by_capacity(values, freed, percentile)
    whole = {
        **dict.fromkeys(sorted(locked), Cause.ASKED.at()),
        **{one.name: one.reason for one in left},
    }
    core_masks = {
        group.name: locks.get(group.name, torch.ones(group.neurons, dtype=torch.bool)) for group in groups
    }
    return Partition(
        anatomy=anatomy,
        head=found,
        by=by,
        percentile=percentile,
        threshold=threshold,
        lock=lock,
        merge=mode,
        core=core_masks,
        merges=merges,
        freed=freed,
        costs={name: fate.costs for name, fate in known.items()},
        capacities={name: state.capacities for name, state in after.items()},
        bounds=find_bounds(
            anatomy,
            energies,
            groups,
            after,
            _totals(groups, after, core_masks, energies),
            core_masks,
            freed,
            {name: sum(one.distortion for one in fate.merges) for name, fate in known.items()},
            masks.frozen_masks(anatomy, groups, core_masks, found),
            found,
            threshold if by == "capacity" else None,
            mode != "pair" or not merges,
        ),
        left_alone=whole,
        original=fingerprint(model),
        seed=seed,
    )


def _totals(
    groups: Sequence[Unit], states: Mapping[str, PaperState], core: Mapping[str, Tensor], energies: Energies
) -> dict[str, float]:
    """E_core of every group; of one that is core as a whole only if its capacities are known."""
    totals = {}
    for group in groups:
        with suppress(NotSeparable):
            known = states[group.name].capacities if group.name in states else capacities(group, energies)
            totals[group.name] = float(known[core[group.name]].sum())
    return totals


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    return {name: t.detach().cpu() for name, t in [*model.named_parameters(), *model.named_buffers()]}
