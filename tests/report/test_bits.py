"""The page of runs that round weights: bits of every layer and bytes follow the slider."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import silu

import hope
from hope.report.page import run_data, write_page
from hope.report.steps import layer_bits
from hope.storage.run import Run, read_run
from tests.report.conftest import EXAMPLE, slide


class Gated(nn.Module):
    """An MLP of which two weights write the neurons; no buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(8, 16), nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(silu(self.gate(x)) * self.up(x))


@pytest.fixture(scope="module")
def rounded(original: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run of roundings, a removal and an eviction."""
    anatomy = hope.inspect(original, EXAMPLE)
    actions = [
        hope.Quantise("squeeze.weight", 8),
        hope.Quantise("head.weight", 8),
        hope.Prune("squeeze", [1]),
        hope.Quantise("blocks.0.conv1.weight", 6),
        hope.Quantise("squeeze.weight", 3),
        hope.Evict("blocks.0"),
    ]
    return read_run(hope.save(tmp_path_factory.mktemp("run") / "rounded", original, anatomy, actions))


@pytest.fixture(scope="module")
def pages(rounded: Run, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Addresses of a page with roundings, one without, with both runs, and with costs."""
    target, plain = tmp_path_factory.mktemp("pages"), read_run(folder)
    write_page([rounded], target / "rounded.html")
    write_page([plain], target / "plain.html")
    write_page([plain, rounded], target / "both.html")
    steps = tuple(msgspec.structs.replace(step, cost=1.0, release=7) for step in rounded.trajectory)
    record = msgspec.structs.replace(rounded.record, method={"name": "absorb"})
    priced = replace(rounded, record=record, trajectory=replace(rounded.trajectory, steps=steps))
    write_page([priced], target / "priced.html")
    return {path.stem: path.as_uri() for path in target.glob("*.html")}


def shown(page: Any) -> dict[str, str]:
    """Bits per layer, as the page says."""
    rows = page.locator(".row").all()
    return {row.locator(".name").inner_text(): row.locator(".bits").inner_text() for row in rows}


def test_bits_of_a_layer_follow_the_slider_and_end_with_its_block(visit: Any) -> None:
    page = visit("rounded")
    assert page.locator(".heading").inner_text().split("\n")[-2] == "bits"
    first, squeeze = (["32", "32", "32", "32", "6", "6", "–"], ["32", "8", "8", "8", "8", "3", "3"])
    for steps in (6, 0, 1, 3, 4, 5, 2):
        slide(page, steps)
        assert shown(page) == {
            "blocks.0.conv1": first[steps],
            "blocks.1.conv1": "32",
            "blocks.2.conv1": "32",
            "squeeze": squeeze[steps],
        }
    page.locator("#map").hover(position={"x": 2, "y": 2})
    assert "32 bits" in page.locator("#map ~ .tip").inner_text()


def test_bytes_follow_the_slider_as_tile_and_line(visit: Any, rounded: Run) -> None:
    page, stored = visit("rounded"), rounded.trajectory.counts("size")
    assert page.locator("#legend-size").inner_text().endswith("bytes kept")
    assert page.locator("#chart-size path.curve").count() == 4
    dot, heights = page.locator("#chart-size circle[fill='var(--c3)']"), []
    for steps in range(rounded.steps + 1):
        slide(page, steps)
        tile = page.locator(".tile", has_text="of weights and buffers").inner_text()
        assert tile.startswith(f"{float(f'{stored[steps] / 1000:.3g}'):g} kB")
        heights.append(float(dot.get_attribute("cy")))
    full = heights[0] - heights[-1], stored[0] - stored[-1]
    for height, size in zip(heights, stored, strict=True):
        assert (heights[0] - height) / full[0] == pytest.approx((stored[0] - size) / full[1], abs=1e-6)


def test_a_rounding_says_what_it_saves_at_that_step(visit: Any, rounded: Run) -> None:
    page, stored = visit("priced"), rounded.trajectory.counts("size")
    slide(page, 4)
    words, saved = page.locator("#next li .figures").first.inner_text(), stored[4] - stored[5]
    assert f"saves {saved:,} bytes" in words
    assert f"J per byte {1 / saved:.3g}" in words


def test_nothing_is_said_about_bits_where_nothing_is_rounded(visit: Any, folder: Path) -> None:
    page = visit("plain")
    assert page.locator(".row .bits").count() == 0
    assert "bits" not in page.locator("#layers").inner_text()
    assert "bytes" not in page.locator("#legend-size").inner_text()
    assert all(layer["bits"] == [] for layer in run_data(read_run(folder))["layers"])
    page = visit("both")
    assert page.locator(".row .bits").count() == 0
    assert page.locator("#legend-size").inner_text().count("bytes kept") == 2
    page.get_by_label("rounded").check()
    assert page.locator(".row .bits").count() == 4


@pytest.mark.parametrize("width", [375, 700, 1400])
def test_the_column_fits(visit: Any, width: int) -> None:
    page = visit("rounded", viewport={"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    slide(page, 1)
    for row in page.locator(".row").all():
        cells = [row.locator(name).bounding_box() for name in (".count", ".bits", ".share")]
        assert max(cell["y"] for cell in cells) - min(cell["y"] for cell in cells) < 6
        for left, right in pairwise(cells):
            assert left["x"] + left["width"] <= right["x"]
    ends = """n => {
        const range = document.createRange();
        range.selectNodeContents(n);
        return range.getBoundingClientRect().right;
    }"""
    head = page.locator(".heading").first.locator("span").nth(3).evaluate(ends)
    assert head == pytest.approx(page.locator(".row .bits").first.evaluate(ends), abs=8)


def test_all_weights_that_write_a_layer_count_in_the_models_own_type(tmp_path: Path) -> None:
    example = torch.linspace(-1, 1, 16).reshape(2, 8)
    steps = [hope.Quantise("up.weight", 4), hope.Quantise("down.weight", 2), hope.Quantise("gate.weight", 4)]
    net = Gated()
    anatomy = hope.inspect(net, example)
    assert layer_bits(anatomy, steps) == {"gate": [(0, "32"), (1, "4–32"), (3, "4")]}
    assert layer_bits(anatomy, []) == {}
    half = hope.inspect(Gated().bfloat16(), example.bfloat16())
    assert layer_bits(half, steps) == {"gate": [(0, "16"), (1, "4–16"), (3, "4")]}
    run = read_run(hope.save(tmp_path / "run", net, anatomy, steps))
    assert run_data(run)["bytes"][0] == sum(4 * one.numel() for one in net.parameters())
