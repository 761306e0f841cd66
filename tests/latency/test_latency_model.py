"""What is predicted from widths, and what is measured for it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from math import inf, nan
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hope
from hope._util.digest import sealed
from hope.actions import Evict
from hope.demo import DigitsNet
from hope.errors import CannotExport
from hope.latency.cache import Table
from hope.latency.latency_model import LatencyModel, nonnegative
from hope.latency.measure import latency_model, narrow
from hope.latency.runtime import Runtime
from hope.latency.stopwatch import Point, Stopwatch, in_turns, typical
from hope.latency.surface import LatencyCurve
from hope.latency.timed_operators import Site, TimedOperator, read_layout
from tests.latency.fake import EACH, MACHINE, faked
from tests.support import randomise

EXAMPLE = torch.zeros(1, 1, 8, 8)
TORCH = Runtime("torch", batch=1, threads=1)


@pytest.fixture(scope="module")
def network() -> nn.Module:
    return randomise(DigitsNet()).eval()


@pytest.fixture(scope="module")
def anatomy(network: nn.Module) -> hope.Anatomy:
    return hope.inspect(network, EXAMPLE)


class Depthwise(nn.Module):
    """Dense, depthwise, grouped, transposed and linear operators, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1, groups=16)
        self.c, self.d = nn.Conv2d(16, 24, 1), nn.Conv2d(24, 24, 3, groups=4, padding=1)
        self.up, self.head = nn.ConvTranspose2d(24, 8, 2, stride=2), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.d(F.relu(self.c(F.relu(self.b(F.relu(self.a(x))))))))
        return self.head(F.relu(self.up(x)).mean((2, 3)))


def test_the_model_predicts_networks_of_any_widths(network: nn.Module, anatomy: hope.Anatomy) -> None:
    with faked() as fake:
        model = latency_model(network, EXAMPLE, anatomy, TORCH)
        rng = np.random.default_rng(0)
        for _ in range(5):
            removed = {unit.name: int(rng.integers(unit.neurons * 7 // 8)) for unit in anatomy.layers}
            took = fake.network(narrow(network, anatomy, removed), EXAMPLE, 1)
            assert model.after(removed) == pytest.approx(took, rel=0.02)


@pytest.mark.parametrize("method", ["paper", "absorb", "l1-in"])
def test_times_along_a_run_are_those_of_its_networks(
    network: nn.Module, anatomy: hope.Anatomy, method: str
) -> None:
    with faked() as fake:
        run = hope.encode(network, EXAMPLE, anatomy=anatomy, latency=0.5, method=method)
        assert run.trajectory.times is not None
        for steps in range(0, len(run.trajectory), 13):
            took = fake.network(run.at(steps=steps), EXAMPLE, 1)
            assert run.trajectory.times[steps] == pytest.approx(took, rel=0.05)


def test_what_takes_time_goes_before_what_has_parameters() -> None:
    torch.manual_seed(0)
    wide = nn.Sequential(nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 2, 3))
    deep = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 5))
    model = randomise(nn.Sequential(wide, nn.AdaptiveAvgPool2d(4), nn.Flatten(), deep)).eval()
    example = torch.zeros(2, 1, 32, 32)
    lost = {}
    with faked():
        for budget in ({"latency": 0.8}, {"params": 0.8}):
            run = hope.encode(model, example, method="paper", **budget)
            lost[next(iter(budget))] = {step.name for step in run.trajectory.steps[:3]}
    assert lost == {"latency": {"0.0"}, "params": {"3.0"}}


def test_savings_follow_the_network_and_stay_above_zero(network: nn.Module, anatomy: hope.Anatomy) -> None:
    anatomy = hope.inspect(network, EXAMPLE)
    with faked():
        model = latency_model(network, EXAMPLE, anatomy, TORCH)
        run = hope.encode(network, EXAMPLE, anatomy=anatomy, density=0.3, method="paper")
    fresh, saves = model.savings(), model.savings()
    name = anatomy.layers[0].name
    some = anatomy.layers[0].neurons // 2
    drop = model.after({}) - model.after({name: some})
    assert saves.unit(name) == pytest.approx(drop / some, rel=0.05)
    for step in run.trajectory.steps:
        changed = saves.take(step)
        fresh = model.savings()
        for taken in run.trajectory.steps[: run.trajectory.steps.index(step) + 1]:
            fresh.take(taken)
        assert isinstance(step, Evict) or step.name in changed
        for unit in anatomy.layers[:3]:
            assert saves.unit(unit.name) == fresh.unit(unit.name) > 0
        if run.trajectory.steps.index(step) > 20:
            break
    assert all(model.savings().block(block.name) > 0 for block in anatomy.blocks)


def test_where_times_go_in_steps_the_run_goes_on(network: nn.Module, anatomy: hope.Anatomy) -> None:
    with faked(block=16):  # no neuron saves anything by itself
        run = hope.encode(network, EXAMPLE, anatomy=anatomy, latency=0.6, evict=False)
        assert run.latency is not None
        assert run.latency.measured < 0.8 * run.latency.original


def test_every_kind_of_operator_is_timed_at_its_widths() -> None:
    model = randomise(Depthwise()).eval()
    example = torch.zeros(2, 3, 8, 8)
    anatomy = hope.inspect(model, example)
    layout = read_layout(anatomy, 4, "torch")
    found = {site.weight: site for site in layout.sites}
    assert found["a.weight"].operator == TimedOperator(
        "conv", (4, 8, 8), (3, 3), (1, 1), (1, 1), (1, 1), bias=True
    )
    assert found["b.weight"].operator.group == (1, 1)
    assert found["b.weight"].operator.channels((12, 12)) == (12, 12, 12)
    assert found["d.weight"].operator.group == (6, 6)
    assert found["d.weight"].operator.channels((12, 12)) == (12, 12, 2)
    assert found["up.weight"].operator.kind == "transposed"
    assert (found["up.weight"].full, found["up.weight"].places) == ((24, 8), (4 * 64, 4 * 256))
    assert found["head.weight"].operator == TimedOperator("linear", (4,), bias=True)
    for engine in ("torch", "onnxruntime"):
        if engine == "onnxruntime":
            pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
        points = [(site.operator, site.full) for site in layout.sites]
        assert all(ns > 0 for ns in Stopwatch(Runtime(engine, batch=4, threads=1)).operators(points))


def test_a_batch_norm_and_an_activation_melt_into_a_convolution_in_onnxruntime(
    network: nn.Module, anatomy: hope.Anatomy
) -> None:
    counts = [sum(rest.count for rest in read_layout(anatomy, 1, e).rests) for e in ("torch", "onnxruntime")]
    assert counts[1] < counts[0] - 5


def curve(block: int, full: tuple[int, int] = (64, 64)) -> LatencyCurve:
    site = Site(TimedOperator("conv", (1, 4, 4), (1, 1), (1, 1), (0, 0), (1, 1)), "w", 1, 0, full, (16, 16))
    return LatencyCurve(site, {("w", 0), ("w", 1)}, block)


def test_widths_between_measured_ones_lie_on_a_straight_line() -> None:
    line = curve(1)
    assert line.points() == [(a, b) for a in (8, 16, 32, 48, 64) for b in (8, 16, 32, 48, 64)]
    line.set_times(lambda _, width: 10.0 + width[0] * width[1])
    for reads, writes in ((64, 64), (60, 33), (13, 50), (8, 9)):
        assert float(line(np.array(float(reads)), np.array(float(writes)))) == pytest.approx(
            10 + reads * writes
        )
    assert float(line(np.array(0.0), np.array(8.0))) == 0


def test_widths_count_up_to_a_block_and_odd_ones_go_another_way() -> None:
    line = curve(16)
    assert all(reads % 4 for reads, _ in line.points() if reads >= 16 and reads % 16)
    line.set_times(
        lambda _, width: (1000.0 if width[0] >= 16 and width[0] % 4 else 0.0) + width[0] * width[1]
    )

    def at(reads: float, writes: float) -> float:
        return float(line(np.array(reads), np.array(writes)))

    assert at(64, 49) == at(64, 64) == 64 * 64
    assert at(64, 48) == 64 * 48
    assert at(52, 64) == at(64, 64)
    assert at(63, 64) == pytest.approx(1000 + 63 * 64)
    assert at(12, 64) == pytest.approx(12 * 64)
    smooth = [float(line.smooth(np.array(64.0), np.array(float(w)))) for w in range(16, 65)]
    assert all(a < b for a, b in pairwise(smooth))


def test_factors_are_never_negative() -> None:
    terms = np.array([[1.0, 5.0], [2.0, 4.0], [3.0, 3.0]])
    found = nonnegative(terms, np.array([1.0, 2.0, 3.0]))
    assert found.tolist() == pytest.approx([1.0, 0.0])
    assert (nonnegative(terms, np.array([3.0, 2.0, 1.0])) >= 0).all()


def test_what_is_measured_once_is_kept(network: nn.Module, anatomy: hope.Anatomy, tmp_path: Path) -> None:
    with faked(folder=str(tmp_path)) as first:
        before = hope.encode(network, EXAMPLE, anatomy=anatomy, latency=0.6)
    with faked(folder=str(tmp_path)) as second:
        after = hope.encode(network, EXAMPLE, anatomy=anatomy, latency=0.6)
    assert len(first.points) == len(set(first.points)) > 10
    assert second.points == []
    assert second.networks == 2  # the original and the result, side by side
    assert after.trajectory.steps == before.trajectory.steps
    reported = json.loads(next(tmp_path.glob("latency/torch-*.json")).read_text())
    assert reported["machine"] == MACHINE


def test_a_table_of_another_machine_is_measured_anew_and_that_is_said(
    network: nn.Module, anatomy: hope.Anatomy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with faked(folder=str(tmp_path)):
        hope.encode(network, EXAMPLE, anatomy=anatomy, latency=0.9)
    assert capsys.readouterr().err == ""
    with faked(folder=str(tmp_path), machine={**MACHINE, "cpu": "Slide rule"}) as other:
        hope.encode(network, EXAMPLE, anatomy=anatomy, latency=0.9)
    reported = capsys.readouterr().err.strip()
    assert "was measured elsewhere (cpu Abacus, here Slide rule): latencies are measured again" in reported
    assert "\n" not in reported
    assert other.points


@pytest.mark.parametrize(
    "content",
    [
        b"{",
        b"[]",
        b"[" * 100_000,
        b'{"format":"hope-latency","version":99,"machine":{}}',
        sealed({"format": "hope-latency", "version": 2, "machine": json.loads("[" * 500 + "]" * 500)}),
        sealed({"format": "hope-latency", "version": 2, "machine": {}, "operators": {"a": {"b": [[1]]}}}),
        sealed({"format": "hope-latency", "version": 2, "machine": {}, "networks": {"a": [10**400]}}),
    ],
    ids=range(7),
)
def test_a_damaged_table_is_measured_anew(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with faked(folder=str(tmp_path)):
        path = Table(TORCH).path
        path.parent.mkdir(parents=True)
        path.write_bytes(content)
        assert Table(TORCH).kept.operators == {}
    assert "measured again" in capsys.readouterr().err


def test_a_changed_latency_is_noticed(
    network: nn.Module, anatomy: hope.Anatomy, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with faked(folder=str(tmp_path)):
        before = hope.encode(network, EXAMPLE, anatomy=anatomy, latency=0.9)
        (path,) = tmp_path.glob("latency/*.json")
        reported = json.loads(path.read_text())
        reported["networks"] = {
            digest: [2 * one for one in times] for digest, times in reported["networks"].items()
        }
        path.write_text(json.dumps(reported))
        after = hope.encode(network, EXAMPLE, anatomy=anatomy, latency=0.9)
    assert "was altered after it was written: latencies are measured again" in capsys.readouterr().err
    assert after.trajectory.steps == before.trajectory.steps


@pytest.mark.parametrize("absurd", [0.0, -5.0, inf, -inf, nan])
def test_only_latencies_that_are_positive_and_finite_are_kept(
    absurd: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    operator = TimedOperator("linear", (1,))
    points: list[Point] = [(operator, (k, 1)) for k in (1, 2)]
    with faked(folder=str(tmp_path)):
        table = Table(TORCH)
        table.fill(points, lambda _: [absurd, EACH], progress=False)
        table.networks("a", 2, lambda: [EACH, absurd])
        table.networks("b", 2, lambda: [EACH, EACH])
        again, measured = Table(TORCH), list[Point]()
        again.fill(points, lambda some: [measured.append(one) or EACH for one in some], progress=False)  # type: ignore[func-returns-value]
        assert again.networks("a", 2, lambda: [1.0, 2.0]) == [1.0, 2.0]
        assert again.networks("b", 2, lambda: [1.0, 2.0]) == [EACH, EACH]
        assert again.networks("b", 3, lambda: [1.0, 2.0, 3.0]) == [1.0, 2.0, 3.0]
    assert measured == points[:1]
    reported = capsys.readouterr().err
    assert reported.endswith("has latencies that are not positive numbers: these are measured again\n")
    assert reported.count("\n") == 1


def test_an_interrupted_measurement_goes_on_where_it_was(tmp_path: Path) -> None:
    operator = TimedOperator("linear", (1,))
    points: list[Point] = [(operator, (k, 1)) for k in range(1, 61)]
    measured: list[Point] = []

    def stops(some: Sequence[Point]) -> list[float]:
        if len(measured) >= 24:
            raise KeyboardInterrupt
        measured.extend(some)
        return [EACH] * len(some)

    with faked(folder=str(tmp_path)):
        with pytest.raises(KeyboardInterrupt):
            Table(TORCH).fill(points, stops, progress=False)
        rest: list[Point] = []
        table = Table(TORCH)
        table.fill(points, lambda some: [rest.append(one) or EACH for one in some], progress=False)  # type: ignore[func-returns-value]
    assert measured + rest == points
    assert len(measured) == 24


def test_runners_take_turns() -> None:
    seen: list[int] = []
    times = in_turns([lambda i=i: seen.append(i) for i in range(2)], 0.0)  # type: ignore[misc]
    assert seen[:8] == [0, 0, 1, 1, 1, 1, 0, 0]
    assert len(times[0]) == len(times[1]) >= 5
    assert typical([5.0, 1.0, 2.0, 3.0, 4.0]) == 1.0


def test_a_model_that_onnxruntime_cannot_run_is_reported_in_a_line(
    network: nn.Module, tmp_path: Path
) -> None:
    pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")

    class Strange(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network

        def forward(self, x: Tensor) -> Tensor:
            return torch.special.bessel_j0(self.net(x))

    with pytest.raises(
        CannotExport, match=r"onnxruntime cannot run this model .*: use runtime='torch'"
    ) as error:
        Stopwatch(Runtime("onnxruntime", batch=1, threads=1)).networks([Strange()], EXAMPLE)
    assert "\n" not in str(error.value)


def test_both_engines_measure_whole_networks(network: nn.Module) -> None:
    for engine in ("torch", "onnxruntime"):
        if engine == "onnxruntime":
            pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")
        found = Stopwatch(Runtime(engine, batch=2, threads=1)).networks([network], EXAMPLE)
        assert found[0] > 0


def test_a_batch_that_the_model_cannot_run_on_is_named(network: nn.Module) -> None:
    class Fixed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.reshape(1, 64)

    with pytest.raises(hope.InvalidExample, match="batch must be a size that the model runs on, got 3"):
        Stopwatch(Runtime("torch", batch=3, threads=1)).networks([Fixed()], EXAMPLE)


def test_models_of_the_same_table_are_the_same(
    network: nn.Module, anatomy: hope.Anatomy, tmp_path: Path
) -> None:
    models: list[LatencyModel] = []
    for _ in range(2):
        with faked(folder=str(tmp_path)):
            models.append(latency_model(network, EXAMPLE, anatomy, TORCH))
    assert models[0].to_list() == models[1].to_list()
