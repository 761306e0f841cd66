"""The paper's cross-domain transfer: CIFAR-100 superclasses to SVHN, DEFT against its baselines.

Every piece of work (a pre-training, one point of a sweep, one fine-tuning) leaves a file in the folder; what
is there is not done again. `SCALES["full"]` is the paper's protocol; "small" has the same shape on a narrower
network, fewer epochs and images, and a sparser grid.

Readings: an L2 penalty of 5·10⁻⁴ is λ‖w‖², so a weight decay of 2λ; the cosine ends at α times the first
rate.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from hope.bench.datasets import MissingData, accuracy
from hope.deft import baselines
from hope.deft.fisher import fisher
from hope.deft.partition import partition
from hope.deft.prepare import prepare
from hope.deft.tuning import Tuning
from hope.surgery.store import write_file

DECAY = 2 * 5e-4
MOMENTUM = 0.9
LAST = 1e-3  # α of the cosine


class Vgg8(nn.Sequential):
    """VGG-8 with BN: six 3×3 convolutions, global average pooling, a bottleneck and a head.

    >>> sum(p.numel() for p in Vgg8(20).parameters()) > 7_000_000
    True

    Args:
        classes: outputs.
        width: multiplies the 128 to 512 filters of the paper.
    """

    def __init__(self, classes: int, width: float = 1.0) -> None:
        sizes = [max(4, round(width * size)) for size in (128, 256, 512, 512, 512, 512, 512)]
        parts: list[nn.Module] = []
        before = 3
        for position, size in enumerate(sizes[:6]):
            parts += [nn.Conv2d(before, size, 3, padding=1, bias=False), nn.BatchNorm2d(size), nn.ReLU()]
            if position in (0, 1, 3, 5):
                parts.append(nn.MaxPool2d(2))
            before = size
        parts += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, sizes[6], bias=False)]
        parts += [nn.BatchNorm1d(sizes[6]), nn.ReLU()]
        super().__init__(*parts, nn.Linear(sizes[6], classes))


@dataclass(frozen=True)
class Scale:
    """How large a run is.

    Attributes:
        width: of the network.
        trials, tasks: how many, tasks within each trial.
        pretraining, tuning, sweep: epochs.
        batch: images a step.
        capped: target images in the sweep.
        source, target: training images at most; None for all.
        percentiles, rates, strengths: the grids; rates by method.
    """

    width: float
    trials: int
    tasks: int
    pretraining: int
    tuning: int
    sweep: int
    batch: int
    capped: int
    source: int | None
    target: int | None
    percentiles: tuple[float, ...]
    strengths: tuple[float, ...]
    rates: dict[str, tuple[float, ...]]


_DEFT = (0.04, 0.02, 0.01, 0.005, 0.001)
_FULL = (0.02, 0.01, 0.005, 0.001, 0.0005, 0.0001)
SCALES = {
    "full": Scale(
        1.0, 4, 5, 100, 30, 30, 16, 1000, None, None,
        (60, 40, 30, 20), (0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 50.0),
        {
            "deft": _DEFT, "deft, unmerged": _DEFT, "deft by capacity": _DEFT,
            "deft, statistics frozen": _DEFT,
            "head-only": (0.04, 0.02, 0.01, 0.005, 0.001, 0.0005), "full": _FULL,
            "bn-tuning": (0.01, 0.005, 0.0025, 0.001, 0.0005, 0.0001),
            "ewc": (0.01, 0.005, 0.001, 0.0005, 0.0001), "l2-sp": _FULL,
        },
    ),
    "small": Scale(
        0.125, 4, 1, 15, 5, 5, 32, 1000, None, 6000,
        (60, 40, 20), (1.0, 50.0),
        {
            "deft": (0.04, 0.01), "deft, unmerged": (0.04, 0.01), "deft by capacity": (0.04, 0.01),
            "deft, statistics frozen": (0.04, 0.01),
            "head-only": (0.04, 0.01), "full": (0.02, 0.001), "bn-tuning": (0.01, 0.001),
            "ewc": (0.01, 0.001), "l2-sp": (0.01, 0.001),
        },
    ),
}  # fmt: skip


Pair: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True, eq=False)
class Images:
    """Training, validation and test images of one task, with labels."""

    train: tuple[Tensor, Tensor]
    valid: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]


def h_score(target: float, source: float) -> float:
    """The harmonic mean of target accuracy and source retention.

    >>> round(h_score(0.8979, 0.5214), 4)
    0.6597
    """
    return 2 * target * source / (target + source) if target + source > 0 else 0.0


# ---- data --------------------------------------------------------------------------------------------------


def _open(folder: Path, *names: str) -> dict[str, Any]:
    for name in names:
        if (folder / name).is_file():
            with np.load(folder / name) as data:
                return {key: data[key] for key in data.files}
    raise MissingData(f"there is no {' or '.join(names)} in {folder}: set HOPE_DATA to a folder that has it")


def _pixels(images: Any) -> Tensor:
    return (torch.from_numpy(images).float() / 255).permute(0, 3, 1, 2).contiguous()


def _split(x: Tensor, y: Tensor, seed: int, most: int | None) -> tuple[Pair, Pair]:
    """80% to train on, at most so many, and 20% to validate."""
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    cut = len(x) * 4 // 5
    train = order[:cut][:most]
    return (x[train], y[train]), (x[order[cut:]], y[order[cut:]])


def source_task(folder: Path, trial: int, task: int, most: int | None) -> Images:
    """Twenty classes of CIFAR-100: four superclasses drawn at random, all five classes of each."""
    data = _open(folder, "cifar100.npz", "cifar100-30c.npz")
    rng = np.random.default_rng([trial, task])
    chosen = rng.choice(np.unique(data["coarse_train"]), 4, replace=False)
    parts = []
    for which in ("train", "test"):
        at = np.isin(data[f"coarse_{which}"], chosen)
        parts.append((data[f"x_{which}"][at], data[f"y_{which}"][at]))
    classes = np.unique(parts[0][1])
    (x, y), (x_test, y_test) = (
        (_pixels(images), torch.from_numpy(np.searchsorted(classes, labels)).long())
        for images, labels in parts
    )
    return Images(*_split(x, y, 1000 * trial + task, most), (x_test, y_test))


def target_task(folder: Path, trial: int, task: int, most: int | None) -> Images:
    """All ten digits of SVHN."""
    data = _open(folder, "svhn.npz", "svhn-part.npz")
    x, y = _pixels(data["x_train"]), torch.from_numpy(data["y_train"]).long()
    test = _pixels(data["x_test"]), torch.from_numpy(data["y_test"]).long()
    return Images(*_split(x, y, 1000 * trial + task + 500, most), test)


# ---- training ----------------------------------------------------------------------------------------------


def _epoch(
    model: nn.Module,
    data: tuple[Tensor, Tensor],
    optimizer: torch.optim.Optimizer,
    batch: int,
    penalty: Callable[[], Tensor] | None = None,
    before_step: Callable[[], None] | None = None,
) -> None:
    model.train()
    x, y = data
    order = torch.randperm(len(x))
    for start in range(0, len(x) - 1, batch):
        some = order[start : start + batch]
        if len(some) < 2:  # BN needs two
            continue
        loss = functional.cross_entropy(model(x[some]), y[some])
        if penalty is not None:
            loss = loss + penalty()
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        if before_step is not None:
            before_step()
        optimizer.step()


def _optimizer(model: nn.Module, rate: float, decays: Callable[[str, Tensor], bool]) -> torch.optim.SGD:
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    groups = [
        {"params": [p for n, p in named if decays(n, p)], "weight_decay": DECAY},
        {"params": [p for n, p in named if not decays(n, p)], "weight_decay": 0.0},
    ]
    return torch.optim.SGD([g for g in groups if g["params"]], lr=rate, momentum=MOMENTUM)


def pretrain(images: Images, scale: Scale, seed: int) -> nn.Module:
    """A source model: cosine from 0.05, L2 on kernels and BN scales, no early stopping."""
    torch.manual_seed(seed)
    model = Vgg8(20, scale.width)
    scales = {
        f"{name}.weight"
        for name, m in model.named_modules()
        if isinstance(m, nn.modules.batchnorm._BatchNorm)
    }
    optimizer = _optimizer(model, 0.05, lambda name, p: p.ndim > 1 or name in scales)
    total = scale.pretraining * max(1, math.ceil((len(images.train[0]) - 1) / scale.batch))
    done = 0

    def anneal() -> None:
        nonlocal done
        share = 0.5 * (1 + math.cos(math.pi * min(done, total) / total))
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * ((1 - LAST) * share + LAST)
        done += 1

    for _ in range(scale.pretraining):
        _epoch(model, images.train, optimizer, scale.batch, before_step=anneal)
    return model.eval()


@dataclass(frozen=True)
class Point:
    """One way to fine-tune.

    Attributes:
        method: a key of `Scale.rates`.
        rate: learning rate.
        percentile: of DEFT.
        strength: of EWC and L2-SP.
    """

    method: str
    rate: float
    percentile: float = 40.0
    strength: float = 0.0

    @property
    def name(self) -> str:
        """For files."""
        method = self.method.replace(", ", "-").replace(" ", "-")
        return f"{method}-{self.rate:g}-{self.percentile:g}-{self.strength:g}"


def grid_points(scale: Scale, method: str) -> list[Point]:
    """A method's grid."""
    rates = scale.rates[method]
    if method.startswith("deft"):
        return [Point(method, rate, percentile=p) for p, rate in product(scale.percentiles, rates)]
    if method in ("ewc", "l2-sp"):
        return [Point(method, rate, strength=s) for s, rate in product(scale.strengths, rates)]
    return [Point(method, rate) for rate in rates]


def tuning_of(model: nn.Module, point: Point, source: Images) -> Tuning:
    """The source model made ready by a method, with a head for ten digits."""
    by = "capacity" if "capacity" in point.method else "prune-cost"
    merge = "unmerged" not in point.method
    example = source.train[0][:2]
    part = partition(model, example, percentile=point.percentile, by=by, merge=merge, progress=False)
    if point.method.startswith("deft"):
        return prepare(model, part, head=10, freeze_statistics="frozen" in point.method)
    if point.method == "ewc":
        importance = fisher(model, [source.train])
        return baselines.ewc(model, part, importance=importance, strength=point.strength, head=10)
    if point.method == "l2-sp":
        return baselines.l2_sp(model, part, strength=point.strength, head=10)
    kinds = {"full": baselines.full, "head-only": baselines.head_only, "bn-tuning": baselines.bn_tuning}
    return kinds[point.method](model, part, head=10)


def tune(
    model: nn.Module, point: Point, source: Images, target: Images, epochs: int, batch: int
) -> dict[str, Any]:
    """Fine-tune at a fixed rate; what the best epochs come to, by target accuracy and by H-score."""
    torch.manual_seed(0)
    tuning = tuning_of(model, point, source)
    optimizer = _optimizer(tuning.model, point.rate, lambda name, p: p.ndim > 1)
    penalty = tuning.penalty if point.method in ("ewc", "l2-sp") else None
    history: list[dict[str, float]] = []
    best: dict[str, dict[str, float]] = {}
    for epoch in range(epochs):
        _epoch(tuning.model, target.train, optimizer, batch, penalty)
        tuning.model.eval()
        seen = {"epoch": float(epoch), "target": accuracy(tuning.model, *target.valid)}
        with tuning.source() as back:
            seen["source"] = accuracy(back, *source.valid)
        seen["h"] = h_score(seen["target"], seen["source"])
        history.append(seen)
        for key in ("target", "h"):
            if key not in best or seen[key] > best[key][key]:
                best[key] = {**seen, **_test(tuning, source, target)}
    return {
        "point": asdict(point),
        "best by target": best["target"],
        "best by h": best["h"],
        "history": history,
    }


def _test(tuning: Tuning, source: Images, target: Images) -> dict[str, float]:
    """Test accuracies: of the target, of the source, and of the source with its head masked."""
    found = {"test target": accuracy(tuning.model, *target.test)}
    for name, masked in (("test source", None), ("test source masked", True)):
        with tuning.source(masked=masked) as back:
            found[name] = accuracy(back, *source.test)
    found["test h"] = h_score(found["test target"], found["test source"])
    return found


# ---- the whole run -----------------------------------------------------------------------------------------


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
    scale, data = job.scale, Path(job.data)
    source = source_task(data, job.trial, job.task, scale.source)
    part = job.path.with_name(f".{job.path.name}.part")
    if job.point is None:
        model = pretrain(source, scale, seed=100 * job.trial + job.task)
        save_file({name: value.contiguous() for name, value in model.state_dict().items()}, part)
        part.replace(job.path)
        return str(job.path)
    model = Vgg8(20, scale.width)
    model.load_state_dict(load_file(replace(job, point=None).path))
    target = target_task(data, job.trial, job.task, scale.capped if job.sweep else scale.target)
    epochs = scale.sweep if job.sweep else scale.tuning
    done = tune(model.eval(), job.point, source, target, epochs, scale.batch)
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
        Figures by method: mean and deviation over trials, the chosen point, and every single result.
    """
    folder.mkdir(parents=True, exist_ok=True)
    stamp = folder / "scale.json"
    words = json.dumps(asdict(scale), sort_keys=True)
    if stamp.is_file() and stamp.read_text() != words:
        raise MissingData(f"{folder} holds a run of another scale: choose another folder with --out")
    write_file(stamp, words.encode())
    base = Job(str(folder), str(data), scale, 0, 0)
    where = [(trial, task) for trial in range(scale.trials) for task in range(scale.tasks)]
    _all([replace(base, trial=trial, task=task) for trial, task in where], executor, note)
    names = list(methods or scale.rates)
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
        table[name] = {"point": asdict(chosen[name]), "rows": rows, **_summary(rows, scale.tasks)}
    write_file(folder / "results.json", json.dumps(table, indent=1).encode())
    return table


def _summary(rows: Sequence[dict[str, Any]], tasks: int) -> dict[str, Any]:
    """Mean and deviation over trials, each the mean of its tasks."""
    found: dict[str, Any] = {}
    for best in ("best by target", "best by h"):
        for key in ("test target", "test source", "test source masked", "test h"):
            values = [float(row[best][key]) for row in rows]
            trials = [statistics.fmean(values[i : i + tasks]) for i in range(0, len(values), tasks)]
            spread = statistics.stdev(trials) if len(trials) > 1 else 0.0
            found.setdefault(best, {})[key] = [statistics.fmean(trials), spread]
    return found
