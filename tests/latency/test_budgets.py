"""Budgets in milliseconds and megabytes: how they are written, what meets them, what is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import nn

import hope
from hope.actions import Evict
from hope.cli.main import main
from hope.demo import DigitsNet
from hope.schedule.budget import Budget, one_budget
from hope.storage.run import read_run
from tests.latency.fake import Fake, faked
from tests.support import randomise

EXAMPLE = torch.zeros(1, 1, 8, 8)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    torch.manual_seed(0)
    return randomise(DigitsNet()).eval()


@pytest.fixture(scope="module")
def anatomy(network: nn.Module) -> hope.Anatomy:
    return hope.inspect(network, EXAMPLE)


@pytest.fixture
def fake() -> Iterator[Fake]:
    with faked() as machine:
        yield machine


def nbytes(model: nn.Module) -> int:
    return sum(one.nbytes for one in [*model.parameters(), *model.buffers()])


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ({"latency": "2ms"}, 2 * 10**6), ({"latency": "0.5 ms"}, 500_000), ({"latency": "15s"}, 15 * 10**9),
        ({"latency": "800us"}, 800_000), ({"latency": "800µs"}, 800_000), ({"latency": 0.6}, 0.6),
        ({"latency": 1}, 1.0), ({"size": "10MB"}, 10_000_000), ({"size": "10 mb"}, 10_000_000),
        ({"size": "2KiB"}, 2048), ({"size": "1e3B"}, 1000), ({"size": 0.5}, 0.5),
    ],
)  # fmt: skip
def test_amounts_are_written_with_their_unit(given: dict[str, Any], value: float) -> None:
    budget = one_budget(**given)
    assert budget.value == value
    assert type(budget.value) is type(value)


def test_half_a_millisecond_is_not_half_of_the_original() -> None:
    assert one_budget(latency="0.5ms").allowed(10**9) == 500_000
    assert one_budget(latency=0.5).allowed(10**9) == 5e8


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"latency": "12"}, "latency must be .* with its unit \\(s, ms, us\\), got '12': give latency=0.6"),
        ({"latency": 12}, "got 12: give latency=0.6 or latency='12ms'"),
        ({"latency": "-3ms"}, "got '-3ms': give"),
        ({"latency": -0.5}, "got -0.5: give"),
        ({"latency": "fast"}, "got 'fast': give"),
        ({"latency": "1.2.3ms"}, "got '1.2.3ms': give"),
        ({"latency": "12MB"}, "with its unit \\(s, ms, us\\), got '12MB'"),
        ({"size": "10"}, "size must be .*, got '10': give size=0.6 or size='10MB'"),
        ({"size": "10ms"}, "with its unit \\(B, kB, MB, GB, KiB, MiB, GiB\\), got '10ms'"),
        ({"size": float("nan")}, "size must be a fraction between 0 and 1 .* got nan"),
        ({"latency": 0.5, "params": 0.5}, r"the budget must be exactly one of .*, got params, latency"),
    ],
)
def test_what_is_no_budget_is_refused_in_a_line(
    network: nn.Module, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(hope.InfeasibleBudget, match=words) as error:
        hope.encode(network, EXAMPLE, **given)
    assert "\n" not in str(error.value)


def test_a_size_counts_the_bytes_of_parameters_and_buffers(network: nn.Module) -> None:
    for model in (network, randomise(DigitsNet()).eval().bfloat16()):
        example = EXAMPLE.to(next(model.parameters()).dtype)
        whole = nbytes(model)
        encoding = hope.encode(model, example, size=0.6, method="l1-in")
        for steps in (0, encoding.steps // 2, encoding.steps):
            assert encoding.trajectory.counts("size")[steps] == nbytes(encoding.at(steps=steps))
        assert nbytes(encoding.model) <= 0.6 * whole < nbytes(encoding.at(steps=encoding.steps - 1))
        as_amount = hope.encode(model, example, size="100kB", method="l1-in")
        assert nbytes(as_amount.model) <= 10**5


def test_bytes_follow_evictions_and_the_biases_they_leave(network: nn.Module, anatomy: hope.Anatomy) -> None:
    encoding = hope.encode(network, EXAMPLE, anatomy=anatomy, size=0.3, method="paper")
    evicted = [step for step in encoding.trajectory if isinstance(step, Evict)]
    assert evicted
    for steps in range(0, len(encoding.trajectory) + 1, 7):
        assert encoding.trajectory.counts("size")[steps] == nbytes(encoding.at(steps=steps))


def test_the_least_size_is_reported_before_the_work(network: nn.Module, anatomy: hope.Anatomy) -> None:
    with pytest.raises(
        hope.InfeasibleBudget, match=r"size=100B cannot be met: the smallest reachable is size=0\.\d+ \("
    ):
        hope.encode(network, EXAMPLE, anatomy=anatomy, size="100B")


def test_a_latency_is_met_by_the_prediction_and_measured(
    network: nn.Module, anatomy: hope.Anatomy, fake: Fake
) -> None:
    encoding = hope.encode(network, EXAMPLE, anatomy=anatomy, latency=0.6)
    reported, times = encoding.latency, encoding.trajectory.times
    assert reported is not None
    assert times is not None
    assert times[encoding.steps] <= 0.6 * times[0] < times[: encoding.steps].min()
    assert reported.original == pytest.approx(fake.network(network, EXAMPLE, 1) / 1e6)
    assert reported.measured == pytest.approx(fake.network(encoding.model, EXAMPLE, 1) / 1e6)
    assert reported.predicted == times[encoding.steps] / 1e6
    assert abs(reported.error) < 0.1
    assert f"latency {reported.measured:.3g} ms" in str(encoding)
    assert hope.encode(network, EXAMPLE, anatomy=anatomy, params=0.6).latency is None


def test_one_run_answers_every_latency(
    network: nn.Module, anatomy: hope.Anatomy, fake: Fake, tmp_path: Path
) -> None:
    encoding = hope.encode(network, EXAMPLE, anatomy=anatomy, latency=0.4)
    other = hope.encode(network, EXAMPLE, anatomy=anatomy, latency=0.7)
    times = encoding.trajectory.times
    assert times is not None
    small = encoding.at(latency=0.7)
    assert [one.shape for one in small.parameters()] == [one.shape for one in other.model.parameters()]
    folder = encoding.save(tmp_path / "run")
    again = hope.load(folder, network, latency=f"{0.7 * times[0] / 1e6}ms")
    assert [one.shape for one in again.parameters()] == [one.shape for one in other.model.parameters()]
    run = read_run(folder)
    assert run.record.timing is not None
    assert run.record.timing.runtime == hope.Runtime("torch", batch=1, threads=torch.get_num_threads())
    assert run.record.timing.machine["cpu"] == "Abacus"
    assert [steps for steps, _ in run.record.timing.measured] == [0, encoding.steps]
    assert run.trajectory.times is not None
    assert np.array_equal(run.trajectory.times, times)
    trained = read_run(hope.save_finetuned(tmp_path / "trained", folder, encoding.model))
    assert trained.record.timing == run.record.timing


def test_the_least_latency_is_reported_before_the_work(
    network: nn.Module, anatomy: hope.Anatomy, fake: Fake
) -> None:
    with pytest.raises(
        hope.InfeasibleBudget, match=r"latency=1e-06ms cannot be met: the smallest reachable is latency=0"
    ):
        hope.encode(network, EXAMPLE, anatomy=anatomy, latency="1e-6ms")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"params": 0.5, "runtime": "torch"}, "must be a latency where runtime is given, got params=0.5"),
        ({"latency": 0.5, "runtime": "tflite"}, "one of torch, onnxruntime, got 'tflite'"),
    ],
)
def test_runtimes_that_make_no_sense_are_refused(
    network: nn.Module, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(hope.UnknownMethod, match=words):
        hope.encode(network, EXAMPLE, **options)


@pytest.mark.parametrize("wrong", [{"batch": 0}, {"threads": -1}, {"batch": 1.5}, {"threads": True}])
def test_a_runtime_has_whole_numbers(wrong: dict[str, Any]) -> None:
    with pytest.raises(hope.UnknownMethod, match="must be a whole number from 1"):
        hope.Runtime("torch", **wrong)


def test_a_runtime_that_is_not_installed_says_what_to_install(
    network: nn.Module, anatomy: hope.Anatomy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(hope.HopeError, match=r"pip install 'hope-encoding\[onnx\]', or use runtime='torch'"):
        hope.encode(network, EXAMPLE, anatomy=anatomy, latency=0.5, runtime="onnxruntime")


def test_the_batch_is_the_examples_unless_another_is_given(
    network: nn.Module, anatomy: hope.Anatomy, fake: Fake
) -> None:
    by_example = hope.encode(network, EXAMPLE.expand(4, -1, -1, -1), latency=0.9)
    given = hope.encode(
        network, EXAMPLE, anatomy=anatomy, latency=0.9, runtime=hope.Runtime("torch", batch=4)
    )
    assert by_example.latency == given.latency
    one = hope.encode(network, EXAMPLE, anatomy=anatomy, latency=0.9).latency
    assert one is not None
    assert given.latency is not None
    assert given.latency.original > 3 * one.original


def test_other_budgets_are_not_touched_by_a_latency(
    network: nn.Module, anatomy: hope.Anatomy, fake: Fake
) -> None:
    before = hope.encode(network, EXAMPLE, anatomy=anatomy, params=0.5).trajectory
    hope.encode(network, EXAMPLE, anatomy=anatomy, latency=0.5)
    assert hope.encode(network, EXAMPLE, anatomy=anatomy, params=0.5).trajectory.steps == before.steps
    assert before.times is None


def test_the_command_line_takes_both(fake: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "model.py").write_text("from hope.demo import DigitsNet\n")
    spec = [f"{tmp_path / 'model.py'}:DigitsNet", "--input", "1x1x8x8"]
    run = str(tmp_path / "run")
    assert main(["encode", *spec, "--latency", "0.6", "--batch", "2", "--out", run]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "(torch, batch 2, " in out
    assert "were predicted" in out
    assert main(["encode", *spec, "--latency", "0.6", "--batch", "2", "--out", run, "--resume"]) == 0
    assert "already has this run" in capsys.readouterr().out
    assert main(["encode", *spec, "--latency", "0.6", "--out", run, "--resume"]) == 2
    assert "it was made for torch, batch 2" in " ".join(capsys.readouterr().err.split())
    assert main(["encode", *spec, "--size", "100kB", "--out", run, "--force"]) == 0
    assert main(["encode", *spec, "--latency", "12", "--out", run, "--force"]) == 2
    assert "with its unit (s, ms, us), got 12:" in capsys.readouterr().err
    assert main(["encode", *spec, "--params", "0.6", "--threads", "2", "--out", run, "--force"]) == 2
    assert "--threads must come with --latency" in capsys.readouterr().err
    assert main(["extract", run, spec[0], "--latency", "0.9", "--out", str(tmp_path / "x.safetensors")]) == 2
    assert "does not know its latency" in capsys.readouterr().err


def test_budgets_say_their_amount() -> None:
    assert str(Budget("latency", 1_500_000)) == "latency=1.5ms"
    assert str(Budget("size", 10_000_000)) == "size=10MB"
    assert str(Budget("size", 0.5)) == "size=0.5"


def test_widths_that_the_runtime_likes_come_out_by_themselves(
    network: nn.Module, anatomy: hope.Anatomy
) -> None:
    how: dict[str, Any] = {"latency": 0.7, "runtime": "onnxruntime", "evict": False, "progress": False}
    with faked(block=8), patch("hope.latency.measure.block_of", lambda _: 8):
        free = hope.encode(network, EXAMPLE, anatomy=anatomy, **how)
        tried = {m: hope.encode(network, EXAMPLE, anatomy=anatomy, multiple_of=m, **how) for m in (1, 4, 8)}
    prices = {m: sum(step.cost for step in run.trajectory.steps[: run.steps]) for m, run in tried.items()}
    best = min(prices, key=lambda m: (round(prices[m], 9), -m))
    assert best > 1
    assert free.settings["multiple_of"] == best
    assert free.trajectory.steps == tried[best].trajectory.steps
    assert hope.encode(network, EXAMPLE, anatomy=anatomy, density=0.7).settings["multiple_of"] == 1


def test_weights_are_rounded_first_where_integers_are_faster(network: nn.Module) -> None:
    pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    how: dict[str, Any] = {"runtime": "onnxruntime", "evict": False, "multiple_of": 1, "progress": False}
    with faked() as fake:
        fake.integers = 0.25
        run = hope.encode(network, EXAMPLE, latency=0.15, **how)
        alone = hope.encode(network, EXAMPLE, latency=0.3, **how)
        without = hope.encode(network, EXAMPLE, latency=0.5, bits=None, **how)
    rounded = sum(reason is None for reason in run.anatomy.roundable.values())
    times = run.trajectory.times
    assert times is not None
    assert [step.kind for step in run.trajectory.steps[:rounded]] == ["quantise"] * rounded
    assert run.trajectory.mix()["quantise"] == rounded < run.steps
    assert set(times[:rounded]) == {times[0]}
    assert times[rounded] == pytest.approx(0.25 * times[0], rel=0.02)
    assert times[run.steps] <= 0.15 * times[0] < times[run.steps - 1]
    assert alone.steps == rounded
    assert without.trajectory.mix()["quantise"] == 0
    assert not set(range(1, rounded)) & set(run.trajectory.stops)


def test_weights_stay_floats_where_integers_are_not_faster(network: nn.Module) -> None:
    pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
    with faked():
        run = hope.encode(network, EXAMPLE, latency=0.7, runtime="onnxruntime", evict=False, progress=False)
    assert run.trajectory.mix()["quantise"] == 0
    assert any("is not faster with integers" in note for note in run.notes)
