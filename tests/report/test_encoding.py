"""The page of a run that was never saved is the page of the saved one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import hope
from hope.errors import InvalidAccuracies
from hope.report.page import run_data
from hope.storage.run import read_run
from tests.support import randomise


@pytest.fixture(scope="module")
def encoding() -> hope.Encoding:
    torch.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(6, 4),
    )  # fmt: skip
    return hope.encode(randomise(net).eval(), torch.zeros(1, 3, 8, 8), density=0.5)


def test_it_shows_what_the_saved_run_shows(encoding: hope.Encoding, tmp_path: Path) -> None:
    page = encoding.report(tmp_path / "page.html", accuracy={0: 0.9, encoding.steps: 0.8})
    assert page == tmp_path / "page.html"
    assert "</html>" in page.read_text()
    folder = encoding.save(tmp_path / "run", source={"model": "net.py:make"})
    saved = run_data(read_run(folder), [])
    unsaved = run_data(encoding.as_run(folder, {"model": "net.py:make"}), [])
    assert saved["fidelity"]
    assert saved["absorbers"]
    assert unsaved == saved


def test_an_accuracy_at_no_step_is_refused(encoding: hope.Encoding, tmp_path: Path) -> None:
    with pytest.raises(InvalidAccuracies, match="steps must be 0 to"):
        encoding.report(tmp_path / "page.html", accuracy={10_000: 0.9})
    with pytest.raises(InvalidAccuracies, match="must be a number from 0 to 1"):
        encoding.report(tmp_path / "page.html", accuracy={0: 90.0})
    assert not list(tmp_path.iterdir())
