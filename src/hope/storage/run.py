"""Save a cut network as data and load it again: a JSON plan and safetensors, no code, no pickle.

A folder holds `trajectory.json` (what was done, to what, and the anatomy it refers to) and
`weights-….safetensors` (the result). The JSON names the weights by their hash and carries a hash of itself;
it is written last, so a folder is either as it was or complete.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from hope._util.calls import duplicate
from hope._util.files import write_file
from hope.anatomy.anatomy import Anatomy
from hope.anatomy.reasons import Cause, Reason
from hope.anatomy.sizes import sizes
from hope.anatomy.steps import AnyStep, Step
from hope.errors import CheckpointMismatch, DamagedFolder, InvalidAction, first_line
from hope.run.budget import one_budget
from hope.run.trajectory import Trajectory
from hope.signals.intake import Intake
from hope.storage.plain import from_plain, to_plain
from hope.surgery.apply import cut, operate

FORMAT = "hope-run"
VERSION = 1
PLAN = "trajectory.json"
BY_HAND = "by hand"  # the method of a run whose actions were given
MOMENTS = ("mean", "covariance", "taps", "variance")


def fingerprint(model: nn.Module) -> str:
    """A hash of a checkpoint: names, shapes, types and contents of everything in its `state_dict`."""
    digest = hashlib.sha256()
    for name, tensor in sorted(_state(model).items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if tensor.numel():
            digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict's tensors on the CPU, contiguous."""
    return {
        name: value.detach().cpu().contiguous()
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }


@dataclass(frozen=True)
class Details:
    """What a run tells beyond what replaying it needs, for reports. Older runs have none of it.

    Attributes:
        measures: unit -> what each of its neurons counted in the original network: ‖f_i‖, or a score.
        left_alone: layers and blocks that the method could not price, with the reason.
        source: "model", "weights" and "input" as they were named on the command line.
        fidelities: (steps, predicted fidelity) where it was looked at.
        settings: the options that the run was made with (see `run.checkpoint`).
    """

    measures: Mapping[str, Sequence[float]] = field(default_factory=dict)
    left_alone: Mapping[str, Reason] = field(default_factory=dict)
    source: Mapping[str, str] = field(default_factory=dict)
    fidelities: Sequence[tuple[int, float]] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """What there is of it, as plain data."""
        measures = {name: [_short(c) for c in some] for name, some in self.measures.items()}
        entries = {
            "measures": measures,
            "left_alone": {name: str(reason) for name, reason in self.left_alone.items()},
            "source": dict(self.source),
            "fidelities": [[steps, _short(value)] for steps, value in self.fidelities],
            "settings": dict(self.settings),
        }
        return {name: entry for name, entry in entries.items() if entry}

    @classmethod
    def from_json(cls, plan: Mapping[str, Any]) -> Details:
        """The reverse of `to_json`; whatever is missing is empty."""
        measures = {name: tuple(some) for name, some in plan.get("measures", {}).items()}
        left_alone = plan.get("left_alone", {})
        fidelities = [(int(steps), float(value)) for steps, value in plan.get("fidelities", ())]
        return cls(
            measures,
            {name: Cause.TOLD.at(detail=words) for name, words in left_alone.items()},
            dict(plan.get("source", {})),
            tuple(fidelities),
            dict(plan.get("settings", {})),
        )


def _short(value: float) -> float:
    """A number as precise as a picture needs.

    >>> _short(0.123456789)
    0.123457
    """
    return float(f"{value:.6g}")


def save_run(
    folder: str | os.PathLike[str], model: nn.Module, anatomy: Anatomy, steps: Sequence[Step]
) -> Path:
    """Carry out actions on a copy of a model and save the result.

    Args:
        folder: where to; made if it is not there. An earlier run in it is replaced, and stays whole until
            then.
        model: the original, uncut model.
        anatomy: what `hope.inspect` returned for it.
        steps: what to do, in order.

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
    small = cut(model, anatomy, steps)
    return save_trajectory(folder, model, small, anatomy, Trajectory.of(anatomy, steps), len(steps), BY_HAND)


def save_trajectory(
    folder: str | os.PathLike[str],
    model: nn.Module,
    small: nn.Module,
    anatomy: Anatomy,
    trajectory: Trajectory,
    steps: int,
    method: str,
    intakes: Mapping[str, Intake] | None = None,
    details: Details | None = None,
) -> Path:
    """Save a whole run: every step, the moments that absorptions need, the weights after the first `steps`
    of them, and details for a report.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    weights = save({name: tensor.clone() for name, tensor in _state(small).items()})
    weights_hash = hashlib.sha256(weights).hexdigest()
    weights_name = f"weights-{weights_hash[:12]}.safetensors"
    written = {weights_name}
    plan: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "original": fingerprint(model),
        "weights": {"file": weights_name, "sha256": weights_hash},
        "method": method,
        "steps": steps,
        "trajectory": msgspec.to_builtins(list(trajectory.steps)),
        "anatomy": to_plain(anatomy),
    }
    plan.update((details or Details()).to_json())
    if trajectory.stops:
        plan["stops"] = list(trajectory.stops)
    if intakes:
        moments = save(_arrays(intakes))
        moments_hash = hashlib.sha256(moments).hexdigest()
        moments_name = f"moments-{moments_hash[:12]}.safetensors"
        plan["moments"] = {
            "file": moments_name,
            "sha256": moments_hash,
            "intakes": [[v.weight, v.dim, v.repeat, v.bn, v.bias] for v in intakes.values()],
        }
        write_file(folder / moments_name, moments)
        written.add(moments_name)
    plan["sha256"] = digest_of(plan)
    write_file(folder / weights_name, weights)
    write_file(folder / PLAN, json.dumps(plan, indent=None, separators=(",", ":")).encode())
    for stale in [*folder.glob("weights-*.safetensors"), *folder.glob("moments-*.safetensors")]:
        if stale.name not in written:
            stale.unlink(missing_ok=True)
    return folder


def _arrays(intakes: Mapping[str, Intake]) -> dict[str, Tensor]:
    """Moments as float32, which is what they were rounded to when they were made."""
    return {
        f"{view.weight}/{name}": getattr(view, name).float().contiguous()
        for view in intakes.values()
        for name in MOMENTS
    }


def digest_of(plan: dict[str, Any]) -> str:
    """A hash of a plan, without the hash that it carries."""
    body = {key: value for key, value in plan.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True)
class Run:
    """A saved run, read and checked.

    Attributes:
        folder: where it was read from.
        original: fingerprint of the checkpoint that was compressed.
        anatomy, trajectory, steps, method: as in the `Encoding` that was saved.
        weights: path of the saved weights.
        weights_hash: their SHA-256.
        moments: what the plan says of the saved moments, if there are any.
        details: what a report can tell beyond that.
    """

    folder: Path
    original: str
    anatomy: Anatomy
    trajectory: Trajectory
    steps: int
    method: str
    weights: Path
    weights_hash: str
    moments: dict[str, Any] | None = None
    details: Details = field(default_factory=Details)

    def intakes(self) -> dict[str, Intake]:
        """The moments that absorptions were made with."""
        if self.moments is None:
            return {}
        path = self.folder / Path(self.moments["file"]).name
        arrays = {name: t.double() for name, t in read_tensors(path, self.moments["sha256"]).items()}
        found = {}
        for weight, dim, repeat, bn, bias in self.moments["intakes"]:
            some = {name: arrays[f"{weight}/{name}"] for name in MOMENTS}
            found[weight] = Intake(weight, dim, **some, repeat=repeat, bn=bn, bias=bias)
        return found


def read_run(folder: str | os.PathLike[str]) -> Run:
    """Read a saved run's plan, without its weights."""
    folder = Path(folder)
    plan = read_plan(folder / PLAN, "run", FORMAT, VERSION)
    try:
        anatomy = from_plain(plan["anatomy"])
        done = msgspec.convert(plan["trajectory"], tuple[AnyStep, ...])
        trajectory = Trajectory(done, sizes(anatomy, done), tuple(plan.get("stops", ())))
        weights = folder / Path(plan["weights"]["file"]).name
        return Run(
            folder,
            plan["original"],
            anatomy,
            trajectory,
            plan["steps"],
            plan["method"],
            weights,
            plan["weights"]["sha256"],
            plan.get("moments"),
            Details.from_json(plan),
        )
    except (AttributeError, KeyError, TypeError, ValueError, InvalidAction) as error:
        raise DamagedFolder(
            f"{folder / PLAN} does not say what it should ({error!r}): save the run again"
        ) from error


def load(
    folder: str | os.PathLike[str],
    model: nn.Module,
    *,
    density: float | None = None,
    params: float | None = None,
    macs: float | None = None,
    steps: int | None = None,
) -> nn.Module:
    """Rebuild a saved network from a fresh model of the original architecture. The fresh model is not
    changed.

    At the saved budget the fresh model's weights do not matter. At another budget the trajectory is replayed
    on it, so it must have the original weights; that is checked. Nothing is traced again and no code is
    loaded.

    Args:
        folder: what `save` wrote.
        model: a model of the same architecture as the original, uncut.
        density, params, macs, steps: another moment of the same run; at most one.

    Raises:
        DamagedFolder: the folder is incomplete, altered, not one of ours, or from a newer version.
        CheckpointMismatch: the model is of another architecture.

    Example:
        >>> import tempfile, torch, hope
        >>> linear, bn = torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8)
        >>> net = torch.nn.Sequential(linear, bn, torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> folder = hope.encode(net, torch.zeros(2, 3), density=0.25).save(tempfile.mkdtemp())
        >>> hope.load(folder, net)[0], hope.load(folder, net, density=0.5)[0].out_features
        (Linear(in_features=3, out_features=2, bias=True), 4)
    """
    run = read_run(folder)
    _same_architecture(run.anatomy, model, run.folder)
    given = {"density": density, "params": params, "macs": macs, "steps": steps}
    if any(value is not None for value in given.values()):
        return _replay(run, model, given)
    weights = read_tensors(run.weights, run.weights_hash)
    small = duplicate(model)
    try:
        operate(small, run.anatomy, run.trajectory.steps[: run.steps], arithmetic=False)
        _fit_dtypes(small, weights)
        small.load_state_dict(weights, strict=True)
    except (InvalidAction, RuntimeError) as error:
        raise CheckpointMismatch(
            f"{run.folder} does not fit this {type(model).__name__}: {first_line(error)}"
        ) from error
    return small


def _replay(run: Run, model: nn.Module, given: dict[str, float | None]) -> nn.Module:
    budget = one_budget(**given)
    if fingerprint(model) != run.original:
        raise CheckpointMismatch(
            f"{run.folder} was made from other weights than this {type(model).__name__} has: "
            f"load the original checkpoint to get {budget}, or give no budget for the saved one"
        )
    steps = run.trajectory.steps[: run.trajectory.steps_to(budget.unit, budget.value)]
    return cut(model, run.anatomy, steps, intakes=run.intakes())


def read_tensors(path: Path, digest: str) -> dict[str, Tensor]:
    """The arrays of a file, whose hash must be the one given."""
    if not path.is_file():
        raise DamagedFolder(f"{path} is missing: copy the whole folder, or save the run again")
    if _file_hash(path) != digest:
        raise DamagedFolder(f"{path} is truncated or altered: copy the folder again, or save the run again")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise DamagedFolder(f"{path} is not a safetensors file: {error}") from error


def _file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def read_plan(path: Path, what: str, form: str, version: int) -> dict[str, Any]:
    """A JSON plan that this package wrote, checked: its format, its version, and that nobody altered it."""
    if not path.is_file():
        raise DamagedFolder(f"{path.parent} is not a saved {what}: it has no {path.name}")
    try:
        plan = json.loads(path.read_bytes())
    except ValueError as error:
        raise DamagedFolder(
            f"{path} is truncated or not JSON: copy the folder again, or save the {what} again"
        ) from error
    if not isinstance(plan, dict) or plan.get("format") != form:
        raise DamagedFolder(f"{path} was not written by this package")
    if plan.get("version") != version:
        raise DamagedFolder(
            f"{path} has version {plan.get('version')}, this package reads {version}: update the package"
        )
    if plan.get("sha256") != digest_of(plan):
        raise DamagedFolder(
            f"{path} was altered after it was saved: copy the folder again, or save the {what} again"
        )
    return plan


def _same_architecture(anatomy: Anatomy, model: nn.Module, folder: Path) -> None:
    shapes = {
        name: tuple(tensor.shape) for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    }
    for name, shape in anatomy.shapes.items():
        if shapes.get(name) != shape:
            found = f"has shape {shapes[name]}" if name in shapes else "is missing"
            raise CheckpointMismatch(
                f"{folder} was saved from a {anatomy.model} where {name} has shape {shape}; "
                f"in this {type(model).__name__} it {found}: "
                "build the architecture that was compressed, uncut"
            )


def _fit_dtypes(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Take on the saved floating types, so that a half-precision run comes back in half precision."""
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if name in weights and value.dtype != weights[name].dtype:
            value.data = value.data.to(weights[name].dtype)
