"""The results file of the compression experiment: what a point records, and how a run goes on."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from experiments import finetune
from experiments.compression import __main__ as command
from experiments.compression import measure as compression
from experiments.compression import peers
from experiments.compression.__main__ import tables
from experiments.compression.measure import Task
from experiments.compression.page import RESULTS as COMMITTED
from experiments.compression.page import budgets
from experiments.compression.store import UnusableResults, read_results
from hope._util.tables import text
from hope.bench import results as figures
from hope.bench.accuracy import interval
from hope.errors import CannotWrite, InfeasibleBudget
from tests.support import randomise

BUDGETS = ("density=0.75", "density=0.5", "params=0.5")


def small() -> nn.Module:
    torch.manual_seed(0)
    first = [nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    second = [nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()]
    last = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3)]
    return randomise(nn.Sequential(*first, *second, *last)).eval()


@pytest.fixture
def task() -> Task:
    x = torch.randn(40, 3, 8, 8)
    return Task("net", small(), x[:1], x[:30], torch.arange(30) % 3, x[30:], BUDGETS)


def measured(task: Task, path: Path, *methods: str, **options: Any) -> dict[str, Any]:
    """The points, as they are on disk."""
    compression.run([task], path, methods=methods, progress=False, **options)
    found: dict[str, Any] = json.loads(path.read_text())["networks"][task.name]["points"]
    return found


def without_times(points: dict[str, Any]) -> dict[str, Any]:
    found = copy.deepcopy(points)
    for point in (point for some in found.values() for point in some.values()):
        assert point.pop("seconds") > 0
        assert point.pop("time / paper") > 0
    return found


@pytest.mark.parametrize("stop_at", [1, 4, 8])
def test_an_interrupted_run_goes_on_to_the_same_results(
    task: Task, tmp_path: Path, stop_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = ("absorb", "random", "paper", "l1-in")
    whole = measured(task, tmp_path / "whole.json", *methods)
    scores, calls = compression._scores, 0

    class Stopped(Exception):
        """Stands for Ctrl-C."""

    def stop(*given: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls > stop_at:
            raise Stopped
        return scores(*given)

    out = tmp_path / "r.json"
    with monkeypatch.context() as patch:
        patch.setattr(compression, "_scores", stop)
        with pytest.raises(Stopped):
            measured(task, out, *methods)
    begun = json.loads(out.read_text())["networks"]["net"]["points"]
    assert sum(map(len, begun.values())) == stop_at
    again = measured(task, out, *methods)
    assert without_times(again) == without_times(whole)
    for method, points in begun.items():  # not measured twice
        assert all(again[method][budget] == point for budget, point in points.items())


def test_every_point_has_the_versions_it_was_measured_with(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "r.json"
    measured(task, out, "paper")
    monkeypatch.setattr(figures, "__version__", "99.0")
    points = measured(task, out, "paper", "l1-in")
    assert {point["versions"]["hope"] for point in points["l1-in"].values()} == {"99.0"}
    assert "99.0" not in {point["versions"]["hope"] for point in points["paper"].values()}
    assert json.loads(out.read_text())["versions"]["hope"] == "99.0"


def test_points_of_an_old_file_keep_the_versions_of_its_header(task: Task, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    measured(task, out, "paper")
    old = json.loads(out.read_text())
    for point in old["networks"]["net"]["points"]["paper"].values():
        del point["versions"]
    old["versions"] = {"hope": "0.0.1", "torch": "2.6", "torch-pruning": "1.5"}
    out.write_text(json.dumps(old))
    points = measured(task, out, "paper", "l1-in")
    for point in points["paper"].values():
        assert point["versions"] == {"hope": "0.0.1", "torch": "2.6"}
    assert all("torch-pruning" not in point["versions"] for point in points["l1-in"].values())


def test_a_point_without_bn_re_estimation_is_completed(task: Task, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    points = measured(task, out, "paper", recalibrate=False)
    assert not any("recalibrated" in point for point in points["paper"].values())
    points = measured(task, out, "paper")
    for point in points["paper"].values():
        low, high = point["recalibrated interval"]
        assert low <= point["recalibrated"] <= high
    assert measured(task, out, "paper", recalibrate=False) == points  # nothing is taken away


def test_times_are_compared_with_hope_however_the_methods_are_ordered(task: Task, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    points = measured(task, out, "l1-in", "paper", "random")
    for some in points.values():
        for budget, point in some.items():
            assert point["time / paper"] == pytest.approx(
                point["seconds"] / points["paper"][budget]["seconds"]
            )


def test_a_run_that_goes_on_times_hope_again_and_keeps_its_points(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "r.json"
    before = measured(task, out, "paper")
    asked: list[tuple[str, ...]] = []
    made = compression._made

    def spy(task: Task, anatomy: Any, method: str, budgets: Any) -> Any:
        if method == "paper":
            asked.append(tuple(budgets))
        return made(task, anatomy, method, budgets)

    monkeypatch.setattr(compression, "_made", spy)
    points = measured(task, out, "paper", "l1-in", "random")
    assert asked == [("density=0.75", "density=0.5"), ("params=0.5",)]  # once for both methods
    assert points["paper"] == before["paper"]
    assert all(
        point["time / paper"] > 0 for method in ("l1-in", "random") for point in points[method].values()
    )


def test_a_budget_that_cannot_be_met_is_recorded_and_the_others_are_measured(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hard = Task(**{**vars(task), "budgets": ("density=0.5", "density=0.01")})
    out = tmp_path / "r.json"
    points = measured(hard, out, "paper", "l1-in")
    for method in ("paper", "l1-in"):
        assert set(points[method]) == {"density=0.5"}
        assert points[method]["density=0.5"]["neurons"] == 0.5
        assert points[method]["density=0.5"]["time / paper"] > 0
    results = json.loads(out.read_text())
    reason = results["networks"]["net"]["cannot be met"]["paper"]["density=0.01"]
    assert reason.startswith("density=0.01 cannot be met: the smallest reachable is density=0.1250")
    reported = text(*tables(results), width=140)
    assert f"paper, density=0.01: {reason}" in " ".join(reported.split())
    row = next(line for line in reported.splitlines() if line.startswith("l1-in"))
    assert row.split()[1:] == [f"{points['l1-in']['density=0.5']['accuracy']:.3f}", "–"]
    monkeypatch.setattr(compression, "_made", None)  # nothing is tried again
    assert measured(hard, out, "paper", "l1-in") == points


def test_a_peer_that_misses_its_budget_is_not_measured(task: Task, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch_pruning", reason="the peers extra is not installed")
    monkeypatch.setattr(peers, "STEPS", 1)
    anatomy = compression.inspect(task.model, task.example)
    at = peers.compressed("torch-pruning magnitude", task.model, task.example, anatomy)
    with pytest.raises(InfeasibleBudget, match=r"params=0\.0001 cannot be met: torch-pruning"):
        at("params=0.0001")


def test_a_peer_that_is_not_installed_is_reported_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "installed", lambda: False)
    for main in (command.main, finetune.main):
        assert main(["--methods", "paper", "torch-pruning LAMP", "--data", str(tmp_path)]) == 2
        assert "torch-pruning LAMP needs Torch-Pruning" in capsys.readouterr().err


def test_the_printed_tables_tell_what_a_point_is_worth(task: Task, tmp_path: Path) -> None:
    points = measured(task, tmp_path / "r.json", "paper", "absorb")
    reported = text(*tables(json.loads((tmp_path / "r.json").read_text())), width=140)
    row = next(
        line
        for line in reported[reported.index("net, density=0.5") :].splitlines()
        if line.startswith("paper")
    )
    point = points["paper"]["density=0.5"]
    assert row.split()[1:] == [
        f"{point['accuracy']:.3f}",
        "–".join(f"{bound:.3f}" for bound in point["interval"]),
        f"{point['recalibrated']:.3f}",
        "–".join(f"{bound:.3f}" for bound in point["recalibrated interval"]),
        *(f"{point[kept]:.3f}" for kept in ("neurons", "parameters", "macs")),
        *(f"{count}{kind[0]}" for kind, count in point["mix"].items() if count),
        "1.00",
    ]


def test_the_interval_of_no_hits_is_not_empty() -> None:
    assert interval(0.0, 250) == pytest.approx((0.0, 0.0151), abs=1e-4)
    assert interval(1.0, 250) == pytest.approx((0.9849, 1.0), abs=1e-4)


def test_the_committed_results_can_still_be_read_and_shown() -> None:
    results = read_results(COMMITTED)
    assert results["networks"]
    reported = text(*tables(results), width=140)
    for name, entry in results["networks"].items():
        assert all(f"{name}, {budget}" in reported for budget in budgets(entry, ""))


@pytest.mark.parametrize(
    "damage",
    [
        lambda r: r.pop("networks"),
        lambda r: r.update(networks=[]),
        lambda r: r.update(networks={"net": []}),
        lambda r: r["networks"]["net"].pop("points"),
        lambda r: r["networks"]["net"].update(points=[]),
        lambda r: r["networks"]["net"].update(base="high"),
        lambda r: r["networks"]["net"]["points"].update(hope=3),
        lambda r: r["networks"]["net"]["points"]["paper"].update(half={}),
        lambda r: r["networks"]["net"]["points"]["paper"].update({"density=0.5": {}}),
        lambda r: r["networks"]["net"].update({"cannot be met": {"paper": 1}}),
        lambda r: r.update(versions=1),
    ],
)
def test_a_damaged_file_is_named_and_left_alone(
    task: Task, tmp_path: Path, damage: Callable[[dict[str, Any]], Any]
) -> None:
    out = tmp_path / "r.json"
    measured(task, out, "paper")
    results = json.loads(out.read_text())
    damage(results)
    out.write_text(json.dumps(results))
    with pytest.raises(UnusableResults, match=r"r\.json is damaged .*: move it away"):
        measured(task, out, "paper")
    assert json.loads(out.read_text()) == results


def test_a_place_that_cannot_be_written_is_reported_before_any_work(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compression, "_network", None)
    with pytest.raises(CannotWrite, match="it is a folder: give another --out"):
        measured(task, tmp_path, "paper")
    (tmp_path / "file").write_text("")
    with pytest.raises(CannotWrite, match=r"file/r\.json cannot be written: .*: give another --out"):
        measured(task, tmp_path / "file" / "r.json", "paper")


def test_other_weights_are_reported_before_another_network_is_measured(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "r.json"
    measured(task, out, "paper")
    monkeypatch.setattr(compression, "_network", None)
    first = Task(**{**vars(task), "name": "first"})
    other = Task(**{**vars(task), "model": randomise(small(), 5)})
    with pytest.raises(UnusableResults, match="has net with weights"):
        compression.run([first, other], out, methods=["paper"], progress=False)


def test_images_of_another_seed_are_reported(task: Task, tmp_path: Path) -> None:
    measured(task, tmp_path / "r.json", "paper")
    other = Task(**{**vars(task), "seed": 1})
    with pytest.raises(UnusableResults, match="with seed 0, not 1"):
        measured(other, tmp_path / "r.json", "paper")


def test_times_of_different_runs_are_not_compared(task: Task, tmp_path: Path) -> None:
    measured(task, tmp_path / "r.json", "paper")
    points = measured(task, tmp_path / "r.json", "l1-in")
    assert "time / paper" in points["paper"]["density=0.5"]
    assert "time / paper" not in points["l1-in"]["density=0.5"]


def test_peers_are_timed_by_what_they_do_and_their_version_is_kept(task: Task, tmp_path: Path) -> None:
    pytest.importorskip("torch_pruning", reason="the peers extra is not installed")
    method = "torch-pruning magnitude"
    points = measured(Task(**{**vars(task), "budgets": ("macs=0.5",)}), tmp_path / "r.json", method, "paper")
    assert "torch-pruning" in json.loads((tmp_path / "r.json").read_text())["versions"]
    assert points[method]["macs=0.5"]["macs"] <= 0.5
    assert points[method]["macs=0.5"]["time / paper"] > 0
    assert "torch-pruning" not in points["paper"]["macs=0.5"]["versions"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["resnet19"], "there is no network 'resnet19': choose from"),
        (["cifar10-resnet20", "--methods", "best"], "there is no method 'best'"),
        (
            ["cifar10-resnet20", "--methods", "paper", "--budgets", "half"],
            "got 'half': write it like params=0.65",
        ),
        (["cifar10-resnet20", "--methods", "paper", "--data", "nowhere"], "give --data FOLDER"),
    ],
)
def test_wrong_arguments_are_one_line(
    tmp_path: Path, arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.json"
    assert command.main([*arguments, "--out", str(out)]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.splitlines()[-1].startswith("python -m experiments.compression: ")
    assert not out.exists()


def test_results_of_another_version_or_kind_are_refused(task: Task, tmp_path: Path) -> None:
    out = tmp_path / "r.json"
    for content, words in (
        ("{", "is not JSON"),
        ("[]", "not a results file"),
        ('{"version": 0}', "not a results file of this version"),
    ):
        out.write_text(content)
        with pytest.raises(UnusableResults, match=words):
            measured(task, out, "paper")
        assert out.read_text() == content
