"""A run that was interrupted goes on as if it had not been."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hope.methods.plan import Plan

import hope
from hope.anatomy.steps import to_json
from hope.demo import DigitsNet
from hope.run import checkpoint
from tests.support import randomise

EXAMPLE = torch.zeros(1, 1, 8, 8)
SETTINGS: list[dict[str, Any]] = [
    {},
    {"merge": "sum"},
    {"static_release": False},
    {"method": "l1-joint"},
    {"method": "absorb"},
    {"method": "absorb", "evict": False},
]


def model() -> torch.nn.Module:
    return randomise(DigitsNet(), 3).eval()


class Stopped(Exception):
    """Stands for Ctrl-C."""


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_an_interrupted_run_goes_on(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, file = model(), tmp_path / "partial.json"
    whole = hope.encode(net, EXAMPLE, density=0.2, **settings)
    monkeypatch.setattr(checkpoint, "EVERY", 0.0)
    monkeypatch.setattr("hope.run.collect.CHUNK", 8)
    write, count = checkpoint.Checkpoint.write, 0

    def stop(self: Any, *args: Any, **kwargs: Any) -> None:
        nonlocal count
        write(self, *args, **kwargs)
        count += 1
        if count == 2 or settings.get("method") == "absorb":
            raise Stopped

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint.Checkpoint, "write", stop)
        with pytest.raises(Stopped):
            hope.encode(net, EXAMPLE, density=0.2, checkpoint=file, **settings)
    assert len(json.loads(file.read_text())["actions"]) >= 8
    again = hope.encode(net, EXAMPLE, density=0.2, checkpoint=file, **settings)
    steps = whole.steps
    assert again.steps == steps
    assert again.trajectory.actions[:steps] == whole.trajectory.actions[:steps]
    assert again.trajectory.costs[:steps] == pytest.approx(whole.trajectory.costs[:steps])
    assert not file.exists()


@pytest.mark.parametrize("begun", [0, 1, 7, 30])
@pytest.mark.parametrize("merge", [None, "pair", "sum"])
def test_the_rest_of_a_run_follows_from_its_beginning(begun: int, merge: str | None) -> None:
    net = model()
    plan = Plan(net, hope.inspect(net, EXAMPLE), "hope")
    whole = [to_json(plan.action(choice)) for choice in plan.stream(merge=merge)]
    done = [plan.action(choice) for choice, _ in zip(plan.stream(merge=merge), range(begun), strict=False)]
    assert [to_json(plan.action(c)) for c in plan.stream(merge=merge, done=done)] == whole[begun:]
    with ThreadPoolExecutor(2) as pool:
        rest = [to_json(plan.action(c)) for c in plan.stream(merge=merge, done=done, executor=pool)]
    assert rest == whole[begun:]


def test_another_runs_file_is_not_gone_on_with(tmp_path: Path) -> None:
    net, file = model(), tmp_path / "partial.json"
    for text in ("not json", "{}", json.dumps({"format": "hope-partial", "version": 99})):
        file.write_text(text)
        assert hope.encode(net, EXAMPLE, density=0.9, checkpoint=file).steps > 0
    other = checkpoint.Checkpoint(file, {"method": "other"})
    other.write([hope.Prune("stem.0", 0)], [0.0], [1], [0.0], now=True)
    assert hope.encode(net, EXAMPLE, density=0.9, checkpoint=file).trajectory[0].release > 1


def test_a_file_of_other_calibration_inputs_is_not_gone_on_with() -> None:
    first, second = [torch.zeros(2, 3), torch.ones(2, 3)], [torch.zeros(2, 3), torch.ones(2, 3) / 2]
    told = [checkpoint.settings(calibration=some) for some in (None, "dream", first, second, iter(first))]
    assert len({str(one["calibration"]) for one in told}) == 5
    assert checkpoint.settings(calibration=tuple(first)) == told[2]
    assert checkpoint.settings(calibration=[first[0].bfloat16()]) != checkpoint.settings(calibration=[])
