"""Sizes that a file tells are compared with what is there before any memory is taken for them."""

from __future__ import annotations

import json
import resource
import shutil
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import hope
from hope._util.digest import digest_of
from hope.storage import adapter, record
from hope.storage.run import read_run
from tests.golden.record import digits
from tests.storage.record import OLD

LARGE = 600_000_000  # entries: 5 GB of owners
FEW = 50_000_000  # bytes
Plan = dict[str, Any]


def forged(tmp_path: Path, name: str, change: Callable[[Plan], object]) -> Path:
    """A copy of a saved folder with other numbers in it, and the hash that fits them."""
    folder = tmp_path / "copy"
    shutil.copytree(OLD / name, folder)
    path = folder / (record.PLAN if name.startswith("run") else adapter.PLAN)
    plan = json.loads(path.read_text())
    change(plan)
    path.write_text(json.dumps({**plan, "sha256": digest_of(plan)}))
    return folder


@contextmanager
def little_memory() -> Iterator[None]:
    """Neither Python, numpy nor torch may take much."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < FEW
    finally:
        tracemalloc.stop()
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024 < 4 * FEW


def owner(plan: Plan, packed: list[Any]) -> None:
    plan["anatomy"]["units"][0]["places"][0]["owner"] = packed


def wide(plan: Plan) -> None:
    """A tensor and its owners that agree in a size that no network has."""
    unit = plan["anatomy"]["units"][0]
    for place in unit["places"]:
        plan["anatomy"]["shapes"][place["tensor"]][place["dim"]] = LARGE
        place["owner"] = [LARGE, unit["neurons"], 1, 0, 1, 0]


def many(plan: Plan) -> None:
    """A unit of more neurons than it has places for, all of which an eviction takes along."""
    plan["anatomy"]["units"][0]["neurons"] = LARGE


FORGED: list[Callable[[Plan], object]] = [
    lambda plan: owner(plan, [LARGE, 8, 1, 0, 1, 0]),
    lambda plan: owner(plan, [LARGE, LARGE, 1, 0, 1, 0]),
    lambda plan: owner(plan, [8, 8, LARGE, 0, 0, 0]),
    lambda plan: owner(plan, [[0, 1, 2, LARGE]]),
    lambda plan: owner(plan, [[0, 10**30]]),
    lambda plan: owner(plan, [[0, 1]]),
    wide,
    many,
    lambda plan: plan.update(steps=LARGE),
    lambda plan: plan.update(stops=[LARGE]),
    lambda plan: plan["anatomy"]["itemsize"].update(dict.fromkeys(plan["anatomy"]["shapes"], 10**30)),
]


@pytest.mark.parametrize("change", FORGED)
def test_no_memory_is_taken_for_sizes_that_a_run_tells(
    tmp_path: Path, change: Callable[[Plan], object]
) -> None:
    folder = forged(tmp_path, "run-v3-hope", change)
    with little_memory(), pytest.raises(hope.DamagedFolder) as refusal:
        read_run(folder)
    assert "\n" not in str(refusal.value)


def test_a_models_shapes_are_compared_before_anything_is_made_of_a_run(tmp_path: Path) -> None:
    def half(plan: Plan) -> None:
        """Below what all units together may have."""
        part = plan["anatomy"]["units"][0]["places"][0]
        plan["anatomy"]["shapes"][part["tensor"]][part["dim"]] = 1 << 25
        part["owner"] = [1 << 25, 1, 1, 0, 0, 0]

    folder, net = forged(tmp_path, "run-v3-hope", half), digits()
    with little_memory(), pytest.raises(hope.CheckpointMismatch, match="has shape"):
        hope.load(folder, net)


def test_a_migration_takes_no_memory_for_sizes_either(tmp_path: Path) -> None:
    def forge(plan: Plan) -> None:
        plan["anatomy"]["units"][0]["places"][0]["owner"] = [LARGE, 1, 1, 0, 0, 0]

    folder = forged(tmp_path, "run-v2-hope", forge)
    with little_memory(), pytest.raises(hope.DamagedFolder):
        read_run(folder)


def mask(plan: Plan, kind: str, outline: list[int]) -> None:
    name = next(name for name, reported in plan[kind].items() if isinstance(reported, list))
    plan[kind][name] = outline


def recipe(plan: Plan, outputs: Any) -> None:
    head = plan["head"]
    head["recipe"]["out_features"] = outputs
    if isinstance(outputs, int):
        head["shapes"] = {"weight": [outputs, head["recipe"]["in_features"]], "bias": [outputs]}


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: mask(plan, "frozen", [LARGE]),
        lambda plan: mask(plan, "frozen", [1, LARGE, 1, 1]),
        lambda plan: mask(plan, "frozen", [-1, -1, 1, 1]),
        lambda plan: mask(plan, "columns", [LARGE, 1]),
        lambda plan: mask(plan, "columns", [10**30, 1]),
        lambda plan: plan["frozen"].update(nowhere=[LARGE]),
        lambda plan: recipe(plan, 20_000_000),
        lambda plan: recipe(plan, 10**30),
        lambda plan: recipe(plan, [[1]]),
        lambda plan: plan["head"]["recipe"].update(kind="Embedding"),
    ],
)
def test_no_memory_is_taken_for_sizes_that_an_adapter_tells(
    tmp_path: Path, change: Callable[[Plan], object]
) -> None:
    folder, net = forged(tmp_path, "adapter-v2-mask", change), digits()
    with little_memory(), pytest.raises(hope.DamagedFolder) as refusal:
        hope.deft.load(folder, net)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("depth", [500, 900, 990, 100_000])
def test_deep_nesting_is_refused_in_one_line(tmp_path: Path, depth: int) -> None:
    folder = tmp_path / "run"
    shutil.copytree(OLD / "run-v3-hope", folder)
    text = (folder / record.PLAN).read_text()
    (folder / record.PLAN).write_text(f'{text[:-1]},"more":{"[" * depth}{"]" * depth}}}')
    with pytest.raises(hope.DamagedFolder) as refusal:
        read_run(folder)
    assert "\n" not in str(refusal.value)
