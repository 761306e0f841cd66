"""A run that was interrupted goes on as if it had not been."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

import hope
from hope._util.digest import digest_of
from hope._util.hashing import hash_inputs
from hope.actions import Action
from hope.demo import DigitsNet
from hope.schedule import resume
from hope.schedule.search_space import SearchSpace
from tests.support import randomise

EXAMPLE = torch.zeros(1, 1, 8, 8)
SETTINGS: list[dict[str, Any]] = [
    {"method": hope.Paper()},
    {"method": hope.Paper(merge="sum")},
    {"method": hope.Paper(release="live")},
    {
        "method": hope.Paper(
            calibration=[torch.randn(16, 1, 8, 8, generator=torch.Generator().manual_seed(0))]
        )
    },
    {"method": "l1-joint"},
    {"method": "absorb"},
    {"method": "absorb", "evict": False},
]


def model() -> torch.nn.Module:
    return randomise(DigitsNet(), 3).eval()


def bare(steps: Iterable[Action]) -> list[Action]:
    """Steps without what they cost."""
    return [replace(step, cost=0.0, release=0, left=0.0) for step in steps]


class Stopped(Exception):
    """Stands for Ctrl-C."""


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_an_interrupted_run_goes_on(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, file = model(), tmp_path / "partial.json"
    whole = hope.encode(net, EXAMPLE, density=0.2, **settings)
    monkeypatch.setattr(resume, "EVERY", 0.0)
    monkeypatch.setattr("hope.schedule.run_to_budget.CHUNK", 8)
    write, count = resume.RunCheckpoint.write, 0

    def stop(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal count
        write(self, *args, **kwargs)
        count += 1
        if count == 2 or settings.get("method") == "absorb":
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(resume.RunCheckpoint, "write", stop)
        with pytest.raises(Stopped):
            hope.encode(net, EXAMPLE, density=0.2, checkpoint=file, **settings)
    assert len(json.loads(file.read_text())["steps"]) >= 8
    again = hope.encode(net, EXAMPLE, density=0.2, checkpoint=file, **settings)
    steps = whole.steps
    assert again.steps == steps
    assert bare(again.trajectory.steps[:steps]) == bare(whole.trajectory.steps[:steps])
    costs = [[step.cost for step in run.trajectory.steps[:steps]] for run in (again, whole)]
    assert costs[0] == pytest.approx(costs[1])
    assert not file.exists()


@pytest.mark.parametrize("begun", [0, 1, 7, 30])
@pytest.mark.parametrize("merge", [None, "pair", "sum"])
def test_the_rest_of_a_run_follows_from_its_beginning(begun: int, merge: str | None) -> None:
    net = model()
    plan = SearchSpace.of(net, EXAMPLE, hope.inspect(net, EXAMPLE), hope.Paper(merge=merge))
    whole = list(plan.steps())
    done = whole[:begun]
    assert bare(plan.steps(done=done)) == bare(whole[begun:])
    with ThreadPoolExecutor(2) as pool:
        rest = list(plan.steps(done=done, executor=pool))
    assert bare(rest) == bare(whole[begun:])


def test_another_runs_file_is_not_gone_on_with(tmp_path: Path) -> None:
    net, file = model(), tmp_path / "partial.json"
    for text in ("not json", "{}", json.dumps({"format": "hope-partial", "version": 99})):
        file.write_text(text)
        assert hope.encode(net, EXAMPLE, density=0.9, method="paper", checkpoint=file).steps > 0
    other = resume.RunCheckpoint(file, {"method": "other"})
    other.write([hope.Prune("stem.0", 0, release=1)], now=True)
    assert hope.encode(net, EXAMPLE, density=0.9, method="paper", checkpoint=file).trajectory[0].release > 1


def test_a_file_of_a_method_under_its_former_name_is_resumed(tmp_path: Path) -> None:
    done = [hope.Prune("stem.0", 0, release=1)]
    resume.RunCheckpoint(tmp_path / "partial.json", {"method": {"name": "hope"}}).write(done, now=True)
    found = resume.RunCheckpoint(tmp_path / "partial.json", {"method": {"name": "paper"}})
    assert list(found.read(hope.inspect(model(), EXAMPLE), 0).steps) == done


def test_a_file_of_other_calibration_inputs_is_not_gone_on_with() -> None:
    first, second = [torch.zeros(2, 3), torch.ones(2, 3)], [torch.zeros(2, 3), torch.ones(2, 3) / 2]
    hashes = [hash_inputs(some) for some in (None, "dream", first, second, iter(first))]
    assert len(set(hashes)) == 5
    assert hash_inputs(tuple(first)) == hashes[2]
    assert hash_inputs([first[0].bfloat16()]) != hash_inputs([])
    assert hope.Absorb(calibration=first).to_dict()["calibration"] == hashes[2]
    assert hope.Paper(calibration=first).to_dict()["calibration"] == hashes[2]


def interrupted(net: torch.nn.Module, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that has written some steps and no more."""
    write = resume.RunCheckpoint.write

    def stop(self: Any, *args: Any, **kwargs: Any) -> None:
        write(self, *args, **{**kwargs, "now": True})
        raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr("hope.schedule.run_to_budget.CHUNK", 8)
        patch.setattr(resume.RunCheckpoint, "write", stop)
        with pytest.raises(Stopped):
            hope.encode(net, EXAMPLE, density=0.5, method="paper", checkpoint=file)


def test_a_changed_number_in_a_checkpoint_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    net, file = model(), tmp_path / "partial.json"
    whole = hope.encode(net, EXAMPLE, density=0.5, method="paper")
    interrupted(net, file, monkeypatch)
    data = json.loads(file.read_text())
    data["steps"][0][-3] = 1234.5  # what the first step cost
    file.write_text(json.dumps(data))
    capsys.readouterr()
    again = hope.encode(net, EXAMPLE, density=0.5, method="paper", checkpoint=file)
    assert again.trajectory.steps == whole.trajectory.steps
    assert capsys.readouterr().err == f"note: {file} was altered after it was written: the run starts anew\n"


DEEP = json.loads("[" * 500 + "]" * 500)


@pytest.mark.parametrize(
    "change",
    [
        {"steps": [["prune", "nowhere", [0], 0.0, 0, 0.0]]},
        {"steps": [["prune", "stem.0", [10**30], 0.0, 0, 0.0]]},
        {"steps": [["prune", "stem.0", [-1], 0.0, 0, 0.0]]},
        {"steps": [["prune", "stem.0", [0], 0.0, 0, 0.0]] * 2},
        {"steps": [["evict", "nowhere", None, 0.0, 0, 0.0]]},
        {"steps": [["prune", "stem.0", [[0]], 0.0, 0, 0.0]]},
        {"steps": [["prune", "stem.0", [0], 10**400, 0, 0.0]]},
        {"steps": DEEP},
        {"steps": None},
        {"steps": {"prune": float("nan")}},
        {"deciding": {"levels": 1, "evicted": [[0, 10**30]]}},
        {"deciding": {"levels": 1, "evicted": [[-1, 0]]}},
        {"deciding": DEEP},
        {"settings": DEEP},
        {"format": DEEP},
        {"version": [4]},
    ],
    ids=lambda change: str(change)[:60],
)
def test_a_checkpoint_that_makes_no_sense_is_reported_in_a_line(
    tmp_path: Path,
    change: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    net, file = model(), tmp_path / "partial.json"
    interrupted(net, file, monkeypatch)
    data = {**json.loads(file.read_text()), **change}
    file.write_text(json.dumps({**data, "sha256": digest_of(data)}))
    capsys.readouterr()
    assert hope.encode(net, EXAMPLE, density=0.9, method="paper", checkpoint=file).steps > 0
    hashes = capsys.readouterr().err
    assert hashes.endswith(": the run starts anew\n")
    assert ("other options" in hashes) == ("settings" in change)
    assert hashes.count("\n") == 1


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 100_000])
def test_a_checkpoint_that_is_no_record_is_reported_in_a_line(
    tmp_path: Path, content: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    net, file = model(), tmp_path / "partial.json"
    file.write_bytes(content)
    begun = resume.RunCheckpoint(file, {}).read(hope.inspect(net, EXAMPLE), 0)
    assert begun == resume.Resume()
    assert capsys.readouterr().err.count("the run starts anew\n") == 1
