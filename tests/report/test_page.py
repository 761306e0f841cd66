"""The page's data says what the run did, and nothing in it can break out of its place."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import hope
import hope.methods
from hope.actions import Absorption, AnyAction, Merge
from hope.demo import DigitsNet
from hope.geometry.projection import RIDGE
from hope.report.absorbers import absorbers
from hope.report.page import labels, page_data, render, run_data, scales, write_page
from hope.storage import run as store
from hope.storage.run import Run, read_run
from tests.latency.fake import faked
from tests.report.conftest import EXAMPLE
from tests.support import randomise


def widths(data: dict[str, Any], steps: int) -> dict[str, int]:
    """What the page's script makes of the data: neurons left per layer."""
    left = [layer["neurons"] for layer in data["layers"]]
    for t in range(steps):
        if data["kinds"][t] != "e":
            left[data["targets"][t]] -= len(data["several"].get(str(t), [0]))
    return {
        layer["name"]: 0 if layer["evicted"] is not None and steps >= layer["evicted"] else count
        for layer, count in zip(data["layers"], left, strict=True)
    }


def embedded(page: str) -> Any:
    """The data as a browser would read it: up to the first closing tag."""
    found = re.search(r'<script type="application/json" id="data">(.*?)</script', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def test_sizes_costs_and_releases_add_up_to_the_trajectory(folder: Path) -> None:
    run = read_run(folder)
    data = run_data(run)
    for column, name in enumerate(("neurons", "parameters", "macs")):
        assert list(accumulate(data[name])) == run.trajectory.sizes[:, column].tolist()
    assert np.allclose(data["costs"], [step.cost for step in run.trajectory], rtol=1e-4)
    last: dict[tuple[bool, int], int] = {}
    for t, step in enumerate(run.trajectory):
        assert data["kinds"][t] == {"prune": "p", "merge": "m", "absorb": "a", "evict": "e"}[step.kind]
        target = (step.kind == "evict", data["targets"][t])
        assert data["blocks" if target[0] else "layers"][target[1]]["name"] == step.name
        last[target] = last.get(target, 0) + data["releases"][t]
        assert last[target] == step.release
        if isinstance(step, Merge):
            assert (data["into"][t], data["who"][t]) == step.neurons


def test_widths_are_those_of_the_extracted_model(folder: Path, original: nn.Module) -> None:
    data = run_data(read_run(folder))
    for steps in (0, 1, 17, 40, len(data["targets"])):
        small = dict(hope.load(folder, original, steps=steps).named_modules())
        for name, width in widths(data, steps).items():
            assert width == (small[name].weight.shape[0] if name in small else 0)


def test_absorption_knows_the_capacities_too(absorbed: Path, original: nn.Module) -> None:
    known = hope.capacities(original, EXAMPLE)
    found = {layer["name"]: layer["capacities"] for layer in run_data(read_run(absorbed))["layers"]}
    assert known.keys() == found.keys()
    for name, values in known.items():
        torch.testing.assert_close(
            torch.tensor(found[name], dtype=torch.float64), values, rtol=1e-4, atol=0, msg=name
        )


def test_capacities_are_saved_and_fall_to_what_is_left(folder: Path, original: nn.Module) -> None:
    data = run_data(read_run(folder))
    known = hope.capacities(original, EXAMPLE)
    for layer in data["layers"]:
        torch.testing.assert_close(
            torch.tensor(layer["capacities"], dtype=torch.float64), known[layer["name"]], rtol=1e-4, atol=0
        )
    t = data["kinds"].index("p")
    layer = data["layers"][data["targets"][t]]
    before = [k for k in range(t) if data["targets"][k] == data["targets"][t] and data["kinds"][k] != "e"]
    start = data["left"][before[-1]] if before else sum(layer["capacities"])
    share = data["costs"][t] / (data["costs"][t] + widths(data, t)[layer["name"]])
    assert data["left"][t] == pytest.approx(start * (1 - share), rel=1e-3)  # as the page puts it in words


def test_a_baselines_scores_fall_too(original: nn.Module, tmp_path: Path) -> None:
    encoding = hope.encode(original, EXAMPLE, method="l1-joint", steps=20, progress=False)
    data = run_data(read_run(encoding.save(tmp_path)))
    assert data["baseline"]
    last = max(t for t in range(20) if data["targets"][t] == data["targets"][0])
    gone = [data["who"][t] for t in range(20) if data["targets"][t] == data["targets"][0]]
    scores = data["layers"][data["targets"][0]]["capacities"]
    assert data["left"][last] == pytest.approx(sum(scores) - sum(scores[i] for i in gone), rel=1e-4)


def test_the_page_takes_from_the_method_what_differs(
    folder: Path, absorbed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def differs(run: Run) -> tuple[Any, ...]:
        data = run_data(run)
        return data["relative"], data["searched"], data["price"]

    assert differs(read_run(folder)) == (False, False, hope.Paper.price)
    assert differs(read_run(absorbed)) == (True, True, hope.Absorb.price)

    @dataclass(frozen=True)
    class Toy(hope.Paper):
        relative, price = True, "what a toy costs"
        name = "toy"

    run = read_run(folder)
    run = replace(run, record=msgspec.structs.replace(run.record, method={"name": "toy"}))
    assert differs(run) == (False, False, hope.methods.Method.price)  # it is not registered here
    monkeypatch.setitem(hope.methods.METHODS, "toy", Toy)
    assert differs(run) == (True, False, "what a toy costs")


def test_absorbers_are_the_projection_on_the_survivors(absorbed: Path) -> None:
    run = read_run(absorbed)
    input_statistics = run.input_statistics()
    layer = run.anatomy.unit("squeeze")
    order = [s.removed[0] for s in run.trajectory if isinstance(s, Absorption) and s.name == layer.name]
    found = absorbers(layer, input_statistics, order[:5])
    assert found is not None
    moments = input_statistics["head.weight"].moments
    floor = RIDGE * moments.diagonal().mean() * torch.eye(len(moments), dtype=torch.float64)
    rest = [i for i in range(layer.neurons) if i not in order[:5]]
    want = torch.linalg.solve((moments + floor)[rest][:, rest], moments[rest, order[4]])
    most = int(want.abs().argmax())
    assert found[4][0][0] == rest[most]
    assert found[4][0][1] == pytest.approx(float(want[most]), rel=1e-6)
    data = run_data(run)
    assert len(data["absorbers"]) == len(data["kinds"]) - data["kinds"].count("e")


def test_runs_saved_before_there_were_details_still_have_a_page(folder: Path, tmp_path: Path) -> None:
    plan = json.loads((folder / store.PLAN).read_text())
    for name in ("details", "sha256"):
        plan.pop(name, None)
    steps = msgspec.convert(plan["trajectory"], list[AnyAction])
    plan["trajectory"] = msgspec.to_builtins([msgspec.structs.replace(step, left=0.0) for step in steps])
    plan["sha256"] = store.digest_of(plan)
    (tmp_path / store.PLAN).write_text(json.dumps(plan))
    data = embedded(write_page([read_run(tmp_path)], tmp_path / "page.html").read_text())["runs"][0]
    assert data["left"] == []
    assert all(layer["capacities"] == [] for layer in data["layers"])
    assert not data["command"]["complete"]


def test_names_cannot_break_out(folder: Path) -> None:
    evil = "</script><script>alert(1)</script><!-- & \u2028 {{js}}"
    run = read_run(folder)
    run = replace(run, anatomy=replace(run.anatomy, model=evil)).changed(method={"name": evil})
    page = render(page_data([run]))
    data = embedded(page)
    assert data["runs"][0]["model"] == evil
    assert "alert(1)</script>" not in page
    assert page.count("<script") == 2
    assert "\u2028" not in page.split("<style>")[1]


@pytest.mark.parametrize(
    ("given", "want"),
    [
        ("torchvision:resnet18", "resnet18"),
        ("timm:tf_efficientnet_b0.in1k", "tf_efficientnet_b0.in1k"),
        ("hf:models/vit-base/", "vit-base"),
        ("C:/nets/mine.py:resnet56", "resnet56"),
        ("net.py:build", "DigitsNet"),
        ("net.py:make_model", "DigitsNet"),
        ("", "DigitsNet"),
    ],
)
def test_the_model_has_the_name_that_its_user_gave(folder: Path, given: str, want: str) -> None:
    run = read_run(folder)
    run = run.changed(details=replace(run.details, source={"model": given}))
    data = page_data([run])
    assert data["runs"][0]["title"] == want
    assert f"<title>{want} by paper</title>" in render(data)


def test_a_run_that_does_not_know_its_model_takes_the_name_that_is_given(absorbed: Path) -> None:
    assert run_data(read_run(absorbed), source={"model": "timm:resnet18"})["title"] == "resnet18"


def test_the_command_is_exact_and_quoted(folder: Path) -> None:
    command = run_data(read_run(folder))["command"]
    assert command["complete"]
    assert command["before"].endswith("paper net.py:build")
    assert command["after"] == "--weights 'the weights.pt' --input 1x1x8x8 --out small.safetensors"


def test_what_is_given_for_the_command_fills_what_a_run_does_not_know(folder: Path, absorbed: Path) -> None:
    given = {"model": "timm:resnet18", "weights": "other.pt", "input": "1x1x9x9"}
    knows, blank = page_data([read_run(folder), read_run(absorbed)], source=given)["runs"]
    assert knows["command"] == run_data(read_run(folder))["command"]
    assert blank["command"]["before"].endswith("absorb timm:resnet18")
    assert blank["command"]["after"] == "--weights other.pt --input 1x1x9x9 --out small.safetensors"


def test_a_model_that_brings_its_weights_is_extracted_without_others(stepped: Path) -> None:
    for given in ({}, {"model": "timm:resnet18", "weights": "other.pt"}):
        command = run_data(read_run(stepped), source=given)["command"]
        assert command["after"] == "--input 1x1x8x8 --out small.safetensors"
        assert command["complete"]


def test_the_stops_of_a_run_are_there(folder: Path, stepped: Path) -> None:
    assert run_data(read_run(folder))["stops"] == []
    assert run_data(read_run(stepped))["stops"] == list(read_run(stepped).trajectory.stops)


def test_the_page_asks_for_nothing_outside_itself(folder: Path) -> None:
    page = render(page_data([read_run(folder)]))
    outside = set(re.findall(r"https?://[^\s\"')]+", page)) - {"http://www.w3.org/2000/svg"}
    assert not outside
    assert not re.search(r"\b(src|href)=\"(?!#)", page)
    assert "default-src 'none'" in page


def test_several_runs_are_distinguished(folder: Path, absorbed: Path) -> None:
    data = page_data([read_run(folder), read_run(absorbed), read_run(folder)], accuracies=[[], [(3, 0.5)]])
    assert [run["name"] for run in data["runs"]] == ["paper (1)", "absorb", "paper (3)"]
    assert [run["accuracy"] for run in data["runs"]] == [[], [[3, 0.5]], []]


def test_what_was_left_alone_is_there_with_its_reason(folder: Path) -> None:
    run = read_run(folder)
    data = run_data(run)
    assert [row[0] for row in data["skipped"]] == [one.name for one in run.anatomy.skipped]
    assert all(row[3] for row in data["skipped"])


def test_a_run_made_by_hand_and_an_empty_one_have_pages(tmp_path: Path) -> None:
    model = DigitsNet().eval()
    anatomy = hope.inspect(model, EXAMPLE)
    by_hand = hope.save(tmp_path / "hand", model, anatomy, [hope.Prune("squeeze", [1, 2, 3])])
    nothing = hope.save(tmp_path / "nothing", model, anatomy, [])
    data = page_data([read_run(by_hand), read_run(nothing)])
    hand, empty = data["runs"]
    assert widths(hand, 1)["squeeze"] == 21
    assert empty["targets"] == []
    assert "<title>DigitsNet by hand</title>" in render(data)


def test_other_models_are_named_and_are_on_another_scale(folder: Path, absorbed: Path) -> None:
    run, other = read_run(folder), read_run(absorbed)
    strange = replace(run, anatomy=replace(run.anatomy, model="Other"))
    grown = {"shapes": {**run.anatomy.shapes, "more": (5,)}, "parameters": run.anatomy.parameters | {"more"}}
    wider = replace(run, trajectory=replace(run.trajectory, anatomy=replace(run.anatomy, **grown)))
    assert scales([run, other, run]) == [0, 1, 0]
    assert scales([run, strange, wider]) == [0, 1, 2]
    assert labels([run, other]) == ["paper", "absorb"]
    assert labels([strange, other]) == ["Other: paper", "DigitsNet: absorb"]
    total = int(run.trajectory.sizes[0, 1])
    assert labels([other, wider]) == [
        f"DigitsNet of {total:,} parameters: absorb",
        f"DigitsNet of {total + 5:,} parameters: paper",
    ]


def test_a_page_of_twenty_thousand_steps_stays_small(folder: Path) -> None:
    run = read_run(folder)
    t = run.trajectory
    times = 20_000 // len(t) + 1
    sizes = np.concatenate([t.sizes[:1], *[t.sizes[1:]] * times])
    more = replace(t, steps=t.steps * times)
    vars(more)["sizes"] = sizes  # no network loses its neurons again and again
    assert len(render(page_data([replace(run, trajectory=more)]))) < 1_200_000


def test_fidelities_that_were_looked_at_are_saved_and_shown(folder: Path, absorbed: Path) -> None:
    looked = read_run(folder).details.fidelities
    assert looked[0] == (0, 1.0)
    assert [steps for steps, _ in looked] == sorted({steps for steps, _ in looked})
    assert page_data([read_run(folder)])["runs"][0]["fidelity"] == [list(point) for point in looked]
    assert not read_run(absorbed).details.fidelities


def test_predicted_latency_and_what_was_measured_are_on_the_page(folder: Path) -> None:
    with faked():
        encoding = hope.encode(randomise(DigitsNet()).eval(), EXAMPLE, latency=0.6)
    run = encoding.as_run()
    data = run_data(run)
    assert run.trajectory.times is not None
    assert encoding.latency is not None
    assert list(accumulate(data["times"])) == run.trajectory.times.tolist()
    measured = [[0, encoding.latency.original], [encoding.steps, encoding.latency.measured]]
    assert data["timed"] == measured
    assert data["runtime"].startswith("torch, batch 2")
    other = run_data(read_run(folder))
    assert (other["times"], other["timed"], other["runtime"]) == ([], [], "")
