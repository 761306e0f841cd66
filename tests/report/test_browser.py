"""The page in a real browser: slider, keyboard, hover, phone, dark, print, and not a word on the console."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import nn

import hope
from hope.report.page import write_page
from hope.storage.run import read_run
from tests.report.conftest import arrives, slide
from tests.storage.record import OLD


@pytest.fixture(scope="module")
def pages(folder: Path, absorbed: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of a page with one run and accuracies, one with two runs, and one with a nasty name."""
    target, run, other = tmp_path_factory.mktemp("pages"), read_run(folder), read_run(absorbed)
    write_page([run], target / "one.html", accuracies=[[(0, 0.9), (20, 0.8)]])
    write_page([run, other], target / "two.html")
    name = "<img src=x onerror=alert(1)></script><script>alert(2)</script>"
    first = replace(run.anatomy.skipped[0], name=name)
    write_page(
        [replace(run, anatomy=replace(run.anatomy, model=name, skipped=(first,)))], target / "evil.html"
    )
    timed = read_run(OLD / "run-v3-latency")
    write_page([timed], target / "timed.html")
    write_page([run, timed], target / "both.html")
    return {path.stem: path.as_uri() for path in target.glob("*.html")}


def shown(page: Any) -> dict[str, int]:
    """Neurons left per layer, as the page says."""
    rows = page.locator(".row").all()
    return {
        row.locator(".name").inner_text(): int(
            row.locator(".count").inner_text().split(" / ")[0].replace(",", "")
        )
        for row in rows
    }


def test_widths_under_the_slider_are_those_of_the_extracted_model(
    visit: Any, folder: Path, original: nn.Module
) -> None:
    page, run = visit("one"), read_run(folder)
    for steps in (0, 17, 40, len(run.trajectory)):
        slide(page, steps)
        small = dict(hope.load(folder, original, steps=steps).named_modules())
        want = {
            n: small[n].weight.shape[0] if n in small else 0 for n in (x.name for x in run.anatomy.layers)
        }
        assert shown(page) == want
        size = run.trajectory.size(steps)
        assert f"{size.parameters:,} of" in page.locator(".tile").first.inner_text()
        mix = page.locator("#mix").inner_text()
        words = {"prune": "pruned", "merge": "merged", "evict": "evicted"}
        assert all(f"{n} {words[kind]}" in mix for kind, n in run.trajectory.mix(steps).items() if n)


def test_an_evicted_block_is_struck_through_and_says_when(visit: Any, folder: Path) -> None:
    page, run = visit("one"), read_run(folder)
    when, name = next((t, step.name) for t, step in enumerate(run.trajectory, 1) if step.kind == "evict")
    group = page.locator(f".group[title='{name}']")
    slide(page, when - 1)
    assert "evicted" not in group.inner_text()
    assert f"Evict block {name}" in page.locator("#next li").first.inner_text()
    slide(page, when)
    assert f"evicted at step {when}" in group.inner_text()
    assert "line-through" in group.locator(".name").first.evaluate("n => getComputedStyle(n).textDecoration")


def test_what_comes_next_is_the_next_step_with_its_figures(visit: Any, folder: Path) -> None:
    page, run = visit("one"), read_run(folder)
    slide(page, 10)
    text = page.locator("#next li").first.inner_text()
    step = run.trajectory[10]
    assert step.name in text
    assert f"ΔP {step.release:,}" in text
    assert "J/ΔP" in text
    slide(page, len(run.trajectory))
    assert "The run ends here" in page.locator("#next").inner_text()


def test_keys_move_the_slider_and_focus_is_seen(visit: Any, folder: Path) -> None:
    page, total = visit("one"), len(read_run(folder).trajectory)
    slide(page, 10)
    page.locator("#slider").focus()
    for key, want in (("ArrowRight", 11), ("ArrowLeft", 10), ("End", total), ("Home", 0)):
        page.keyboard.press(key)
        arrives(page, want)
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowRight")
    arrives(page, 1)
    page.locator("#slider").focus()
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert "step 1 of" in page.locator("#slider").get_attribute("aria-valuetext")
    controls = "[...document.querySelectorAll('button, select, input')]"
    named = "n => n.labels?.length || n.ariaLabel || n.textContent.trim()"
    assert page.evaluate(f"{controls}.every({named})")


def test_a_layer_is_chosen_by_keyboard_and_its_families_shown(visit: Any, folder: Path) -> None:
    page, run = visit("one"), read_run(folder)
    slide(page, len(run.trajectory))
    merge = next(step for step in run.trajectory if step.kind == "merge")
    row = page.locator(f".row[title='{merge.name}']")
    row.focus()
    page.keyboard.press("Enter")
    assert row.get_attribute("aria-pressed") == "true"
    assert page.locator("#h-detail").inner_text() == merge.name
    keep, drop = merge.neurons
    lines = page.locator("#families li").all_inner_texts()
    assert any(f"{keep} ←" in line and str(drop) in line for line in lines)
    page.locator("#spectrum").hover()
    assert "neuron" in page.locator("#spectrum + .tip").inner_text()


def test_hovering_tells_and_clicking_goes_there(visit: Any) -> None:
    page = visit("one")
    slide(page, 0)
    page.locator("#chart-size").hover()
    tip = page.locator("#chart-size + .tip")
    assert tip.is_visible()
    assert "of the parameters" in tip.inner_text()
    step = tip.inner_text().splitlines()[0].removeprefix("step ")
    page.locator("#chart-size").click()
    arrives(page, int(step))
    assert page.locator("circle.accuracy").count() == 2
    assert page.locator("circle.fidelity").count() >= 5
    slide(page, 0)
    assert "fidelity" in page.locator("#tiles").inner_text()
    page.locator("#map").hover()
    assert "neurons" in page.locator("#map ~ .tip").inner_text()


def test_the_command_follows_the_slider(visit: Any, folder: Path) -> None:
    page, run = visit("one"), read_run(folder)
    assert "--steps" not in page.locator("#command").inner_text()  # it opens at the saved model
    slide(page, 12)
    command = page.locator("#command").inner_text()
    assert command.startswith("hope extract ")
    assert "net.py:build --steps 12 --weights 'the weights.pt' --input 1x1x8x8" in command
    page.locator("#saved").click()
    arrives(page, run.steps)


def test_playing_moves_on_and_stops(visit: Any) -> None:
    page = visit("one")
    slide(page, 0)
    page.locator("#play").click()
    page.wait_for_function("() => Number(document.getElementById('step').textContent) > 2")
    page.locator("#play").click()
    assert page.locator("#play").get_attribute("aria-label") == "Play the run"


def test_runs_are_compared_at_the_same_size(visit: Any, absorbed: Path) -> None:
    page = visit("two")
    slide(page, 20)
    before = page.locator(".tile b").first.inner_text()
    page.get_by_label("absorb").check()
    assert "compressed by absorb" in page.locator("#subtitle").inner_text()
    share = [int(text.rstrip("%")) for text in (before, page.locator(".tile b").first.inner_text())]
    assert 0 <= share[0] - share[1] <= 3
    curves = page.locator("#chart-size path.curve")
    looks = [(one.get_attribute("stroke"), one.get_attribute("stroke-dasharray")) for one in curves.all()]
    assert looks == [("var(--c0)", "none"), ("var(--c1)", "7 3")]
    assert page.locator("#families li").first.inner_text().startswith("absorbed")
    assert "→ mostly" in page.locator("#families").inner_text()
    for axis in ("steps", "neurons", "macs"):
        page.locator("#axis").select_option(axis)


@pytest.mark.parametrize("width", [375, 600, 900])
@pytest.mark.parametrize("name", ["one", "two", "evil"])
def test_nothing_scrolls_sideways(visit: Any, name: str, width: int) -> None:
    page = visit(name, viewport={"width": width, "height": 800})
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_dark_is_dark_and_print_is_light_without_controls(visit: Any) -> None:
    page = visit("one", color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    assert page.evaluate(ground) == "rgb(18, 23, 21)"
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    assert not page.locator("#slider").is_visible()
    assert page.locator("#network").is_visible()
    assert page.locator("#command").is_visible()
    assert page.pdf().startswith(b"%PDF")


def test_names_are_text_and_nothing_else(visit: Any) -> None:
    page = visit("evil")
    assert page.locator("h1").inner_text().startswith("<img src=x onerror=alert(1)>")
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 2


def test_predicted_latency_is_drawn_with_what_was_measured(visit: Any) -> None:
    run = read_run(OLD / "run-v3-latency")
    page = visit("timed")
    assert page.locator("#panel-time").is_visible()
    assert "torch, batch 1" in page.locator("#runtimes").inner_text()
    assert page.locator("#chart-time circle.timed").count() == 2
    slide(page, run.steps)
    tile = page.locator(".tile", has_text="latency, predicted").inner_text()
    assert "ms measured here" in tile
    assert "J per millisecond that it saves" in page.locator("body").inner_text()
    assert visit("both").locator("#chart-time path.curve").count() == 1
    assert not visit("one").locator("#panel-time").is_visible()
