"""The paper's cross-domain transfer: CIFAR-100 superclasses to SVHN, DEFT against its baselines.

Every piece of work (a pre-training, one point of a sweep, one fine-tuning) leaves a file in the folder; what
is there is not done again.
"""

from __future__ import annotations

import hashlib
import json
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save

from experiments.transfer.data import data_files, source_task, target_task
from experiments.transfer.scale import Point, Scale, grid_points
from experiments.transfer.training import Vgg8, pretrain, sweep, tune_and_test
from hope._util.files import write_file
from hope.errors import HopeError, MissingData


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
    source = source_task(data["source"], job.trial, job.task, scale.source)
    if job.point is None:
        model = pretrain(source, scale, seed=100 * job.trial + job.task)
        write_file(job.path, save({name: value.contiguous() for name, value in model.state_dict().items()}))
        return str(job.path)
    model = Vgg8(20, scale.width)
    model.load_state_dict(load_file(replace(job, point=None).path))
    most = scale.capped if job.sweep else scale.target
    target = target_task(data["target"], job.trial, job.task, most)
    done = (sweep if job.sweep else tune_and_test)(model.eval(), job.point, source, target, scale)
    write_file(job.path, json.dumps(done).encode())
    return str(job.path)


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

    Args:
        folder: where the pieces go.
        data: where the images are.
        scale: how large.
        methods: all of `scale.rates` by default.
        executor: where to work; here, one after the other, by default.
        note: told about every finished piece.

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
    where = [(trial, task) for trial in range(scale.trials) for task in range(scale.tasks)]
    _all([replace(base, trial=trial, task=task) for trial, task in where], executor, note)
    points = [point for name in names for point in grid_points(scale, name)]
    swept = _all([replace(base, point=point, sweep=True) for point in points], executor, note)
    chosen: dict[str, Point] = {}
    for name in names:
        mine = [one for one in swept if one["point"]["method"] == name]
        chosen[name] = Point(**max(mine, key=lambda one: float(one["best by h"]["h"]))["point"])
    jobs = [replace(base, trial=r, task=k, point=chosen[name]) for name in names for r, k in where]
    final = _all(jobs, executor, note)
    table: dict[str, Any] = {}
    for position, name in enumerate(names):
        rows = final[position * len(where) : (position + 1) * len(where)]
        table[name] = {"point": asdict(chosen[name]), **_summary(rows, scale.tasks)}
    results = {"scale": asdict(scale), "data": used, "methods": table}
    write_file(folder / "results.json", (json.dumps(results, indent=1) + "\n").encode())
    return table


def _summary(rows: Sequence[dict[str, Any]], tasks: int) -> dict[str, Any]:
    """Mean and deviation over trials, each the mean of its tasks."""

    def over(values: Sequence[float]) -> list[float]:
        trials = [statistics.fmean(values[i : i + tasks]) for i in range(0, len(values), tasks)]
        return [statistics.fmean(trials), statistics.stdev(trials) if len(trials) > 1 else 0.0]

    found: dict[str, Any] = {key: over([row[key] for row in rows]) for key in ("before", "prepared")}
    for best in ("best by target", "best by h"):
        keys = ("test target", "test source", "test source masked", "test h")
        found[best] = {key: over([row[best][key] for row in rows]) for key in keys}
    return found
