"""What older versions of the package wrote is read ever after, and computes what it did then."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import hope
from hope.deft.tuning import Tuning
from hope.methods.base import Rewrite
from hope.reasons import Cause
from hope.storage.adapter import ADAPTER
from hope.storage.codec import brought_up
from hope.storage.record import PLAN, RUN
from hope.storage.run import read_run
from tests.golden.record import digits
from tests.storage.record import EXAMPLE, FORMS, OLD, outputs

EXPECTED = load_file(OLD / "expected.safetensors")
EXPECTED_2 = load_file(OLD / "expected-v2.safetensors")
EXPECTED_3 = load_file(OLD / "expected-v3.safetensors")


def close(found: Tensor, name: str) -> None:
    torch.testing.assert_close(found, EXPECTED[name], rtol=1e-6, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "folder", "budget"),
    [
        ("hope", "run-v1-hope", {}),
        ("hope at 0.7", "run-v1-hope", {"density": 0.7}),
        ("absorb", "run-v1-absorb", {}),
        ("absorb at 0.8", "run-v1-absorb", {"params": 0.8}),
        ("by hand", "run-v1-by-hand", {}),
        ("by hand", "run-v1-by-hand", {"steps": 2}),
    ],
)
def test_runs_of_version_1(name: str, folder: str, budget: dict[str, float]) -> None:
    close(hope.load(OLD / folder, digits(), **budget).eval()(EXPECTED["x"]), name)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["first", "mask", "absorb"])
def test_adapters_of_version_1_in_both_its_forms(kind: str) -> None:
    tuning = Tuning.from_pretrained(OLD / f"adapter-v1-{kind}", digits())
    close(tuning.model.eval()(EXPECTED["x"]), f"adapter {kind}")
    with tuning.source() as model:
        close(model.eval()(EXPECTED["x"]), f"source {kind}")
    assert not tuning.moved()


@pytest.mark.parametrize("name", ["run-v2-absorb", "run-v2-hope", "run-v2-trained", "adapter-v2-mask"])
def test_folders_of_version_2(name: str) -> None:
    for told, found in outputs(OLD / name, EXPECTED_2["x"]).items():
        torch.testing.assert_close(found, EXPECTED_2[told], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["run-v3-hope", "run-v3-latency", "run-v3-trained"])
def test_folders_of_version_3(name: str) -> None:
    for told, found in outputs(OLD / name, EXPECTED_3["x"]).items():
        torch.testing.assert_close(found, EXPECTED_3[told], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["run-v1-hope", "run-v2-hope"])
def test_runs_that_know_no_times_know_their_bytes(name: str) -> None:
    run, net = read_run(OLD / name), digits()
    assert run.timing is None
    assert run.trajectory.times is None
    assert run.trajectory.counts("size")[0] == sum(one.nbytes for one in [*net.parameters(), *net.buffers()])
    with pytest.raises(hope.InfeasibleBudget, match="does not know its latency: encode again with latency="):
        hope.load(OLD / name, net, latency=0.5)


def test_the_anatomy_of_version_1_is_the_one_that_is_read_today() -> None:
    old, new = read_run(OLD / "run-v1-hope").anatomy, hope.inspect(digits(), EXAMPLE)
    for name in ("model", "blocks", "shapes", "parameters", "positions", "aliases", "eps"):
        assert getattr(old, name) == getattr(new, name)
    told = ("name", "kind", "weight", "neurons", "channels", "fan_in", "fan_out", "release", "writers")
    for a, b in zip(old.units, new.units, strict=True):
        assert [getattr(a, name) for name in (*told, "along", "block")] == [
            getattr(b, name) for name in (*told, "along", "block")
        ]
        assert [r.weight for r in a.readers] == [r.weight for r in b.readers]
        if a.kind == "layer":
            assert a.readers == b.readers
        for p, q in zip(a.places, b.places, strict=True):
            assert (p.tensor, p.dim, p.role) == (q.tensor, q.dim, q.role)
            assert np.array_equal(p.owner, q.owner)
    words = {"streams are not compressed yet": "prunable with streams=True"}  # then and now
    told = [str(one.reason) for one in old.skipped]
    for before, now in words.items():
        told = [one.replace(before, now) for one in told]
    assert told == [str(one.reason) for one in new.skipped]
    assert {one.reason.cause for one in old.skipped} == {Cause.TOLD}


def test_all_that_version_1_told_is_still_told() -> None:
    plan = json.loads((OLD / "run-v1-absorb" / PLAN).read_text())
    run = read_run(OLD / "run-v1-absorb")
    assert [step.cost for step in run.trajectory] == plan["costs"]
    assert [step.release for step in run.trajectory] == plan["releases"]
    assert [step.left for step in run.trajectory] == plan["left"]
    assert [list(step.gone) for step in run.trajectory] == [one["neurons"] for one in plan["actions"]]
    assert list(run.trajectory.stops) == plan["stops"]
    assert {name: list(some) for name, some in run.details.measures.items()} == plan["capacities"]
    assert run.method == "absorb"
    assert {"method": run.told, "evict": True, "exclude": [], "multiple_of": 2} == run.details.settings
    assert run.told["calibration"] is None
    assert run.rewrite == Rewrite()
    told = read_run(OLD / "run-v1-hope")
    assert told.told == {"name": "hope", "merge": "pair", "kernel": "zero-bias", "release": "static"}
    assert dict(told.details.source) == {"model": "net.py:make"}
    assert len(told.details.fidelities) == 6
    assert read_run(OLD / "run-v1-by-hand").method == "by hand"


def test_a_migration_changes_nothing_of_what_it_is_given() -> None:
    for path in OLD.glob("*-v1-*/*.json"):
        plan = json.loads(path.read_text())
        form = RUN if path.name == PLAN else ADAPTER
        before = copy.deepcopy(plan)
        assert brought_up(plan, form)["version"] == form.version
        assert plan == before


def test_files_of_this_version_are_not_migrated() -> None:
    for form in FORMS:
        paths = [*OLD.glob(f"*-v{form.version}-*/*.json")]
        plans = [json.loads(Path(path).read_text()) for path in paths]
        mine = [plan for plan in plans if plan["format"] == form.name]
        assert mine
        assert all(brought_up(plan, form) is plan for plan in mine)
