"""The page of unusual runs, on paper and under a finger: what is drawn is there, can be read and is true."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from torch import nn

import hope
from hope.report.page import write_page
from hope.storage.run import Run, read_run
from tests.report.conftest import EXAMPLE, arrives, slide


def cheaper(run: Run, factor: float) -> Run:
    steps = tuple(msgspec.structs.replace(step, cost=step.cost * factor) for step in run.trajectory)
    return replace(run, trajectory=replace(run.trajectory, steps=steps))


@pytest.fixture(scope="module")
def pages(
    folder: Path, absorbed: Path, stepped: Path, original: nn.Module, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, str]:
    """Addresses of pages of short, empty, cheap, stepped and many runs."""
    target, run = tmp_path_factory.mktemp("pages"), read_run(folder)
    anatomy = run.anatomy
    given = {
        "hand": [hope.Prune("squeeze", [1, 2, 3]), hope.Prune("squeeze", [4])],
        "evictions": [hope.Evict(anatomy.blocks[0].name)],
    }
    for name, actions in given.items():
        write_page([read_run(hope.save(target / name, original, anatomy, actions))], target / f"{name}.html")
    empty = hope.encode(original, EXAMPLE, steps=0, exclude="*", progress=False)
    write_page([read_run(empty.save(target / "empty"))], target / "empty.html")
    baseline = hope.encode(original, EXAMPLE, method="l1-in", steps=9, anatomy=anatomy, progress=False)
    write_page([read_run(baseline.save(target / "l1-in"))], target / "baseline.html")
    write_page([run], target / "one.html")
    write_page([cheaper(run, 1e-6)], target / "cheap.html")
    falling = [
        msgspec.structs.replace(step, cost=1 / (1 + t), release=1) for t, step in enumerate(run.trajectory)
    ]
    write_page(
        [replace(run, trajectory=replace(run.trajectory, steps=tuple(falling)))], target / "reversed.html"
    )
    write_page([read_run(absorbed)], target / "absorbed.html")
    write_page([read_run(stepped)], target / "stepped.html")
    other = replace(run, anatomy=replace(anatomy, model="Other"))
    write_page([run] * 7 + [other], target / "many.html")
    return {path.stem: path.as_uri() for path in target.glob("*.html")}


def test_the_slider_stops_where_extract_does(visit: Any, stepped: Path, original: nn.Module) -> None:
    page, trajectory = visit("stepped"), read_run(stepped).trajectory
    stops = trajectory.stops
    assert page.locator("#slider").get_attribute("max") == str(len(stops) - 1)
    page.locator("#slider").fill("1")
    arrives(page, stops[1])
    assert f"--steps {stops[1]} --input" in page.locator("#command").inner_text()
    assert (
        f"The next stop is step {stops[2]}: {stops[2] - stops[1]} actions"
        in page.locator("#next-note").inner_text()
    )
    page.locator("#slider").focus()
    page.keyboard.press("ArrowRight")
    arrives(page, stops[2])
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("ArrowLeft")
    arrives(page, stops[1])
    for place in ("#chart-size", "#map"):
        page.locator(place).click()
        page.wait_for_function("k => Number(document.getElementById('step').textContent) !== k", arg=stops[1])
        assert int(page.locator("#step").inner_text()) in stops
        small = hope.load(stepped, original, steps=int(page.locator("#step").inner_text()))
        count = sum(tensor.numel() for tensor in small.parameters())
        assert f"{count:,} of" in page.locator(".tile").first.inner_text()
        page.locator("#slider").fill("1")
        arrives(page, stops[1])
    assert "not exactly this one" in page.locator("#order").inner_text()


def test_next_steps_say_why_in_figures(visit: Any, folder: Path, absorbed: Path) -> None:
    page, steps = visit("one"), read_run(folder).trajectory
    evict = next(t for t, step in enumerate(steps) if step.kind == "evict")
    slide(page, evict)
    words = page.locator("#next li").first.inner_text()
    assert "is added to a distortion of" in words
    each = [step.cost / max(1, step.release) for step in steps]
    t = next(t for t in range(1, len(steps) - 1) if each[t + 1] > 1.2 * each[t])
    slide(page, t)
    assert "times as much" in page.locator("#next li .figures").first.inner_text()
    assert "The action with the least J/ΔP is first." in page.locator("#order").inner_text()
    page, kinds = visit("absorbed"), [step.kind for step in read_run(absorbed).trajectory]
    slide(page, kinds.index("absorb"))
    assert "of the layer's capacity" in page.locator("#next li .why").first.inner_text()
    slide(page, kinds.index("evict"))
    assert "Chosen by the eviction search" in page.locator("#next li .why").first.inner_text()
    assert "the eviction search decides about blocks" in page.locator("#order").inner_text()
    page = visit("reversed")
    slide(page, 5)
    assert "only after this one" in page.locator("#next li .figures").first.inner_text()


def test_a_baseline_names_its_criterion(visit: Any) -> None:
    page = visit("baseline")
    slide(page, 2)
    assert "incoming weights" in page.locator("#next li .why").first.inner_text()
    assert "sum of scores" in page.locator("#tiles").inner_text()
    assert "The neuron with the lowest score is removed first" in page.locator("#order").inner_text()
    assert "J/ΔP" not in page.locator("#next").inner_text() + page.locator("#order").inner_text()


def test_absorption_has_a_capacity_spectrum(visit: Any, absorbed: Path) -> None:
    page = visit("absorbed")
    assert page.locator("#spectrum-title").inner_text().startswith("Capacity spectrum")
    assert page.locator("#spectrum-note").inner_text() == "As they were in the original network."


def test_labels_fit_in_front_of_the_axis(visit: Any) -> None:
    page = visit("cheap")
    lefts = page.evaluate("[...document.querySelectorAll('.chart svg text')].map(n => n.getBBox().x)")
    assert min(lefts) >= 0
    assert "·10⁻" in page.locator("#chart-cost").text_content()


@pytest.mark.parametrize("name", ["hand", "empty", "evictions"])
def test_short_runs_have_whole_steps_and_true_words(visit: Any, name: str) -> None:
    page = visit(name)
    page.locator("#axis").select_option("steps")
    marks = page.locator("#chart-size text.x").all_text_contents()
    assert marks == sorted(set(marks))
    assert all(mark.isdecimal() for mark in marks)
    text = page.locator("body").inner_text()
    assert "by by" not in text
    assert not page.locator("#chart-cost").is_visible()
    assert ("encode with a smaller budget" in text) == (name == "empty")
    assert ("made by hand" in page.locator("#tiles").inner_text()) == (name != "empty")
    assert page.locator("#map-step").is_visible() == (name != "empty")
    if name == "evictions":
        assert "there is nothing to draw" in text
        assert not page.locator("#spectrum").is_visible()
    for axis in ("parameters", "neurons", "macs"):
        page.locator("#axis").select_option(axis)
        marks = page.locator("#chart-size text.x").all_text_contents()
        assert len(set(marks)) == len(marks)


def test_many_runs_look_different_and_other_models_are_named(visit: Any) -> None:
    page = visit("many")
    curves = page.locator("#chart-size path.curve").all()
    assert len({(one.get_attribute("stroke"), one.get_attribute("stroke-dasharray")) for one in curves}) == 8
    names = page.locator("#runs label").all_inner_texts()
    assert [name.split(":")[0] for name in names] == ["DigitsNet"] * 7 + ["Other"]
    assert page.locator("#chart-cost path.curve").count() == 7
    assert "same model" in page.locator("#scale-note").inner_text()
    page.get_by_label("Other").check()
    assert page.locator("#chart-cost path.curve").count() == 1


PIXEL = """id => {
    const pen = new OffscreenCanvas(1, 1).getContext("2d", { willReadFrequently: true });
    pen.drawImage(document.getElementById(id), 9, 1, 1, 1, 0, 0, 1, 1);
    return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
}"""
LIGHT, DARK = [233, 235, 230], [38, 47, 43]  # --faint


def test_printing_in_the_dark_draws_in_light(visit: Any) -> None:
    page = visit("one", color_scheme="dark")
    assert page.evaluate(PIXEL, "strip") == DARK
    page.evaluate(f"addEventListener('beforeprint', () => {{ window.printed = ({PIXEL})('strip'); }})")
    page.pdf()
    assert page.evaluate("window.printed") == LIGHT
    assert page.evaluate(PIXEL, "strip") == DARK
    page.emulate_media(media="print", color_scheme="dark")
    assert not page.locator("#axis").is_visible()
    assert page.locator(".group").first.evaluate("n => getComputedStyle(n).breakInside") == "avoid"


def test_a_finger_taps_and_drags_but_scrolling_moves_no_step(visit: Any) -> None:
    page = visit("one", viewport={"width": 390, "height": 700}, has_touch=True)
    slide(page, 0)
    page.locator("#chart-size").scroll_into_view_if_needed()
    box = page.locator("#chart-size").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    session = page.context.new_cdp_session(page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        spots = [{"x": px, "y": py} for px, py in points]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": spots})

    before = page.evaluate("scrollY")
    touch("touchStart", (x, y))
    for up in range(10, 130, 10):
        touch("touchMove", (x, y - up))
    touch("touchEnd")
    page.wait_for_function("y => scrollY > y", arg=before)
    assert page.locator("#step").inner_text() == "0"
    page.evaluate("y => scrollTo(0, y)", before)
    touch("touchStart", (x, y))
    for right in range(10, 90, 10):
        touch("touchMove", (x + right, y))
    page.wait_for_function("() => document.getElementById('step').textContent !== '0'")
    touch("touchEnd")
    slide(page, 0)
    page.touchscreen.tap(x, y)
    page.wait_for_function("() => document.getElementById('step').textContent !== '0'")


def contrast(page: Any, one: str, ground: str) -> float:
    """Between two of the page's colours."""

    def luminance(name: str) -> float:
        text = page.evaluate("n => getComputedStyle(document.documentElement).getPropertyValue(n)", name)
        text = text.strip().lstrip("#")
        text = text if len(text) == 6 else "".join(2 * digit for digit in text)
        parts = [int(text[k : k + 2], 16) / 255 for k in (0, 2, 4)]
        linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(one), luminance(ground)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("media", ["screen", "print"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_marks_can_be_told_from_the_ground(visit: Any, scheme: str, media: str) -> None:
    page = visit("one", color_scheme=scheme)
    page.emulate_media(media=media, color_scheme=scheme)
    for name in ("--prune", "--merge", "--absorb", "--evict", "--quiet"):
        assert contrast(page, name, "--card") >= 4.5, name
    for ground in ("--paper", "--faint", "--accent-soft"):
        assert contrast(page, "--quiet", ground) >= 4.5, ground
    for ground in ("--card", "--accent-soft"):
        assert contrast(page, "--edge", ground) >= 3, ground
    for n in range(6):
        assert contrast(page, f"--c{n}", "--card") >= 3, n


def test_the_column_of_shares_has_a_heading_and_short_runs_do_not_wait(visit: Any) -> None:
    assert visit("one").locator(".heading").inner_text().endswith("capacity kept")
    assert visit("absorbed").locator(".heading").inner_text().endswith("capacity kept")
    assert visit("baseline").locator(".heading").inner_text().endswith("score kept")
    page = visit("hand")
    page.evaluate("""() => {
        const old = setInterval;
        window.waits = [];
        window.setInterval = (f, ms) => { waits.push(ms); return old(f, ms); };
    }""")
    slide(page, 0)
    page.locator("#play").click()
    assert page.evaluate("window.waits") == [600]
