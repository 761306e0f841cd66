"""What people meet at a prompt is one short line."""

from __future__ import annotations

from collections import Counter
from html.parser import HTMLParser

import pytest
import torch
from torch import nn

import hope
from hope._util.tables import grid, html
from hope.actions import Absorption
from hope.deft.penalty import Penalty
from tests.support import randomise
from zoo.networks import CifarResNet

EXAMPLE = torch.zeros(2, 3, 12, 12)
MANY = tuple(range(400))
STEPS = [
    hope.Prune("layer1.0.conv1", 3),
    hope.Prune("layer1.0.conv1", MANY, cost=1 / 3, release=2345, left=2 / 3),
    Absorption("layer1.0.conv1", MANY),
    hope.Merge("layer4.0.branch.conv1", 1, 3, (1 / 3, 2 / 3), (1 / 7, 3 / 7), 1 / 9, 1 / 11, cost=1 / 13),
    hope.Evict("layer1.0", [1 / 3] * 400),
]
METHODS = [
    hope.Paper(),
    hope.Paper(calibration=[torch.randn(64, 3, 32, 32)]),
    hope.Score("random"),
    hope.Absorb(calibration=[torch.randn(64, 3, 32, 32)], refit=False, sensitivity=True),
]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return randomise(CifarResNet(8)).eval()


def is_one_short_line(thing: object) -> bool:
    words = repr(thing)
    return 0 < len(words) < 200 and "\n" not in words and " object at 0x" not in words


def test_whatever_is_read_off_a_network(model: nn.Module) -> None:
    anatomy = hope.inspect(model, EXAMPLE)
    assert repr(anatomy) == "<Anatomy of CifarResNet: 3 layers, 3 blocks, 1 stream>"
    assert is_one_short_line(anatomy.size())
    for unit in anatomy.units:
        assert is_one_short_line(unit)
        assert unit.name in repr(unit)
        for places in unit.places:
            assert is_one_short_line(places)
            assert places.tensor in repr(places)
    for block in anatomy.blocks:
        assert is_one_short_line(block)
        assert block.name in repr(block)
    assert all(is_one_short_line(one) for one in anatomy.skipped)


def test_whatever_a_run_comes_to(model: nn.Module) -> None:
    encoding = hope.encode(model, EXAMPLE, density=0.5, evict=False)
    assert is_one_short_line(encoding)
    assert is_one_short_line(encoding.trajectory)
    assert all(is_one_short_line(step) for step in encoding.trajectory)


def test_whatever_deft_makes(model: nn.Module) -> None:
    part = hope.deft.partition(model, EXAMPLE)
    assert is_one_short_line(part)
    assert is_one_short_line(hope.deft.prepare(model, part, head=4))


def test_a_tuning_says_what_may_move_and_where_it_comes_from(model: nn.Module) -> None:
    part = hope.deft.partition(model, EXAMPLE)
    tuning = hope.deft.prepare(model, part, head=4)
    free, total = tuning.trainable()
    reported = str(tuning)
    assert f"CifarResNet by deft, from the source checkpoint {part.original[:12]}" in reported
    assert f"trainable: {free:,} of {total:,} parameters" in reported
    assert "head: linear is Linear(in_features=64, out_features=4, bias=True)" in reported
    assert "source: Linear(in_features=64, out_features=10, bias=True), which reads core only" in reported
    tuning.notes = ("something to know",)
    tuning.set_penalty(Penalty(tuning.model, {}, {}))
    assert str(tuning).endswith("the loss needs tuning.penalty() added to it\nnote: something to know")
    full = hope.deft.baselines.full(model, part, head=nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 2)))
    assert len(str(full).splitlines()) == 5
    assert f"trainable: {full.trainable()[1]:,} of {full.trainable()[1]:,} parameters (100.0%)" in str(full)


class Page(HTMLParser):
    """What a notebook makes of HTML: its tags, its attributes, its text, every tag closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.words: list[str] = []
        self.names: set[str] = set()
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        self.names |= {name for name, _ in attrs}
        if tag != "br":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def test_notebooks_show_tables_that_need_nothing_else(model: nn.Module) -> None:
    anatomy = hope.inspect(model, EXAMPLE)
    encoding = hope.encode(model, EXAMPLE, density=0.5, evict=False)
    part = hope.deft.partition(model, EXAMPLE)
    for thing, title in (
        (anatomy, "Neuron layers"),
        (encoding, "CifarResNet by absorb"),
        (part, "CifarResNet: "),
    ):
        page = Page(thing._repr_html_())
        assert set(page.tags) <= {"div", "p", "br", "table", "caption", "thead", "tbody", "tr", "th", "td"}
        assert page.names <= {"style", "colspan"}
        assert page.tags["table"] >= 1
        assert any(words.startswith(title) for words in page.words)
        cells = {word for word in str(thing).split() if len(word) > 3 and word.isascii()}
        assert cells <= set(" ".join(page.words).split())


def test_names_in_a_notebook_are_escaped_and_long_tables_are_cut() -> None:
    table = grid("<b>title</b>", " name", "number")
    for n in range(100):
        table.add_row("<script>alert(1)</script>", str(n))
    page = Page(html("a & b <i>", table))
    assert not page.tags.keys() & {"b", "i", "script"}
    assert "<script>alert(1)</script>" in page.words
    assert page.tags["tr"] == 1 + 30 + 1
    assert "and 70 more rows: print it for all of them" in page.words


@pytest.mark.parametrize("thing", [*STEPS, *METHODS], ids=lambda thing: type(thing).__name__)
def test_steps_and_methods(thing: object) -> None:
    assert is_one_short_line(thing)
