"""What the page says at a glance, in a real browser: headline, comparison, scales, legends, order."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hope.actions import Absorption, Evict, Merge
from hope.report.page import write_page
from hope.schedule.budget import Budget
from hope.storage.run import Run, read_run
from tests.report.conftest import slide


def known_as(run: Run, model: str) -> Run:
    return run.changed(details=replace(run.details, source={"model": model}))


@pytest.fixture(scope="module")
def pages(folder: Path, absorbed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of a measured run, one with fidelities alone, one with nothing, and two to compare."""
    target = tmp_path_factory.mktemp("pages")
    run, other = known_as(read_run(folder), "timm:digits"), known_as(read_run(absorbed), "timm:digits")
    bare = run.changed(details=replace(run.details, fidelities=()))
    measured = [(0, 0.9), (run.steps, 0.876)]
    write_page([run], target / "measured.html", accuracies=[measured])
    write_page([run], target / "searched.html")
    write_page([bare], target / "bare.html")
    write_page([other], target / "absorbed.html")
    halfway = next(k for k in range(len(other.trajectory)) if other.trajectory.sizes[k, 1] < saved(run))
    along = [(0, 0.9), (halfway, 0.812), (len(other.trajectory), 0.5)]
    write_page([run, other], target / "compared.html", accuracies=[measured, along])
    return {path.stem: path.as_uri() for path in target.glob("*.html")}


def saved(run: Run) -> int:
    return run.trajectory.size(run.steps).parameters


def brief(count: int) -> str:
    return f"{count / 1000:.2f} k" if count < 10_000 else f"{count / 1000:.1f} k"


def test_the_headline_says_model_size_and_accuracy(visit: Any, folder: Path) -> None:
    run = read_run(folder)
    sizes = f"{brief(run.trajectory.size(0).parameters)} → {brief(saved(run))} parameters"
    said = visit("measured").locator("h1").inner_text()
    assert said == f"digits: {sizes}, accuracy 90.0 → 87.6"
    value = dict(run.details.fidelities)[run.steps]
    said = visit("searched").locator("h1").inner_text()
    assert said.endswith(f"predicted fidelity {value:.3f}")
    assert visit("bare").locator("h1").inner_text().endswith(" parameters")
    page = visit("measured")
    slide(page, 3)
    assert page.locator("h1").inner_text().endswith("accuracy 90.0 → 87.6")  # of the saved model


def test_comparing_leads_with_all_runs_in_one_chart_against_parameters_or_macs(visit: Any) -> None:
    page = visit("compared")
    assert page.locator("main > *").first.get_attribute("id") == "works"
    assert page.locator("#chart-accuracy path.looks").count() == 2
    assert page.locator("#chart-fidelity path.looks").count() == 1
    assert page.locator("#legend-works").inner_text().split() == ["paper", "absorb"]
    before = page.locator("#chart-accuracy path.looks").first.get_attribute("d")
    page.locator("#works-axis").select_option("macs")
    assert page.locator("#chart-accuracy path.looks").first.get_attribute("d") != before
    assert "Columns are shares of the MACs." in page.locator("#equal-note").inner_text()
    page.locator("#chart-accuracy").hover()
    assert "of the MACs" in page.locator("#chart-accuracy + .tip").inner_text()


def test_the_headline_of_several_runs_compares_them_at_one_size(visit: Any) -> None:
    assert visit("compared").locator("h1").inner_text().endswith("accuracy 90.0 → paper 87.6, absorb 81.2")


def test_the_table_is_at_equal_size_and_says_what_lies_between_looks(visit: Any, folder: Path) -> None:
    page, run = visit("compared"), read_run(folder)
    share = round(100 * saved(run) / run.trajectory.size(0).parameters)
    heads = page.locator("#equal thead th").all_inner_texts()
    assert f"{share}%" in heads
    column = heads.index(f"{share}%")
    values = {
        row.locator("th").inner_text(): row.locator("td").nth(column - 1).locator(".accuracy").inner_text()
        for row in page.locator("#equal tbody tr").all()
    }
    assert values == {"paper": "87.6", "absorb": "81.2"}
    assert all(
        words.startswith(("≈", "–", "8")) for words in page.locator("#equal .accuracy").all_inner_texts()
    )
    assert page.locator("#h-equal").inner_text() == "At equal size"
    assert page.locator("#equal tr.chosen th").inner_text() == "paper"


def test_a_run_without_looks_has_no_empty_comparison(visit: Any) -> None:
    assert not visit("bare").locator("#works").is_visible()
    page = visit("searched")
    assert page.locator("#chart-fidelity").is_visible()
    assert page.locator("#equal tbody th").all_inner_texts() == ["fidelity"]
    assert not page.locator("#chart-accuracy").is_visible()


def test_fidelity_is_never_a_percentage(visit: Any) -> None:
    page = visit("measured")
    (tile,) = [words for words in page.locator(".tile").all_inner_texts() if "fidelity" in words]
    assert "%" not in tile
    assert tile.startswith("0.")
    assert "%" not in "".join(page.locator("#chart-fidelity text.y").all_text_contents())
    assert "100%" in page.locator("#chart-accuracy text.y").all_text_contents()
    page.locator("#chart-fidelity").hover()
    step, size, *values = page.locator("#chart-fidelity + .tip").inner_text().splitlines()
    assert step.startswith("step ")
    assert size.endswith("of the parameters")
    assert not any("%" in value for value in values)
    (tile,) = [words for words in page.locator(".tile").all_inner_texts() if "accuracy" in words]
    assert tile.startswith("87.6%")


def test_the_map_names_its_layers_and_has_two_scales(visit: Any, folder: Path) -> None:
    page, run = visit("measured"), read_run(folder)
    assert page.locator("#map-names span").all_inner_texts() == [layer.name for layer in run.anatomy.layers]
    tops = [one.bounding_box()["y"] for one in page.locator("#map-names span").all()]
    assert tops[0] == pytest.approx(page.locator("#map").bounding_box()["y"], abs=1)
    marks = page.locator("#map-ticks span").all_inner_texts()
    assert marks[0] == "step 0"
    assert all(int(mark) <= len(run.trajectory) for mark in marks[1:])
    assert " ".join(page.locator("#map-scale").inner_text().split()) == "neurons kept in a layer: 0% 100%"


def test_the_ribbon_has_a_legend_that_counts(visit: Any, folder: Path) -> None:
    page, run = visit("measured"), read_run(folder)
    slide(page, 0)
    assert "0 pruned" in page.locator("#mix").inner_text()
    total = len(run.trajectory)
    slide(page, total)
    mix = run.trajectory.mix()
    assert f"{mix['prune']} pruned" in page.locator("#mix").inner_text()
    assert page.locator("#mix .box").count() == sum(bool(count) for count in mix.values())


def test_bars_stand_for_several_steps_where_ticks_would_be_too_thin(visit: Any, folder: Path) -> None:
    assert "Each tick is one step" in visit("measured").locator("#mix").inner_text()
    page = visit("measured", viewport={"width": 130, "height": 800})
    assert re.search(r"Each bar is \d+ steps, its height their distortion", page.locator("#mix").inner_text())


def test_sizes_are_in_bytes_too_and_the_model_is_offered_as_onnx(visit: Any, folder: Path) -> None:
    page, run = visit("measured"), read_run(folder)
    sizes = Budget("size", 1.0).resource.counts(run.anatomy, run.trajectory.steps)  # type: ignore[union-attr]
    tile = page.locator(".tile", has_text="of weights and buffers").inner_text()
    assert tile.startswith(f"{sizes[run.steps] / 1000:.3g} kB")
    assert f"of {sizes[0] / 1000:.3g} kB" in tile
    assert (
        f"{sizes[0] / 1000:.3g} kB → {sizes[run.steps] / 1000:.3g} kB"
        in page.locator("#subtitle").inner_text()
    )
    for steps in (run.steps, 12):
        slide(page, steps)
        commands = [page.locator(name).inner_text() for name in ("#command", "#command-onnx")]
        assert (
            commands[1] == commands[0].replace("--out small.safetensors", "--onnx small.onnx") != commands[0]
        )


@pytest.mark.parametrize("width", [1400, 800])
def test_columns_are_wide_enough_for_their_words(visit: Any, width: int) -> None:
    page = visit("measured", viewport={"width": width, "height": 1000})
    for row in page.locator(".row .count").all():
        assert row.bounding_box()["height"] < 30, "on one line"
    cells = page.locator("#alone td").all()
    assert cells
    assert all(cell.bounding_box()["width"] >= 120 for cell in cells)


@pytest.mark.parametrize("name", ["measured", "absorbed"])
def test_capacity_kept_is_that_of_the_neurons_that_are_still_there(
    visit: Any, folder: Path, absorbed: Path, name: str
) -> None:
    run = read_run(folder if name == "measured" else absorbed)
    page, steps, shares = visit(name), len(run.trajectory) - 4, []
    slide(page, steps)
    for layer, row in zip(run.anatomy.layers, page.locator(".row").all(), strict=True):
        said = row.locator(".share").inner_text()
        if row.locator(".count").inner_text().startswith("0 /"):
            assert said == "0%"
            shares.append(0.0)
            continue
        taken = [s for s in run.trajectory.steps[:steps] if s.name == layer.name and not isinstance(s, Evict)]
        gone = {neuron for step in taken for neuron in step.removed}
        own = run.details.measures[layer.name]
        kept = sum(value for neuron, value in enumerate(own) if neuron not in gone) / sum(own)
        shares.append(kept)
        assert float(said.rstrip("%")) == pytest.approx(100 * kept, abs=0.6), layer.name
    words = page.locator("#whole").inner_text()
    mean = float(words.removeprefix("Layers keep ").split("%")[0])
    assert mean == pytest.approx(100 * sum(shares) / len(shares), abs=0.6)
    assert (f"{shares.count(0)} layer" in words) == (0 in shares)
    assert ("With the compensation" in words) == (name == "absorbed")
    slide(page, 40)
    moved = next(s.name for s in run.trajectory if isinstance(s, Merge | Absorption))
    page.locator(f".row[title='{moved}']").click()
    words = page.locator("#detail-left").inner_text()
    assert ("With the compensation" if name == "absorbed" else "With the capacity of merged neurons") in words


def test_a_wide_page_is_used_and_a_phone_has_the_network_before_the_explanations(visit: Any) -> None:
    page = visit("compared", viewport={"width": 1400, "height": 1000})
    boxes = {name: page.locator(name).bounding_box() for name in ("#works", "#curves", "#coming", "#detail")}
    assert boxes["#works"]["width"] > 1300
    assert boxes["#coming"]["y"] == pytest.approx(boxes["#curves"]["y"], abs=1)
    charts = [page.locator(name).bounding_box() for name in ("#chart-accuracy", "#chart-fidelity", "#equal")]
    assert max(box["y"] for box in charts) - min(box["y"] for box in charts) < 40  # side by side
    page = visit("compared", viewport={"width": 390, "height": 844})
    order = ("#title", "#works", "#control", "#tiles", "#layers", "#detail", "#overview", "#coming", "#rest")
    tops = [page.locator(name).bounding_box()["y"] for name in order]
    assert tops == sorted(tops)
    assert page.locator(".row").first.bounding_box()["height"] < 34  # one line a layer
    assert page.locator("#next li").count() > page.locator("#next li:visible").count()
