"""Rebuild a saved network: from its weights, or at another budget from the original's."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any, Unpack

from torch import nn

from hope._util.calls import duplicate, unlabelled
from hope._util.finite import check_finite
from hope._util.notes import note
from hope.errors import (
    CheckpointMismatch,
    DamagedFolder,
    HopeError,
    InfeasibleBudget,
    InvalidAction,
    first_line,
)
from hope.rewrite.apply import reshape
from hope.rewrite.config import rewrite
from hope.rewrite.refit import compressed
from hope.schedule.budget import Budget, ReplayBudget, lists_budgets, optional_budget
from hope.storage.arrays import fingerprint, fit_dtypes, read_arrays
from hope.storage.codec import SENSELESS, damaged
from hope.storage.packed import unpacked_weights, with_copies
from hope.storage.record import PLAN, RUN
from hope.storage.run import Run, read_run


@lists_budgets(ReplayBudget)
def load(
    folder: str | os.PathLike[str],
    model: nn.Module,
    *,
    calibration: Iterable[Any] | None = None,
    **budget: Unpack[ReplayBudget],
) -> nn.Module:
    """Rebuild a saved network from a model of the original architecture. That model is not changed.

    At the saved budget its weights do not matter. At another budget the trajectory is replayed on it, so it
    must have the original weights; that is checked. Nothing is traced again and no code is loaded.

    Args:
        folder: a folder written by `save` or `save_finetuned`.
        model: a model of the same architecture as the original, uncut.
        calibration: the calibration batches of the run, for the refit at another budget; only synthetic
            ones are in the folder.
        **budget: another budget of the same run (see `hope.encode`).

    Raises:
        DamagedFolder: the folder is incomplete, altered, not written by HOPE, or from a newer version.
        CheckpointMismatch: the model has another architecture.
        InfeasibleBudget: the run does not reach the budget, or the weights were trained at another one.

    Example:
        >>> import tempfile, torch, hope
        >>> linear, bn = torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8)
        >>> net = torch.nn.Sequential(linear, bn, torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> folder = hope.encode(net, torch.zeros(2, 3), density=0.25).save(tempfile.mkdtemp())
        >>> hope.load(folder, net)[0], hope.load(folder, net, density=0.5)[0].out_features
        (Linear(in_features=3, out_features=2, bias=True), 4)
    """
    asked, run = optional_budget(**budget), read_run(folder, model)
    while True:
        try:
            return _load(run, model, asked, calibration)
        except DamagedFolder:  # unless another save has replaced the run and removed its files meanwhile
            now = read_run(folder, model)
            if now.files == run.files:
                raise
            run = now


def _load(run: Run, model: nn.Module, budget: Budget | None, calibration: Iterable[Any] | None) -> nn.Module:
    if budget is not None and not _is_trained_at(run, budget):
        return _replay(run, model, budget, calibration)
    stored = weights = read_arrays(run.folder, run.record.weights)
    small = duplicate(model)
    try:
        done = reshape(small, run.anatomy, run.trajectory.steps[: run.steps])
        rewrite(small, done.config_fields(small, run.anatomy))
        there = small.state_dict()
        weights = with_copies(unpacked_weights(weights, run.grids, small), run.anatomy.aliases)
        weights = {name: tensor for name, tensor in weights.items() if name in there or name in stored}
        fit_dtypes(small, weights)
        small.load_state_dict(weights, strict=True)
        check_finite(small.state_dict(), [name for name, _ in small.named_parameters()], DamagedFolder)
    except SENSELESS as error:
        raise CheckpointMismatch(
            f"{run.folder} must be of this {type(model).__name__}, got another network "
            f"({first_line(error)}): build the architecture that was compressed"
        ) from error
    return small


def _is_trained_at(run: Run, budget: Budget) -> bool:
    """Whether a budget is that of the fine-tuned weights; any other is refused."""
    if not run.record.trained:
        return False
    if run.trajectory.steps_at(budget) != run.steps:
        raise InfeasibleBudget(
            f"the budget must be that of the trained weights in {run.folder}, "
            f"{run.trajectory.size(run.steps).parameters:,} parameters, got {budget}: give none, or take it "
            "of the run that was trained"
        )
    return True


def _replay(run: Run, model: nn.Module, budget: Budget, calibration: Iterable[Any] | None) -> nn.Module:
    if fingerprint(model) != run.record.original:
        raise CheckpointMismatch(
            f"this {type(model).__name__} must have the weights that {run.folder} was made from, got "
            f"others: load the original checkpoint to get {budget}, or give no budget for the saved one"
        )
    steps = run.trajectory.steps[: run.trajectory.steps_at(budget)]
    inputs = run.inputs() if calibration is None else list(unlabelled(model, calibration))
    method = run.record.method
    if method.get("calibration") not in (None, "patterns") and method.get("refit") and not inputs:
        note(
            f"{run.folder} does not store the inputs of its refit, so {budget} is not refitted: pass the "
            "same batches with calibration="
        )
    fixed = run.details.settings.get("exclude", ())
    try:
        how = {
            "input_statistics": run.input_statistics(),
            "rewrite": run.rewrite,
            "inputs": inputs,
            "fixed": fixed,
        }
        return compressed(model, run.anatomy, steps, **how)
    except SENSELESS as error:
        if isinstance(error, HopeError) and not isinstance(error, InvalidAction):
            raise
        raise damaged(run.folder / PLAN, RUN, error) from error
