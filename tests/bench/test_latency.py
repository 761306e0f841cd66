"""`hope bench latency`: what is measured and how it is reported; never how long anything took."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from hope.bench import latency
from hope.bench.budgets import Candidate, candidates
from hope.cli.main import main
from hope.demo import DigitsNet
from hope.errors import InfeasibleBudget, InvalidExample
from tests.support import randomise

EXAMPLE = torch.zeros(1, 1, 8, 8)
MODEL = "from hope.demo import DigitsNet\n"


@pytest.fixture
def network() -> nn.Module:
    return randomise(DigitsNet()).eval()


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "model.py").write_text(MODEL)
    return f"{tmp_path / 'model.py'}:DigitsNet"


def test_every_budget_is_measured_with_and_without_alignment_beside_the_original(network: nn.Module) -> None:
    made = candidates(
        network, EXAMPLE, methods=("absorb", "paper"), budgets=("params=0.7", "density=0.8"), multiple_of=8
    )
    found = list(made)
    assert [(c.facts["method"], c.facts["budget"], c.facts["multiple of"]) for c in found] == [
        ("original", "", 1),
        *(
            (method, budget, multiple)
            for method in ("absorb", "paper")
            for multiple in (1, 8)
            for budget in ("params=0.7", "density=0.8")
        ),
    ]
    whole = sum(p.numel() for p in network.parameters())
    for one in found:
        kept = sum(p.numel() for p in one.model.parameters()) / whole
        assert one.facts["parameters"] == pytest.approx(kept)
        if one.facts["multiple of"] == 8:
            assert all(m.out_channels % 8 == 0 for m in one.model.modules() if isinstance(m, nn.Conv2d))
    for one in found[1:]:
        unit, share = one.facts["budget"].split("=")
        assert one.facts[{"params": "parameters", "density": "neurons"}[unit]] <= float(share)


def test_the_original_is_one_and_all_ratios_are_of_its_median(network: nn.Module) -> None:
    found = list(candidates(network, EXAMPLE, budgets=("params=0.6",)))
    results = latency.measure(found, EXAMPLE, batches=(1, 3), repeats=4, engines=("torch",))
    rows = results["rows"]
    assert [(row["batch"], row["method"]) for row in rows] == [
        (batch, method) for batch in (1, 3) for method in ("original", "absorb")
    ]
    for original, small in ((rows[0], rows[1]), (rows[2], rows[3])):
        assert original["speed-up"] == 1.0
        assert small["speed-up"] == pytest.approx(original["median ms"] / small["median ms"])
        assert 0 < small["lower quartile ms"] <= small["median ms"] <= small["upper quartile ms"]
    assert results["threads"] == torch.get_num_threads()


def test_networks_take_turns_and_the_first_changes() -> None:
    seen: list[int] = []
    latency.repeated([lambda i=i: seen.append(i) for i in range(3)], 3)  # type: ignore[misc]
    warm = 3 * latency.WARM_UPS
    assert seen[warm:] == [0, 1, 2, 1, 2, 0, 2, 0, 1]


def test_onnxruntime_is_measured_beside_torch(
    spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in ("onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason="the onnx extra is not installed")
    out = tmp_path / "new" / "latency.json"
    arguments = ["--input", "1x1x8x8", "--budgets", "params=0.6", "--batches", "2", "--repeats", "2"]
    assert main(["bench", "latency", spec, *arguments, "--out", str(out)]) == 0
    assert "speed-up" in capsys.readouterr().out
    results = json.loads(out.read_text())
    assert [row["engine"] for row in results["rows"]] == ["torch"] * 2 + ["onnxruntime"] * 2
    assert all(row["speed-up"] > 0 for row in results["rows"])
    assert {"torch", "hope", "python", "onnxruntime"} <= results["versions"].keys()
    assert results["notes"] == []


def test_without_onnxruntime_torch_alone_is_measured(
    spec: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    arguments = ["--input", "1x1x8x8", "--budgets", "params=0.6", "--batches", "1", "--repeats", "2"]
    assert main(["bench", "latency", spec, *arguments]) == 0
    reported = capsys.readouterr()
    out = " ".join(reported.out.split())  # lines break where the times let them
    assert "pip install 'hope-encoding[onnx]'" in reported.err
    assert "torch, batch 1" in out
    assert "onnxruntime, batch" not in out


def test_other_answers_of_onnxruntime_are_not_timed(network: nn.Module, tmp_path: Path) -> None:
    for package in ("onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason="the onnx extra is not installed")
    latency.runner("onnxruntime", network, EXAMPLE + 1, tmp_path)

    class Elsewhere(nn.Module):  # what is exported is not what is run
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 1 if torch.compiler.is_exporting() else x - 1

    with pytest.raises(latency.EnginesDisagree, match="--engines torch"):
        latency.runner("onnxruntime", Elsewhere(), EXAMPLE, tmp_path)


@pytest.mark.parametrize("budget", ["params", "params=2", "params=x", "steps=3", "0.5"])
def test_a_wrong_budget_says_how_to_write_one(network: nn.Module, budget: str) -> None:
    with pytest.raises(InfeasibleBudget, match=r"write it like params=0\.65"):
        next(candidates(network, EXAMPLE, budgets=(budget,)))


@pytest.mark.parametrize("wrong", [["--repeats", "1"], ["--batches", "1", "0"]])
def test_what_cannot_be_measured_is_refused_before_any_work(
    wrong: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "latency", "missing.py:build", *wrong]) == 2
    assert "give 2 repeats or more" in capsys.readouterr().err


def test_a_batch_the_model_cannot_run_on_is_named() -> None:
    class One(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.reshape(1, -1)[:, :64].reshape(len(x), -1) if len(x) == 1 else x.reshape(5, 5)

    with pytest.raises(InvalidExample, match="batch must be a size that the model runs on, got 2"):
        latency.measure([Candidate(One(), {})], EXAMPLE, batches=(2,), repeats=2, engines=("torch",))


def test_a_budget_that_cannot_be_met_is_left_out_and_reported(
    spec: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["bench", "latency", spec, "--input", "1x1x8x8", "--methods", "l1-in", "--engines", "torch"]
    given += ["--repeats", "2", "--batches", "1", "--out", str(tmp_path / "r.json")]
    assert main([*given, "--budgets", "params=0.9", "params=0.0001"]) == 0
    note = "without l1-in at params=0.0001: params=0.0001 cannot be met"
    assert note in " ".join(capsys.readouterr().out.split())
    results = json.loads((tmp_path / "r.json").read_text())
    assert [row["budget"] for row in results["rows"]] == ["", "params=0.9"]
    assert results["notes"][0].startswith(note)
    assert main([*given, "--budgets", "params=0.0001"]) == 2
    assert "params=0.0001 cannot be met" in capsys.readouterr().err
    assert main([*given, "--budgets", "params=0.9", "--multiple-of", "64"]) == 0
    assert "params=0.9 cannot be met with multiple_of=64" in " ".join(capsys.readouterr().out.split())
