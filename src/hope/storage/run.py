"""Save a cut network as data and load it: a JSON plan and safetensors, no code, no pickle.

A folder holds `trajectory.json` (steps and anatomy), `weights-….safetensors` (the result), and after
absorption `moments-….safetensors`. The JSON, written last, names the others by their hash and has its own.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import msgspec
import numpy as np
from torch import Tensor, nn

from hope._util.digest import digest_of
from hope._util.locks import locked
from hope._util.names import current_settings
from hope.actions import Action, Rewrite, kinds
from hope.actions.registered import unknown_kind
from hope.errors import (
    DamagedFolder,
)
from hope.methods import method_from_dict
from hope.rewrite.apply import cut
from hope.rewrite.rounded import grids_of
from hope.schedule.budget import optional_budget
from hope.schedule.trajectory import Trajectory
from hope.statistics.input_statistics import InputStatistics
from hope.storage.arrays import (
    Arrays,
    check_architecture,
    clean,
    fingerprint,
    state,
    write_arrays,
)
from hope.storage.codec import SENSELESS, Plain, damaged, read_record, stored_files, write_record
from hope.storage.moments import read_moments, write_moments
from hope.storage.packed import packed_weights, without_copies
from hope.storage.record import (
    PLAN,
    RUN,
    AnatomyShapes,
    Details,
    RunRecord,
    StoredAnatomy,
    run_format,
)
from hope.storage.stored_inputs import read_inputs, write_inputs
from hope.structure.anatomy import Anatomy

__all__ = [
    "BY_HAND", "PLAN", "RUN", "Details", "Run", "digest_of", "fingerprint", "read_run", "save_run",
]  # fmt: skip

BY_HAND = "by hand"  # the method of a run whose actions were given
UNSAVED = Arrays(file="", sha256="")


def save_run(
    folder: str | os.PathLike[str], model: nn.Module, anatomy: Anatomy, steps: Sequence[Action]
) -> Path:
    """Apply actions to a copy of a model and save the result.

    Args:
        folder: the target; created if it does not exist. An earlier run in it is replaced at the end.
        model: the original, uncut model.
        anatomy: the result of `hope.inspect` for it.
        steps: the actions, in order.

    Returns:
        The folder.

    Example:
        >>> import tempfile, torch, hope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> anatomy = hope.inspect(net, torch.zeros(1, 4))
        >>> folder = hope.save(tempfile.mkdtemp(), net, anatomy, [hope.Prune("0", [5, 6, 7])])
        >>> fresh = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> hope.load(folder, fresh)[0]
        Linear(in_features=4, out_features=5, bias=True)
    """
    run = Run.of(fingerprint(model), Trajectory.of(anatomy, steps), {"name": BY_HAND})
    return write_run(Path(folder), run, state(cut(model, anatomy, steps)))


@dataclass(frozen=True)
class Run:
    """A run as data: its record, and what the record describes. `Encoding`, a saved folder and the page share
    it.

    Attributes:
        record: what is saved, but for the tensors.
        anatomy: the network that the steps refer to.
        trajectory: the steps.
        folder: where it was read from.
        held: input statistics of a run that was not read from a folder.
    """

    record: RunRecord
    anatomy: Anatomy
    trajectory: Trajectory
    folder: Path = Path("run")
    held: Mapping[str, InputStatistics] | None = None

    @classmethod
    def of(
        cls,
        original: str,
        trajectory: Trajectory,
        method: Mapping[str, Any],
        *,
        held: Mapping[str, InputStatistics] | None = None,
        **record: Any,
    ) -> Run:
        """A run that is not saved, with more fields of its record."""
        anatomy, predicted = trajectory.anatomy, trajectory.predicted
        made = RunRecord(
            original=original,
            weights=UNSAVED,
            method=dict(method),
            trajectory=cast("Any", trajectory.steps),
            anatomy=StoredAnatomy.of(anatomy),
            stops=trajectory.stops,
            predicted={name: tuple(map(int, counts)) for name, counts in predicted.items()},
            **{"steps": len(trajectory), **record},
        )
        return cls(made, anatomy, trajectory, held=held)

    def changed(self, **fields: Any) -> Run:
        """The same run with other fields of its record."""
        return replace(self, record=msgspec.structs.replace(self.record, **fields))

    @property
    def steps(self) -> int:
        """How many of the trajectory's steps are taken."""
        return self.record.steps

    @property
    def details(self) -> Details:
        """For reports."""
        return self.record.details

    @property
    def method(self) -> str:
        """The method's name."""
        return str(self.record.method["name"])

    @property
    def weights(self) -> Path:
        """Path of the saved weights."""
        return self.record.weights.inside(self.folder)

    @property
    def files(self) -> list[Arrays]:
        """The files of tensors that the record names."""
        some = (self.record.weights, self.record.moments, self.record.inputs)
        return [one for one in some if one is not None]

    def steps_for(self, budget: Mapping[str, Any]) -> int:
        """How many steps a budget needs, given as keywords; those of the saved network without one."""
        asked = optional_budget(**budget)
        return self.steps if asked is None else self.trajectory.steps_at(asked)

    @property
    def grids(self) -> dict[str, tuple[int, int]]:
        """Rounded weight -> bits and group of its grid."""
        return grids_of(self.trajectory.steps[: self.steps])

    @property
    def rewrite(self) -> Rewrite:
        """How its steps rewrite weights."""
        method = method_from_dict(self.record.method)
        return method.rewrite if method is not None else Rewrite()

    def inputs(self) -> list[Any]:
        """The saved inputs of the refit, batch by batch."""
        return read_inputs(self.folder, self.record.inputs)

    def input_statistics(self) -> dict[str, InputStatistics]:
        """Input statistics of weights, for its absorptions."""
        return read_moments(self.folder, self.record.moments) if self.held is None else dict(self.held)


def write_run(folder: Path, run: Run, weights: Mapping[str, Tensor], inputs: Sequence[Any] = ()) -> Path:
    """Write a folder: the files of tensors first, then the record that names them.

    Args:
        weights: after the run's steps.
        inputs: that weights were fitted on, if they are to be saved.
    """
    once = without_copies(weights, run.anatomy.aliases)
    with locked(folder):
        earlier = stored_files(folder / PLAN, RUN)
        saved = run.changed(
            weights=write_arrays(folder, "weights", packed_weights(once, run.grids)),
            moments=write_moments(folder, run.held),
            inputs=write_inputs(folder, inputs),
        )
        write_record(folder / PLAN, RUN, saved.record)
        clean(folder, earlier, saved.files)
    return folder


def read_run(folder: str | os.PathLike[str], model: nn.Module | None = None) -> Run:
    """Read a saved run's plan, without its weights.

    Args:
        model: the model of its architecture, if known: other shapes are refused.

    Raises:
        DamagedFolder: the folder is incomplete, altered, not written by HOPE, or from a newer version.
        CheckpointMismatch: the model has another architecture.
    """
    folder = Path(folder)

    def before(plan: Plain) -> None:
        kind = unknown_kind(plan.get("trajectory"))
        if kind is not None:
            known = ", ".join(one.kind for one in kinds())
            raise DamagedFolder(
                f"{folder / PLAN} has invalid content (Invalid value {kind!r}: "
                f"actions must be one of {known}): import the module that registers it, or save the run again"
            )
        if model is not None:
            stored = msgspec.convert(plan, AnatomyShapes).anatomy
            bare = Anatomy(stored.model, (), (), (), stored.shapes, frozenset(), {}, {}, {})
            check_architecture(bare, model, folder)

    record = read_record(folder / PLAN, run_format(), before)
    anatomy = record.anatomy.read()
    try:
        predictions = record.predictions().items()
        predicted = {name: np.array(counts, dtype=np.int64) for name, counts in predictions}
        trajectory = Trajectory(record.trajectory, anatomy, record.stops, predicted)
        _ = trajectory.sizes, trajectory.counts("size")  # its steps fit its anatomy
    except SENSELESS as error:
        raise damaged(folder / PLAN, RUN, error) from error
    details = replace(record.details, settings=current_settings(record.details.settings))
    method = current_settings({"method": record.method})["method"]
    return Run(record, anatomy, trajectory, folder).changed(method=method, details=details)
