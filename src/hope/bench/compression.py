"""Accuracy without data and without fine-tuning, against what is kept: networks × methods × budgets.

Every finished point is written at once, so an interrupted run goes on where it stopped. A point is one
compressed network: its accuracy with a 95% interval, the same after BN re-estimation on a few unlabelled
images, its size, its action mix, and the judge's fidelity.
"""

from __future__ import annotations

import hashlib
import json
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

from hope._version import __version__
from hope.anatomy.anatomy import Anatomy
from hope.bench import datasets, images, networks, peers
from hope.bench.budgets import At, by_unit, compressed
from hope.errors import HopeError, InvalidExample, first_line
from hope.inspection import inspect
from hope.planner.judge import Judge, images_for
from hope.surgery.recalibrate import recalibrate_bn
from hope.surgery.store import fingerprint, write_file

FORMAT, VERSION = "hope-bench-compression", 1
DENSITIES = tuple(f"density={d}" for d in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3))
SHARES = tuple(f"params={p}" for p in (0.825, 0.65, 0.56, 0.475, 0.4))
METHODS: dict[str, dict[str, Any]] = {
    "absorb": {"method": "absorb"},
    "absorb, dreamed": {"method": "absorb", "calibration": "dream"},
    "absorb, 96 images": {"method": "absorb", "calibration": "images"},
    "absorb, multiples of 8": {"method": "absorb", "multiple_of": 8},
    "hope": {},
    "hope, merge=sum": {"merge": "sum"},
    "hope, no eviction": {"evict": False},
    "hope, merge=sum, no eviction": {"merge": "sum", "evict": False},
    "hope, prunes only": {"merge": None, "evict": False},
    "hope, live ΔP": {"static_release": False},
    "l1-in": {"method": "l1-in"},
    "l1-joint": {"method": "l1-joint"},
    "bn-scale": {"method": "bn-scale"},
    "random": {"method": "random"},
    **{name: {"peer": name} for name in peers.NAMES},
}


def chosen_methods(asked: Sequence[str] | None, note: Callable[[str], None]) -> list[str]:
    """The methods that were asked for, all by default; without Torch-Pruning all but its criteria."""
    for method in asked or ():
        if method not in METHODS:
            raise UnusableResults(f"there is no method {method!r}: choose from {', '.join(METHODS)}")
    if asked:
        return list(asked)
    if not peers.installed():
        note("Torch-Pruning is not installed: its criteria are left out")
    return [method for method in METHODS if peers.installed() or method not in peers.NAMES]


class UnusableResults(HopeError):
    """A results file cannot be gone on with."""


@dataclass(frozen=True)
class Task:
    """A network with images to measure it on.

    Attributes:
        name: what the results call it.
        model: in evaluation mode.
        example: an input.
        images, labels: to measure on.
        unlabelled: 96 others, for calibration and BN re-estimation.
        budgets: "unit=share".
        seed: by which the images were chosen.
    """

    name: str
    model: nn.Module
    example: Tensor
    images: Tensor
    labels: Tensor
    unlabelled: Tensor
    budgets: tuple[str, ...]
    seed: int = 0

    def identity(self) -> dict[str, Any]:
        """What must be the same for results to be gone on with."""
        digest = hashlib.sha256(self.images.contiguous().numpy().data)
        digest.update(self.labels.contiguous().numpy().data)
        return {
            "images": len(self.images),
            "seed": self.seed,
            "weights": fingerprint(self.model)[:16],
            "data": digest.hexdigest()[:16],
        }

    def further(self, network: nn.Module) -> dict[str, Any]:
        """What else is to be measured of a network, original or compressed; it is not changed."""
        return {}


def own_task(
    name: str,
    model: nn.Module,
    example: Tensor,
    source: Path,
    *,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    count: int | None = None,
    seed: int = 0,
) -> Task:
    """A user's network on a user's images (see `hope.bench.images`)."""
    try:
        with torch.inference_mode():
            scores = model(example)
    except Exception as error:  # whatever the model raises
        raise InvalidExample(
            f"{name} cannot run on inputs of shape {tuple(example.shape)} ({first_line(error)}): give --input"
        ) from error
    if not isinstance(scores, Tensor) or scores.ndim != 2:
        raise images.UnusableImages(
            f"{name} does not answer with one score per class: wrap it in a function of your own that does"
        )
    chosen = images.read(
        source, example.shape[1:], scores.shape[1], mean=mean, std=std, count=count, seed=seed
    )
    return Task(name, model, chosen.images[:1], *chosen, DENSITIES, seed)


def known_task(name: str, folders: Sequence[Path], count: int | None = None) -> Task:
    """One of the benchmark's own networks."""
    model = networks.trained(name, *folders)
    if name == "keras-resnet50":
        x, y = datasets.imagenet(folders[0], count or 250)
        unlabelled, _ = datasets.imagenet(folders[0], 96, offset=2)
        return Task(name, model, x[:1], x, y, unlabelled, SHARES)
    x, y = datasets.cifar10(folders[0], 5000)
    count = count or 2000
    return Task(name, model, x[:1], x[:count], y[:count], x[-96:], DENSITIES)


def read_results(path: Path) -> dict[str, Any]:
    """Results so far; empty if there are none."""
    if not path.is_file():
        return {"format": FORMAT, "version": VERSION, "networks": {}}
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise UnusableResults(f"{path} is not JSON: move it away and start again") from error
    results: dict[str, Any] = found if isinstance(found, dict) else {}
    if results.get("format") != FORMAT or results.get("version") != VERSION:
        raise UnusableResults(
            f"{path} is not a results file of this version (expected {FORMAT} {VERSION}, found "
            f"{results.get('format')} {results.get('version')}): move it away and start again"
        )
    return results


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """All or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, (json.dumps(results, indent=1, sort_keys=True) + "\n").encode())


def versions(*packages: str) -> dict[str, str]:
    """Of what the figures depend on; of more packages, those that are installed.

    >>> sorted(versions("no-such-package"))
    ['hope', 'python', 'torch']
    """
    found = {"python": platform.python_version(), "torch": torch.__version__, "hope": __version__}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def interval(share: float, count: int) -> float:
    """Half the width of a 95% interval of a share."""
    return float(1.96 * (share * (1 - share) / count) ** 0.5)


def run(
    tasks: Sequence[Callable[[], Task]],
    path: Path,
    *,
    methods: Sequence[str] = tuple(METHODS),
    recalibrate: bool = True,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Measure what is not in the results yet.

    Args:
        recalibrate: measure each network again after BN re-estimation.
    """
    results = read_results(path)
    peer = any("peer" in METHODS[method] for method in methods)
    results["versions"] = results.get("versions", {}) | versions(*(["torch-pruning"] if peer else []))
    console = Console(stderr=True)
    show = console.is_terminal if progress is None else progress
    with Progress(console=console, disable=not show) as bar:
        for make in tasks:
            _network(make(), results, path, methods, recalibrate, bar)
    return results


def _network(
    task: Task,
    results: dict[str, Any],
    path: Path,
    methods: Sequence[str],
    recalibrate: bool,
    bar: Progress,
) -> None:
    entry = results["networks"].setdefault(task.name, {"points": {}})
    for what, value in task.identity().items():
        if entry.setdefault(what, value) != value:
            raise UnusableResults(
                f"{path} has {task.name} with {what} {entry[what]}, not {value}: give the same, or another "
                "--out"
            )
    if "base" not in entry:
        entry["base"] = datasets.accuracy(task.model, task.images, task.labels)
        entry |= {f"base {what}": value for what, value in task.further(task.model).items()}
        write_results(path, results)
    anatomy = inspect(task.model, task.example, progress=False)
    judge: Judge | None = None
    fresh: dict[tuple[str, str], float] = {}  # seconds from the checkpoint to the network
    line = bar.add_task(task.name, total=len(methods) * len(task.budgets))
    for method in methods:
        points = entry["points"].setdefault(method, {})
        missing = [budget for budget in task.budgets if budget not in points]
        bar.advance(line, len(task.budgets) - len(missing))
        if not missing:
            continue
        if judge is None:
            judge = Judge(task.model, task.example, anatomy.program, images_for(anatomy.size().macs))
        for some in by_unit(missing).values():
            torch.manual_seed(task.seed)
            start = time.perf_counter()
            networks_at = _compressed(task, anatomy, METHODS[method], some)
            shared = time.perf_counter() - start
            for budget in some:
                start = time.perf_counter()
                small, facts = networks_at(budget)
                fresh[method, budget] = shared + time.perf_counter() - start
                scores = {**_scores(task, small, judge, recalibrate), **task.further(small)}
                points[budget] = {**scores, **facts}
                points[budget]["seconds"] = fresh[method, budget]
                _add_ratios(entry["points"], fresh)
                write_results(path, results)
                bar.advance(line)


def _scores(task: Task, small: nn.Module, judge: Judge, recalibrate: bool) -> dict[str, float]:
    score = datasets.accuracy(small, task.images, task.labels)
    found = {"accuracy": score, "interval": interval(score, len(task.images)), "fidelity": judge(small)}
    if recalibrate:
        again = recalibrate_bn(small, torch.split(task.unlabelled, 32))
        found["recalibrated"] = datasets.accuracy(again, task.images, task.labels)
    return found


def _add_ratios(points: Mapping[str, Any], fresh: Mapping[tuple[str, str], float]) -> None:
    """Times as ratios to the paper's method, where both were taken in this run: the same machine, the same
    load.
    """
    for (method, budget), seconds in fresh.items():
        if ("hope", budget) in fresh:
            points[method][budget]["time / hope"] = seconds / fresh["hope", budget]


def _compressed(task: Task, anatomy: Anatomy, settings: Mapping[str, Any], budgets: Sequence[str]) -> At:
    """The networks of a method; what all budgets share is done once."""
    if "peer" in settings:
        return peers.compressed(settings["peer"], task.model, task.example, anatomy)
    options = dict(settings)
    if options.get("calibration") == "images":
        options["calibration"] = list(torch.split(task.unlabelled, 32))
    return compressed(task.model, task.example, anatomy, budgets, **options)
