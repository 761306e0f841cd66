"""One width for all layers that are alike: at every budget, for every method, however the run is made."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hope
from hope.cli.main import main
from hope.demo import DigitsNet
from hope.reasons import Cause
from hope.schedule import resume
from hope.schedule.search_space import SearchSpace
from hope.schedule.width_constraints import Group, alike
from tests.latency.fake import faked
from tests.support import assert_same, randomise, run

EXAMPLE = torch.linspace(-1, 1, 2 * 64).reshape(2, 1, 8, 8)
ALIKE = tuple(f"blocks.{number}.conv1" for number in range(3))
METHODS = [hope.Absorb(calibration=None), hope.Paper(), hope.Paper(release="live"), hope.Score("l1-joint")]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(1)
    return randomise(DigitsNet()).eval()


@pytest.fixture(scope="module")
def anatomy(model: nn.Module) -> hope.Anatomy:
    return hope.inspect(model, EXAMPLE)


def widths(model: nn.Module) -> set[int]:
    """Those of the layers that are alike."""
    return {model.get_submodule(name).out_channels for name in ALIKE}  # type: ignore[misc]


def rounds(encoding: hope.Encoding) -> Iterator[list[hope.actions.Action]]:
    """What is done between two stops."""
    stops = encoding.trajectory.stops
    for start, end in pairwise(stops):
        yield list(encoding.trajectory.steps[start:end])


def test_alike_is_the_same_layer_of_every_block_with_as_many_neurons(anatomy: hope.Anatomy) -> None:
    assert alike(anatomy) == [Group(ALIKE), Group(("squeeze",))]
    linear = [nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU()]
    net = nn.Sequential(*linear, nn.Linear(5, 2))
    assert alike(hope.inspect(net, torch.zeros(1, 4))) == [Group(("0", "2")), Group(("4",))]


@pytest.mark.parametrize("method", METHODS, ids=str)
@pytest.mark.parametrize("multiple", [1, 4])
def test_widths_are_one_at_every_budget(
    model: nn.Module, anatomy: hope.Anatomy, method: Any, multiple: int, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"method": method, "multiple_of": multiple, "anatomy": anatomy}
    encoding = hope.encode(model, EXAMPLE, params=0.4, uniform=True, progress=False, **options)
    whole = encoding.trajectory.size(0).parameters
    for budget in (0.9, 0.7, 0.5, 0.4):
        small = encoding.at(params=budget)
        assert sum(p.numel() for p in small.parameters()) <= budget * whole
        (width,) = widths(small)
        assert width == 32 or width % multiple == 0
    assert widths(encoding.model) < {*range(32)}
    assert encoding.trajectory.mix()["evict"] == 0
    again = hope.load(encoding.save(tmp_path / "run"), model, params=0.7)
    assert_same(run(again, EXAMPLE), run(encoding.at(params=0.7), EXAMPLE), 1e-6)


@pytest.mark.parametrize("method", [METHODS[0], METHODS[1]], ids=str)
def test_a_round_is_one_step_of_each_and_costs_their_sum(
    model: nn.Module, anatomy: hope.Anatomy, method: Any
) -> None:
    options: dict[str, Any] = {"method": method, "anatomy": anatomy, "progress": False}
    encoding = hope.encode(model, EXAMPLE, density=5, uniform=True, **options)
    single = hope.encode(model, EXAMPLE, density=4, evict=False, **options)
    paths = {name: [step for step in single.trajectory if step.name == name] for name in (*ALIKE, "squeeze")}
    together = [steps for steps in rounds(encoding) if steps[0].name in ALIKE]
    assert len(together) >= 20
    for number, steps in enumerate(together):
        assert tuple(step.name for step in steps) == ALIKE
        assert [step.removed for step in steps] == [paths[name][number].removed for name in ALIKE]
        costs = [paths[name][number].cost for name in ALIKE]
        assert sum(step.cost for step in steps) == pytest.approx(sum(costs))


def test_the_cheapest_round_goes_first(model: nn.Module, anatomy: hope.Anatomy) -> None:
    encoding = hope.encode(
        model, EXAMPLE, density=5, uniform=True, method=METHODS[0], anatomy=anatomy, progress=False
    )
    every = list(rounds(encoding))
    price = [sum(step.cost for step in steps) / sum(step.release for step in steps) for steps in every]
    names = [steps[0].name for steps in every]
    assert len([name for name, _ in groupby(names)]) > 2  # now this, now that
    for number, name in enumerate(names):
        other = next((k for k in range(number, len(names)) if names[k] != name), None)
        assert other is None or price[number] <= price[other] * (1 + 1e-9)


@pytest.mark.parametrize("method", METHODS, ids=str)
def test_the_rest_of_a_run_follows_from_any_beginning(
    model: nn.Module, anatomy: hope.Anatomy, method: Any
) -> None:
    plan = SearchSpace.of(model, EXAMPLE, anatomy, method, evict=False, groups=alike(anatomy))
    whole = list(plan.steps())
    for begun in (1, 2, 3, 7, 29, 50):
        rest = list(plan.steps(done=whole[:begun]))
        assert [(one.name, one.removed) for one in rest] == [(one.name, one.removed) for one in whole[begun:]]
    with ThreadPoolExecutor(2) as pool:
        assert list(plan.steps(executor=pool)) == whole


def test_an_interrupted_run_goes_on(
    model: nn.Module, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"density": 0.5, "uniform": True, "method": METHODS[0], "progress": False}
    whole, file = hope.encode(model, EXAMPLE, **options), tmp_path / "partial.json"
    monkeypatch.setattr(resume, "EVERY", 0.0)
    monkeypatch.setattr("hope.schedule.run_to_budget.CHUNK", 7)  # stops in the middle of a round
    write = resume.RunCheckpoint.write

    def stop(self: Any, *args: Any, **kwargs: Any) -> None:
        write(self, *args, **kwargs)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(resume.RunCheckpoint, "write", stop)
        with pytest.raises(KeyboardInterrupt):
            hope.encode(model, EXAMPLE, checkpoint=file, **options)
    assert len(json.loads(file.read_text())["steps"]) == 7
    again = hope.encode(model, EXAMPLE, checkpoint=file, **options)
    count = min(len(again.trajectory), len(whole.trajectory))
    assert again.trajectory.steps[:count] == whole.trajectory.steps[:count]
    assert again.steps == whole.steps
    assert not file.exists()


def test_other_budgets_end_at_a_round(model: nn.Module, anatomy: hope.Anatomy) -> None:
    options: dict[str, Any] = {"uniform": True, "method": METHODS[0], "anatomy": anatomy, "progress": False}
    with faked():
        found = [
            hope.encode(model, EXAMPLE, **options, **budget)
            for budget in ({"latency": 0.7}, {"size": 0.7}, {"macs": 0.7}, {"fidelity": 0.9})
        ]
    assert all(len(widths(one.model)) == 1 and one.steps in one.trajectory.stops for one in found)
    assert found[0].latency is not None
    assert all(one.steps > 0 for one in found[:3])
    few = hope.encode(model, EXAMPLE, steps=50, **options)
    assert few.steps in few.trajectory.stops
    assert 47 < few.steps <= 50
    if few.steps < 50:
        assert "steps=50 is no stop of this run" in str(few)


def test_a_layer_that_stays_keeps_those_that_are_alike(model: nn.Module) -> None:
    options: dict[str, Any] = {"uniform": True, "method": METHODS[0], "exclude": ["blocks.1.*"]}
    encoding = hope.encode(model, EXAMPLE, steps=3, **options)
    assert {step.name for step in encoding.trajectory} == {"squeeze"}
    assert [encoding.left_alone[name].cause for name in ALIKE] == [Cause.ALIKE, Cause.EXCLUDED, Cause.ALIKE]
    assert str(encoding.left_alone[ALIKE[0]]) == (
        "uniform: the corresponding layer blocks.1.conv1 is kept (excluded by 'blocks.1.*')"
    )
    with pytest.raises(hope.InfeasibleBudget, match=r"2 layers stay, uniform: the corr.* blocks\.1\.conv1"):
        hope.encode(model, EXAMPLE, params=0.3, **options)


def test_what_does_not_go_with_it_is_refused(model: nn.Module, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(hope.HopeError, match="streams must be off with uniform=True, got streams=True"):
        hope.encode(model, EXAMPLE, params=0.5, uniform=True, streams=True)
    with pytest.raises(hope.HopeError, match="uniform must be True or False, got 8"):
        hope.encode(model, EXAMPLE, params=0.5, uniform=8)  # type: ignore[arg-type]
    given = ["encode", "net.py:build", "--params", "0.5", "--out", "run", "--uniform", "--streams"]
    assert main(given) == 2
    assert "--uniform and --streams cannot be combined: omit one of them" in capsys.readouterr().err


def test_the_commands_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("net.py").write_text("from hope.demo import DigitsNet as build")
    given = ["encode", "net.py:build", "--input", "2x1x8x8", "--density", "0.5", "--out", "run"]
    given += ["--calibration", "none", "--uniform"]
    assert main([*given, "--report"]) == 0
    assert '"uniform":true' in Path("run/report.html").read_text()
    assert main([*given, "--resume"]) == 0
    assert "already has this run" in capsys.readouterr().out
    assert main(["extract", "run", "net.py:build", "--steps", "50"]) == 0
    assert "50 steps is no stop of this run, whose layers go together: " in capsys.readouterr().out
    small = hope.load("run", DigitsNet())
    assert len(widths(small)) == 1
    assert main(["extract", "run", "net.py:build", "--save-pretrained", "small"]) == 2
    assert "must get a transformers model, got DigitsNet: give --out FILE instead" in capsys.readouterr().err
    assert main([*given[:-1], "--resume"]) == 2
    assert "uniform was True, not False" in capsys.readouterr().err
