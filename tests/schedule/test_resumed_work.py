"""What an interrupted run has computed is not computed again, whenever it was stopped."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hope
from hope._util import disk_cache
from hope._util.disk_cache import DiskCache, cached, cached_number, using
from hope.api import encode_resumable
from hope.demo import DigitsNet
from hope.evaluate import fidelity
from hope.rewrite import refit
from hope.rewrite.normal_equations import NormalEquations
from hope.schedule.budget import run_budget
from hope.statistics import bn_recalibration, measured
from tests.support import randomise

EXAMPLE = torch.zeros(1, 1, 8, 8)


class Stopped(Exception):
    """Stands for Ctrl-C."""


def model() -> nn.Module:
    return randomise(DigitsNet(), 3).eval()


@pytest.fixture(autouse=True)
def everything_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_cache, "WORTH", 0.0)
    monkeypatch.setattr(disk_cache.Throttle, "due", True)


WORK: dict[str, tuple[Any, str]] = {
    "recalibration": (bn_recalibration, "_recalibrated"),
    "moments": (measured, "_gather"),
    "probes": (fidelity, "synthetic_inputs"),
    "fidelity": (fidelity.Fidelity, "by_output"),
    "solutions": (NormalEquations, "solve"),
    "refit": (refit.LayerwiseRefit, "run"),
}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each kind of work was done."""
    done = dict.fromkeys(WORK, 0)

    def counted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def work(*args: Any, **kwargs: Any) -> Any:
            done[name] += 1
            return real(*args, **kwargs)

        return work

    for name, (owner, attribute) in WORK.items():
        monkeypatch.setattr(owner, attribute, counted(name, getattr(owner, attribute)))
    return done


@pytest.mark.parametrize("at", WORK)
@pytest.mark.parametrize("nth", [2, 4])
def test_work_before_an_interruption_is_not_done_again(
    at: str, nth: int, tmp_path: Path, counts: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    net, file = model(), tmp_path / "partial.json"
    whole = hope.encode(net, EXAMPLE, density=0.3)
    wanted, looks = whole.model.state_dict(), whole.fidelity
    undisturbed = dict(counts)
    counts.update(dict.fromkeys(WORK, 0))
    owner, attribute = WORK[at]
    work = getattr(owner, attribute)

    def stop(*args: Any, **kwargs: Any) -> Any:
        if counts[at] + 1 >= nth:
            raise Stopped
        return work(*args, **kwargs)

    def run() -> hope.Encoding:
        budget = run_budget("auto", {"density": 0.3})
        encoding = encode_resumable(net, EXAMPLE, budget, checkpoint=file)
        _ = encoding.model, encoding.fidelity
        return encoding

    with monkeypatch.context() as patch, suppress(Stopped):
        patch.setattr(owner, attribute, stop)
        run()
    again = run()
    for name in WORK:
        assert counts[name] <= undisturbed[name] + 1, name
    assert again.steps == whole.steps
    assert again.fidelity == looks
    for name, value in again.model.state_dict().items():
        assert torch.equal(value, wanted[name]), name
    counts.update(dict.fromkeys(WORK, 0))
    run()
    assert not any(counts.values())


def test_a_finished_run_leaves_no_files(tmp_path: Path) -> None:
    hope.encode(model(), EXAMPLE, density=0.5, checkpoint=tmp_path / "partial.json")
    assert not list(tmp_path.iterdir())


def test_values_are_kept_for_the_same_settings_only(tmp_path: Path) -> None:
    path, made = tmp_path / "run", list[int]()

    def value(settings: str) -> Any:
        with using(DiskCache(path, settings)):
            found = cached("a", lambda: (made.append(1), {"x": [torch.arange(3), 2.5, "word", None]})[1])
            return found, cached_number("n", lambda: float(len(made)))

    first, one = value("s")
    assert torch.equal(first["x"][0], torch.arange(3))
    again, same = value("s")
    assert torch.equal(again["x"][0], torch.arange(3))
    assert again["x"][1:] == first["x"][1:]
    assert (one, same, len(made)) == (1.0, 1.0, 1)
    value("other")
    assert len(made) == 2
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:-3])
    assert value("other")[1] == 3.0
    disk_cache.remove_checkpoint(path)
    assert not list(tmp_path.iterdir())


def test_every_flipped_bit_of_a_value_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with using(DiskCache(path, "s")):
        cached("a", lambda: {"x": torch.arange(4.0)})
    (file,) = tmp_path.iterdir()
    shutil.copy(file, tmp_path / "copy")
    content = file.read_bytes()
    for place in range(0, len(content), 7):
        file.write_bytes(content[:place] + bytes([content[place] ^ 4]) + content[place + 1 :])
        with using(DiskCache(path, "s")):
            found = cached("a", lambda: {"x": torch.arange(4.0)})
        assert torch.equal(found["x"], torch.arange(4.0))


def test_a_worker_that_ends_is_reported_in_a_line() -> None:
    pool = ProcessPoolExecutor(1, get_context("spawn"), os._exit, (1,))
    with pool, pytest.raises(hope.errors.LostWorker, match="a worker of executor= ended") as refusal:
        hope.encode(model(), EXAMPLE, density=0.9, method="paper", executor=pool)
    assert "\n" not in str(refusal.value)
