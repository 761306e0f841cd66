"""What the version before wrote is read, and computes what it did then."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import hope
from hope.deft.tuning import Tuning
from hope.storage.adapter import ADAPTER
from hope.storage.codec import migrated
from hope.storage.record import PLAN, RUN
from hope.storage.run import read_run
from tests.golden.record import digits
from tests.storage.record import FORMS, OLD, outputs

EXPECTED = load_file(OLD / "expected.safetensors")
EXPECTED_2 = load_file(OLD / "expected-v2.safetensors")
EXPECTED_3 = load_file(OLD / "expected-v3.safetensors")


def close(found: Tensor, name: str) -> None:
    torch.testing.assert_close(found, EXPECTED[name], rtol=1e-6, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["mask", "absorb"])
def test_adapters_of_version_1(kind: str) -> None:
    tuning = Tuning.from_pretrained(OLD / f"adapter-v1-{kind}", digits())
    close(tuning.model.eval()(EXPECTED["x"]), f"adapter {kind}")
    with tuning.source() as model:
        close(model.eval()(EXPECTED["x"]), f"source {kind}")
    assert not tuning.moved()


@pytest.mark.parametrize("name", ["run-v2-absorb", "run-v2-hope", "run-v2-trained", "adapter-v2-mask"])
def test_folders_of_version_2(name: str) -> None:
    for reported, found in outputs(OLD / name, EXPECTED_2["x"]).items():
        torch.testing.assert_close(found, EXPECTED_2[reported], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["run-v3-hope", "run-v3-latency", "run-v3-trained"])
def test_folders_of_version_3(name: str) -> None:
    for reported, found in outputs(OLD / name, EXPECTED_3["x"]).items():
        torch.testing.assert_close(found, EXPECTED_3[reported], rtol=1e-6, atol=1e-6)


def test_runs_that_know_no_times_know_their_bytes() -> None:
    folder, net = OLD / "run-v2-hope", digits()
    run = read_run(folder)
    assert run.record.timing is None
    assert run.trajectory.times is None
    assert run.trajectory.counts("size")[0] == sum(one.nbytes for one in [*net.parameters(), *net.buffers()])
    with pytest.raises(hope.InfeasibleBudget, match="does not know its latency: encode again with latency="):
        hope.load(folder, net, latency=0.5)


def test_a_run_that_was_stored_with_times_knows_its_latency() -> None:
    run = read_run(OLD / "run-v3-latency")
    assert run.trajectory.counts("latency").tolist() == list(run.record.times)
    assert run.trajectory.steps_to("latency", 0.6) == run.steps


def test_a_run_by_the_former_name_of_a_method_has_the_present_one() -> None:
    run = read_run(OLD / "run-v3-hope")
    assert run.method == run.details.settings["method"]["name"] == "paper"


def test_a_migration_changes_nothing_of_what_it_is_given() -> None:
    for path in [*OLD.glob("run-v2-*/*.json"), *OLD.glob("adapter-v1-*/*.json")]:
        plan = json.loads(path.read_text())
        form = RUN if path.name == PLAN else ADAPTER
        before = copy.deepcopy(plan)
        assert migrated(plan, form)["version"] == form.version
        assert plan == before


def test_files_of_this_version_are_not_migrated() -> None:
    for form in FORMS:
        paths = [*OLD.glob(f"*-v{form.version}-*/*.json")]
        plans = [json.loads(Path(path).read_text()) for path in paths]
        mine = [plan for plan in plans if plan["format"] == form.name]
        assert mine
        assert all(migrated(plan, form) is plan for plan in mine)
