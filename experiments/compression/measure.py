"""Accuracy without data and without fine-tuning, against what is kept: networks × methods × budgets.

Every finished point is written at once, so an interrupted run goes on where it stopped. A point is one
compressed network: its accuracy with a 95% interval, the same after BN re-estimation on a few unlabelled
images, its size, its action mix, the judge's fidelity, and the versions it was measured with. A budget that a
method cannot meet is recorded with the reason.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from rich.console import Console
from rich.progress import Progress
from torch import Tensor, nn

from experiments import data
from experiments.compression import peers
from experiments.compression.methods import METHODS, READINGS, keywords
from experiments.compression.store import UnusableResults, read_results
from hope.api import inspect
from hope.bench.accuracy import accuracy, interval
from hope.bench.budgets import by_unit, kept, located
from hope.bench.results import check_out, versions, write_results
from hope.errors import InfeasibleBudget, first_line
from hope.evaluate.fidelity import Fidelity, images_for
from hope.rewrite.recalibrate import recalibrate_bn
from hope.storage.run import fingerprint
from hope.structure.anatomy import Anatomy
from zoo import networks

DENSITIES = tuple(f"density={d}" for d in (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3))
ALL = {**METHODS, **READINGS}
SHARES = tuple(f"params={p}" for p in (0.825, 0.65, 0.56, 0.475, 0.4))


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


def known_task(name: str, folders: Sequence[Path], count: int | None = None, *, apart: bool = True) -> Task:
    """One of the networks with a public checkpoint.

    Args:
        apart: set unlabelled images apart.
    """
    model = networks.trained(name, *folders)
    if name == "keras-resnet50":
        chosen, budgets = data.imagenet(folders[0], count, apart=apart), SHARES
    else:
        chosen, budgets = data.cifar10(folders[0], count, apart=apart), DENSITIES
    return Task(name, model, chosen.images[:1], *chosen, budgets)


def run(
    tasks: Sequence[Task],
    path: Path,
    *,
    methods: Sequence[str] = tuple(METHODS),
    recalibrate: bool = True,
    judged: bool = True,
    progress: bool | None = None,
) -> dict[str, Any]:
    """Measure what is not in the results yet.

    Args:
        recalibrate: measure each network again after BN re-estimation; a point without it counts as missing.
        judged: look at each network's fidelity.
    """
    check_out(path)
    results = read_results(path)
    for task in tasks:
        _check_identity(task, results["networks"].get(task.name, {}), path)
    _keep_versions(results)
    results["versions"] = _versions(*methods)
    console = Console(stderr=True)
    show = console.is_terminal if progress is None else progress
    with Progress(console=console, disable=not show) as bar:
        for task in tasks:
            _network(task, results, path, methods, recalibrate, judged, bar)
    return results


def _versions(*methods: str) -> dict[str, str]:
    return versions(*(["torch-pruning"] if any("peer" in ALL[method] for method in methods) else []))


def _keep_versions(results: Mapping[str, Any]) -> None:
    """Points of files that reported the versions once, for all points, get those."""
    for entry in results["networks"].values():
        for method, points in entry["points"].items():
            for point in points.values():
                reported = dict(results.get("versions", {}))
                if method not in peers.NAMES:
                    reported.pop("torch-pruning", None)
                point.setdefault("versions", reported)


def _check_identity(task: Task, entry: Mapping[str, Any], path: Path) -> None:
    for what, value in task.identity().items():
        if entry.get(what, value) != value:
            raise UnusableResults(
                f"{path} has {task.name} with {what} {entry[what]}, not {value}: give the same, or another "
                "--out"
            )


def _network(
    task: Task,
    results: dict[str, Any],
    path: Path,
    methods: Sequence[str],
    recalibrate: bool,
    judged: bool,
    bar: Progress,
) -> None:
    entry = results["networks"].setdefault(task.name, {"points": {}})
    entry |= task.identity()
    if "base" not in entry:
        entry["base"] = accuracy(task.model, task.images, task.labels)
        entry |= {f"base {what}": value for what, value in task.further(task.model).items()}
        write_results(path, results)
    anatomy = inspect(task.model, task.example, progress=False)
    judge: Fidelity | None = None
    paper: dict[tuple[str, ...], dict[str, float]] = {}  # its seconds in this run, by what was asked for
    line = bar.add_task(task.name, total=len(methods) * len(task.budgets))
    for method in sorted(methods, key=lambda method: method != "paper"):
        points = entry["points"].setdefault(method, {})
        refused = entry.get("cannot be met", {}).get(method, {})
        missing = [b for b in task.budgets if b not in refused and not _whole(points.get(b), recalibrate)]
        bar.advance(line, len(task.budgets) - len(missing))
        if missing and judged and judge is None:
            judge = Fidelity(task.model, task.example, anatomy.program, images_for(anatomy.size().macs))
        for some in map(tuple, by_unit(missing).values()):
            if method == "paper":
                paper[some] = {}
            elif "paper" in methods and some not in paper:
                made = _made(task, anatomy, "paper", some)
                paper[some] = {one.budget: one.seconds for one in made if one.network is not None}
            for one in _made(task, anatomy, method, some):
                if one.network is None:
                    reported = entry.setdefault("cannot be met", {}).setdefault(method, {})
                    reported[one.budget] = one.facts["reason"]
                else:
                    if method == "paper":
                        paper[some][one.budget] = one.seconds
                    mark = fingerprint(one.network)[:16]
                    point = _measured(entry, mark, judged, recalibrate) or {
                        **_scores(task, one.network, judge, recalibrate),
                        **task.further(one.network),
                        "network": mark,
                    }
                    point |= {**one.facts, "seconds": one.seconds, "versions": _versions(method)}
                    if one.budget in paper.get(some, {}):
                        point["time / paper"] = one.seconds / paper[some][one.budget]
                    points[one.budget] = point
                write_results(path, results)
                bar.advance(line)


def _whole(point: Mapping[str, Any] | None, recalibrate: bool) -> bool:
    return point is not None and ("recalibrated" in point or not recalibrate)


def _measured(entry: Mapping[str, Any], mark: str, judged: bool, recalibrate: bool) -> dict[str, Any] | None:
    """What was measured of the same network when another method or budget came to it."""
    for points in entry["points"].values():
        for point in points.values():
            if (
                point.get("network") == mark
                and _whole(point, recalibrate)
                and ("fidelity" in point or not judged)
            ):
                return {what: value for what, value in point.items() if what != "time / paper"}
    return None


def _scores(task: Task, small: nn.Module, judge: Fidelity | None, recalibrate: bool) -> dict[str, Any]:
    count = len(task.images)
    score = accuracy(small, task.images, task.labels)
    found: dict[str, Any] = {"accuracy": score, "interval": interval(score, count)}
    if judge is not None:
        found["fidelity"] = judge(small)
    if recalibrate:
        again = recalibrate_bn(small, torch.split(task.unlabelled, 32))
        score = accuracy(again, task.images, task.labels)
        found |= {"recalibrated": score, "recalibrated interval": interval(score, count)}
    return found


class _Made(NamedTuple):
    """A network at a budget, or none and the reason, and the seconds from the checkpoint to it."""

    budget: str
    network: nn.Module | None
    facts: dict[str, Any]
    seconds: float


def _made(task: Task, anatomy: Anatomy, method: str, budgets: Sequence[str]) -> Iterator[_Made]:
    """The networks of a method at some budgets; what they share is part of the time of each."""
    torch.manual_seed(task.seed)
    start = time.perf_counter()
    network_at = _compressed(task, anatomy, ALL[method], budgets)
    shared = time.perf_counter() - start
    for budget in budgets:
        start = time.perf_counter()
        network: nn.Module | None = None
        try:
            network, facts = network_at(budget)
        except InfeasibleBudget as error:
            facts = {"reason": first_line(error)}
        yield _Made(budget, network, facts, shared + time.perf_counter() - start)


def _compressed(
    task: Task, anatomy: Anatomy, settings: Mapping[str, Any], budgets: Sequence[str]
) -> peers.At:
    """The networks of a method; what all budgets share is done once."""
    if "peer" in settings:
        return peers.compressed(settings["peer"], task.model, task.example, anatomy)
    options = keywords(settings, task.unlabelled)
    where = located(task.model, task.example, anatomy, budgets, **options)

    def at(budget: str) -> tuple[nn.Module, dict[str, Any]]:
        encoding, steps = where(budget)
        return encoding.at(steps=steps), kept(encoding.trajectory, steps)

    return at
