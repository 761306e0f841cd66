"""`hope.deft.partition`: split a trained network into a frozen core and trainable slack."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from hope._util.calls import Example, duplicate, unlabelled
from hope._util.finite import check_finite
from hope._util.memo import Memo
from hope._util.progress import MEASURE, RANK, READ, REFIT, SENSITIVITY, busy, run_of
from hope.deft import search
from hope.deft.bounds import Bounds, CoreSlackSplit, find_bounds
from hope.deft.capacities import Energies, unit_state
from hope.deft.checks import FRESH, Request, check_same
from hope.deft.elasticity import Lock, by_capacity, unit_partitions, walk
from hope.deft.freed import consolidate
from hope.deft.grow import growable, growth
from hope.deft.partition import Partition
from hope.deft.refitted_core import Ranking, RefittedCore, ranking
from hope.deft.separable import find_units
from hope.deft.targets import Targets, find_targets
from hope.errors import InvalidPartition
from hope.evaluate.dry_run import verify
from hope.evaluate.fidelity import Fidelity, images_for
from hope.methods.calibration import batches_of
from hope.methods.paper import Paper
from hope.statistics.checkpoint import Checkpoint
from hope.statistics.marginals import measured_marginals
from hope.storage.run import fingerprint
from hope.structure.analyse import read_model
from hope.structure.anatomy import Anatomy

_NONE = torch.zeros(1, dtype=torch.bool)
PHASES = (READ, MEASURE, SENSITIVITY, RANK, search.SLACK, REFIT)


def partition(  # noqa: PLR0913
    model: nn.Module,
    example: Example | None = None,
    *,
    free: float | None = None,
    grow: float | None = None,
    fidelity: float | None = None,
    percentile: float | None = None,
    by: str = "prune-cost",
    merge: bool | str | None = None,
    head: str | None = None,
    core: str | Sequence[str] = (),
    anatomy: Anatomy | None = None,
    seed: int = 0,
    sever: str | None = None,
    calibration: Iterable[Any] | str | None = None,
    reading: str = "mended",
    kernel: str = "zero-bias",
    progress: bool | None = None,
) -> Partition:
    """Split a trained network into core and slack, without data. The model is not changed.

    By default (`sever="refit"`) the core is what compression would keep: neurons are ranked by absorption,
    the share that `free` or `fidelity` asks for becomes slack, and every weight of the core is refitted to
    the original's activations (see `hope.Absorb`). Residual streams are completely core; slack writes into
    them, except in `source()`.

    With `sever="mask"` or "absorb", as in the paper: by prune cost, neurons with J_prune < J_lock are slack;
    J_lock is the percentile of all such costs (Section "DEFT"), or the largest of them if the percentile is
    near zero, or 1 if that is, too. By capacity, neurons with ‖f_i‖ ≤ τ are slack; τ is the percentile of all
    capacities after merging (Algorithm "DEFT"). Evictions are off, and the last neuron of a layer is core. A
    channel of a residual stream has one elasticity over all its writers and readers; its squared capacity is
    Σ_readers ‖W_c‖²·E z_c², with z_c the reader's input.

    Args:
        model: a trained model, with BN or with `calibration`.
        example: an input it can run on.
        free: the share of prunable neurons that become slack, with a refitted core.
        grow: instead of severing anything, widen layers and streams by this share: all new neurons are slack,
            and the core is the whole network, whose source task stays the same to the bit.
        fidelity: the smallest predicted fidelity (see `hope.fidelity`) of the source after severing: the most
            slack that keeps it, found by bisection. Default: 0.95, if nothing else says how much is slack.
        percentile: P, of costs or capacities. Higher values give more slack and keep less of the source.
        by: "prune-cost" or "capacity".
        merge: merge redundant neurons of the core, at a cost below J_lock; the freed neurons become slack.
            True or "sum": a parent approximates the sum of two neurons; "pair": the paper's; False: none.
            Default: True, or without a percentile none if that alone costs more; a refitted core has none.
        head: the module that a new task replaces; found automatically if only one layer writes the outputs.
            "frozen": nothing is replaced, both tasks share the head, which may be tied to an embedding.
        core: pattern or patterns (`*`, `?`) of layers and streams that are completely core.
        anatomy: the result of `hope.inspect`, to avoid a second analysis.
        seed: of the fresh weights of freed neurons.
        sever: "refit", "mask" or "absorb" (see `prepare`). Default: "refit", but "mask" with `percentile`,
            `merge` or by="capacity", or without an example.
        calibration: a few unlabelled batches to measure statistics on, instead of reading them from BNs (see
            `hope.Paper`), and to refit on (see `hope.Absorb`). Required without BN.
        reading, kernel: of the paper's equations (see `hope.Paper`), for "mask" and "absorb".
        progress: show progress; by default on a terminal or in a notebook.

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
        >>> part = hope.deft.partition(net, torch.zeros(1, 3, 8, 8), free=0.25)
        >>> part.head, sum(int((~mask).sum()) for mask in part.core.values())
        ('8', 4)
        >>> part = hope.deft.partition(net, torch.zeros(1, 3, 8, 8), percentile=50)
        >>> 0 < sum(int(mask.sum()) for mask in part.core.values()) < 16
        True
        >>> safe = hope.deft.partition(net, torch.zeros(1, 3, 8, 8), fidelity=0.95)
        >>> hope.deft.prepare(net, safe, head=3).cost.fidelity >= 0.95
        True
    """
    asked = Request.of(example, free, fidelity, percentile, by, merge, sever, grow)
    paper = Paper(merge=asked.merge, reading=reading, kernel=kernel)
    if asked.sever in FRESH and paper != Paper(merge=None):
        raise InvalidPartition(
            "reading= and kernel= must go with sever='mask' or 'absorb', got another: omit them"
        )
    patterns = [core] if isinstance(core, str) else list(core)
    common: dict[str, Any] = {"seed": seed, "sever": asked.sever, "example": example}
    with run_of(PHASES, progress):
        anatomy = _read(
            model, example, anatomy, progress, cuts=asked.sever in FRESH, streams=grow is not None
        )
        common["original"] = fingerprint(model)
        if grow is not None:
            return _grown(model, example, anatomy, head, patterns, asked.free, common)
        if not asked.refits:
            targets = find_targets(anatomy, head, patterns)
            with busy(MEASURE):
                batches = _batches(calibration, model, example, anatomy, progress)
            return _by_paper(model, anatomy, targets, asked, paper, batches, common, progress)
        targets = find_targets(
            anatomy, head, patterns, lambda unit: unit.kind == "layer" and unit.fixed is None
        )
        order = ranking(model, example, anatomy, targets, calibration, progress)
        return _by_absorption(model, order, targets, asked, common)


def _by_absorption(
    model: nn.Module, order: Ranking, targets: Targets, asked: Request, common: dict[str, Any]
) -> Partition:
    """A partition with a refitted core, of a given share of slack or of the most that keeps a fidelity."""
    known = Memo[str, Fidelity | None]()

    def make(free: float) -> Partition:
        return _refitted(order.core(free), targets, {**common, "known": known})

    if asked.fidelity is None:
        return make(asked.free)
    return search.largest(model, make, asked.fidelity)


def _refitted(core: RefittedCore, targets: Targets, common: dict[str, Any]) -> Partition:
    """The partition with a refitted core."""
    slack = core.slack
    locks = {unit.name: torch.ones(unit.neurons, dtype=torch.bool) for unit in targets.free}
    for name, neurons in slack.items():
        locks[name][list(neurons)] = False
    share = sum(map(len, slack.values())) / max(1, sum(map(len, locks.values())))
    cost = max((step.cost for step in core.steps), default=0.0)
    return Partition(
        anatomy=core.anatomy,
        head=targets.head,
        by="absorption",
        percentile=100 * share,
        threshold=cost,
        lock=Lock(cost, "absorption"),
        merge=None,
        core=targets.masks(locks),
        merges=(),
        freed={},
        costs={},
        capacities={},
        bounds=Bounds((), proven=False),
        left_alone=targets.left_alone,
        refitted=core,
        **common,
    )


def _grown(
    model: nn.Module,
    example: Example | None,
    anatomy: Anatomy,
    head: str | None,
    patterns: Sequence[str],
    share: float,
    common: dict[str, Any],
) -> Partition:
    """The partition of the wider network."""
    targets = find_targets(anatomy, head, patterns, growable)
    found = growth(targets.free, anatomy, share)
    wide, _ = read_model(found.widen(model), example)
    slack = {unit.name: found.slack(unit) for unit in find_units(wide)}
    targets = find_targets(wide, head, patterns, lambda unit: bool(slack.get(unit.name, _NONE).any()))
    fidelity = Fidelity(model, example, anatomy.program, images_for(anatomy.size().macs), trace=anatomy.trace)
    return Partition(
        anatomy=wide,
        head=targets.head,
        by="growth",
        percentile=100 * share,
        threshold=0.0,
        lock=Lock(0.0, "growth"),
        merge=None,
        core=targets.masks({unit.name: ~slack[unit.name] for unit in targets.units}),
        merges=(),
        freed={},
        costs={},
        capacities={},
        bounds=Bounds((), proven=True),
        left_alone=targets.left_alone,
        growth=found,
        known=Memo({"fidelity": fidelity}),
        **common,
    )


def _by_paper(
    model: nn.Module,
    anatomy: Anatomy,
    targets: Targets,
    asked: Request,
    paper: Paper,
    batches: list[Any] | None,
    common: dict[str, Any],
    progress: bool | None,
) -> Partition:
    """A partition by the paper's definitions, at a percentile or at the highest that keeps a fidelity."""
    literal = paper.literal("deviation")
    known = _energies(model, anatomy, batches, literal, progress)
    states = [unit_state(unit, known, merges=asked.merge is not None) for unit in targets.free]
    paths = [walk(state) for state in states]
    memo = Memo[str, Fidelity | None]()

    def make(percentile: float, merge: str | None) -> Partition:
        path = None if merge is None else replace(paper, merge=merge).path
        lock, found = unit_partitions(states, paths, percentile, path)
        threshold, locks = lock.threshold, {name: one.core for name, one in found.items()}
        merges = tuple(action for one in found.values() for action in one.merges)
        freed = {name: one.freed for name, one in found.items() if one.freed}
        merged = duplicate(model)  # their future inputs are unknown
        consolidate(merged, anatomy, merges, freed, None, clamp=paper.rewrite.clamp)
        energies = _energies(merged, anatomy, batches, literal, progress)
        left = {unit.name: unit_state(unit, energies, merges=False) for unit in targets.free}
        after = {name: state.capacities for name, state in left.items()}
        if asked.by == "capacity":
            threshold, locks = by_capacity(after, freed, percentile)
        core = targets.masks(locks)
        split = CoreSlackSplit(anatomy, targets.head, targets.units, core, merges, freed, energies, left)
        tau = threshold if asked.by == "capacity" else None
        return Partition(
            anatomy=anatomy,
            head=targets.head,
            by=asked.by,
            percentile=percentile,
            threshold=threshold,
            lock=lock,
            merge=merge,
            core=core,
            merges=merges,
            freed=freed,
            costs={name: one.costs for name, one in found.items()},
            capacities=after,
            bounds=find_bounds(split, tau, merge != "pair" or not merges),
            left_alone=targets.left_alone,
            clamp=paper.rewrite.clamp,
            known=memo,
            **common,
        )

    if asked.fidelity is None:
        return make(asked.percentile, asked.merge)
    return search.widest(model, make, asked, batches)


def _read(
    model: nn.Module,
    example: Example | None,
    anatomy: Anatomy | None,
    progress: bool | None,
    *,
    cuts: bool,
    streams: bool,
) -> Anatomy:
    """The network's structure.

    Args:
        cuts: whether it will be cut or widened, which a dry run checks.
        streams: whether channels of streams will be, too.
    """
    tensors = {n: t.detach().cpu() for n, t in [*model.named_parameters(), *model.named_buffers()]}
    if anatomy is None or anatomy.thins != streams:
        with busy(READ):
            anatomy, candidates = read_model(model, example, streams=streams, progress=progress)
            anatomy = verify(model, example, anatomy, candidates) if cuts else anatomy
    else:
        check_same(anatomy, tensors)
    check_finite(tensors, anatomy.parameters, InvalidPartition)
    return anatomy


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
    model: nn.Module, anatomy: Anatomy, batches: list[Any] | None, literal: bool, progress: bool | None
) -> Energies:
    """Second moments of a network's signals, from BNs or inputs.

    Args:
        literal: whether deviations are read as printed (see `hope.Paper`).
    """
    measured = None if batches is None else measured_marginals(model, anatomy, batches, progress=progress)
    return Energies(anatomy, Checkpoint.of(model, anatomy, literal=literal, measured=measured))
