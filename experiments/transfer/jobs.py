"""The paper's cross-domain transfer: CIFAR-100 superclasses to SVHN, DEFT against its baselines.

Every piece of work (a pre-training, one point of a sweep, one fine-tuning) leaves a file in the folder; what
is there is not done again.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save
from torch import Tensor

from experiments.transfer.data import Images, data_files, source_task, target_task
from experiments.transfer.scale import Point, Scale, ablations, grid_points
from experiments.transfer.streams import seed
from experiments.transfer.training import (
    importance_of,
    pretrain,
    reloaded,
    sweep,
    tune_and_test,
    tuning_of,
    untrained,
)
from hope._util.files import write_file
from hope.bench.accuracy import accuracy
from hope.errors import HopeError, MissingData

ABLATED = ("deft", "deft, absorbed")


class UnknownMethod(HopeError, ValueError):
    """A method was asked for that the scale has no grid for."""


@dataclass(frozen=True)
class Job:
    """One piece of work, small enough to send elsewhere."""

    folder: str
    data: str
    scale: Scale
    trial: int
    task: int
    point: Point | None = None
    sweep: bool = False

    @property
    def path(self) -> Path:
        """The file that it leaves."""
        where = f"{self.trial}-{self.task}"
        if self.point is None:
            return Path(self.folder) / f"source-{where}.safetensors"
        return Path(self.folder) / f"{'sweep' if self.sweep else 'final'}-{where}-{self.point.name}.json"


def work(job: Job) -> str:
    """Do one piece of work, unless it is done; returns its file."""
    if job.path.is_file():
        return str(job.path)
    scale, data = job.scale, data_files(Path(job.data), job.scale.partial)
    source, target = tasks_of(job, data)
    if job.point is None:
        model = pretrain(source, scale, seed("pre-training", job.trial, job.task))
        _write(job.path, model.state_dict())
        return str(job.path)
    model = untrained(scale)
    model.load_state_dict(load_file(replace(job, point=None).path))
    importance = None
    if job.point.method == "ewc":
        kept = Path(job.folder) / f"fisher-{job.trial}-{job.task}.safetensors"
        if not kept.is_file():
            _write(kept, importance_of(model, source))
        importance = load_file(kept)
    start = seed("fine-tuning", job.trial, job.task)
    tuning = tuning_of(model.eval(), job.point, source, start, importance)
    done = (sweep if job.sweep else tune_and_test)(tuning, job.point, source, target, scale)
    if not job.sweep:
        done["before"] = accuracy(model, *source.test)
        done["reloaded"] = reloaded(tuning, model, source, target)
    write_file(job.path, json.dumps(done).encode())
    return str(job.path)


def tasks_of(job: Job, data: Mapping[str, Path]) -> tuple[Images, Images]:
    """The images of a job's source and target tasks."""
    scale, where = job.scale, (job.trial, job.task)
    source = source_task(data["source"], *where, scale.source, tasks=scale.tasks, size=scale.superclasses)
    target = target_task(data["target"], *where, scale.capped if job.sweep else scale.target)
    return (source.centred(), target.centred()) if scale.network == "vit" else (source, target)


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    write_file(path, save({name: value.contiguous() for name, value in tensors.items()}))


def _all(jobs: Sequence[Job], executor: Executor | None, note: Callable[[str], None]) -> list[dict[str, Any]]:
    done: Iterable[str] = map(work, jobs) if executor is None else executor.map(work, jobs)
    found = []
    for position, path in enumerate(done, start=1):
        note(f"{position}/{len(jobs)} {Path(path).name}")
        if path.endswith(".json"):
            found.append(json.loads(Path(path).read_text()))
    return found


def run(
    folder: Path,
    data: Path,
    scale: Scale,
    *,
    methods: Sequence[str] | None = None,
    executor: Executor | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """Pre-train, sweep on the first task, fine-tune every task with what the sweep found; resumable.

    Trials come one after the other, and `results.json` is written after each of them.

    Args:
        folder: where the pieces go.
        data: where the images are.
        scale: how large.
        methods: all of `scale.rates` by default.
        executor: where to work; here, one after the other, by default.
        note: called with every finished piece.

    Returns:
        Figures by method: mean and deviation over trials, and the chosen point. `results.json` holds them
        with the scale and the data; every single result, epoch by epoch, is in the pieces.
    """
    names = list(methods or scale.rates)
    for name in names:
        if name not in scale.rates:
            raise UnknownMethod(f"there is no method {name!r}: choose from {', '.join(scale.rates)}")
    files = data_files(data, scale.partial)
    used = {path.name: hashlib.sha256(path.read_bytes()).hexdigest()[:16] for path in files.values()}
    folder.mkdir(parents=True, exist_ok=True)
    stamp = folder / "scale.json"
    words = json.dumps({**asdict(scale), "data": used}, sort_keys=True)
    if stamp.is_file() and stamp.read_text() != words:
        raise MissingData(f"{folder} holds a run of another scale or other data: choose another with --out")
    write_file(stamp, words.encode())
    base = Job(str(folder), str(data), scale, 0, 0)
    chosen: dict[str, Point] = {}
    finals: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    table: dict[str, Any] = {}
    for trial in range(scale.trials):
        tasks = [replace(base, trial=trial, task=task) for task in range(scale.tasks)]
        _all(tasks, executor, note)
        if trial == 0:
            points = [point for name in names for point in grid_points(scale, name)]
            chosen = choose(_all([replace(base, point=p, sweep=True) for p in points], executor, note))
        jobs = [replace(one, point=chosen[name]) for name in names for one in tasks]
        for row in _all(jobs, executor, note):
            finals[row["point"]["method"]].append(row)
        table = {n: {"point": asdict(chosen[n]), **_summary(finals[n], scale.tasks)} for n in names}
        results = {"scale": asdict(scale), "data": used, "trials": trial + 1, "methods": table}
        write_file(folder / "results.json", (json.dumps(results, indent=1) + "\n").encode())
    return table


def choose(swept: Sequence[dict[str, Any]]) -> dict[str, Point]:
    """Of each method, the point with the highest validation H-score of any epoch."""
    best: dict[str, dict[str, Any]] = {}
    for one in swept:
        name = one["point"]["method"]
        if name not in best or one["best by h"]["h"] > best[name]["best by h"]["h"]:
            best[name] = one
    return {name: Point(**one["point"]) for name, one in best.items()}


def ablate(
    folder: Path,
    data: Path,
    scale: Scale,
    *,
    methods: Sequence[str] | None = None,
    executor: Executor | None = None,
    note: Callable[[str], None] = lambda text: None,
) -> dict[str, Any]:
    """What each of a run's limits is worth: its first task again, with one thing changed at a time.

    Methods keep what the run's sweep chose. Every change has a folder of its own in the run's; its source
    model is the run's where the change is not in pre-training.

    Returns:
        Figures by change and method; `results.json` holds them as "ablation".
    """
    path = folder / "results.json"
    if not path.is_file():
        raise MissingData(f"there is no run in {folder} to ablate: start it without --ablate first")
    results = json.loads(path.read_text())
    chosen = [Point(**results["methods"][name]["point"]) for name in methods or ABLATED]
    base = Job(str(folder), str(data), scale, 0, 0)
    files = data_files(data, scale.partial)
    source, target = tasks_of(base, files)
    changed = ablations(scale, len(source.train[0]), len(target.train[0]))
    found = results["ablation"] = {}
    for name, other in {"as it is": scale, **changed}.items():
        there = folder if other is scale else folder / "ablation" / name.replace(" ", "-").replace("'", "")
        there.mkdir(parents=True, exist_ok=True)
        job = replace(base, folder=str(there), scale=other)
        if _pretrains_alike(scale, other) and not job.path.is_file():
            write_file(job.path, base.path.read_bytes())
        _all([job], executor, note)
        rows = _all([replace(job, point=point) for point in chosen], executor, note)
        found[name] = {row["point"]["method"]: _summary([row], 1) for row in rows}
        write_file(path, (json.dumps(results, indent=1) + "\n").encode())
    return found


def _pretrains_alike(one: Scale, other: Scale) -> bool:
    keys = ("width", "pretraining", "batch", "penalty", "source", "half")
    return all(getattr(one, key) == getattr(other, key) for key in keys)


def _summary(rows: Sequence[dict[str, Any]], tasks: int) -> dict[str, Any]:
    """Mean and deviation over trials, each the mean of its tasks; of differences the largest."""

    def over(values: Sequence[float]) -> list[float]:
        trials = [statistics.fmean(values[i : i + tasks]) for i in range(0, len(values), tasks)]
        return [statistics.fmean(trials), statistics.stdev(trials) if len(trials) > 1 else 0.0]

    found: dict[str, Any] = {key: over([row[key] for row in rows]) for key in ("before", "prepared")}
    for key in ("difference", "reloaded"):
        if all(key in row for row in rows):
            found[key] = max(row[key] for row in rows)
    for best in ("best by target", "best by h"):
        keys = ("test target", "test source", "test source masked", "test h")
        found[best] = {key: over([row[best][key] for row in rows]) for key in keys}
    return found
