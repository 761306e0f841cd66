"""Saved runs to report on: one by the paper's method with all kinds of actions, one by absorption."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import hope
from hope.demo import DigitsNet
from tests.support import randomise

FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync",
]  # fmt: skip
EXAMPLE = torch.linspace(-1, 1, 2 * 64).reshape(2, 1, 8, 8)


@pytest.fixture(scope="session")
def original() -> nn.Module:
    """The network that was compressed, with twins in it so that merges pay."""
    torch.manual_seed(0)
    model = randomise(DigitsNet()).eval()
    tensors = model.state_dict()
    for name in ("squeeze.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"):
        tensors[name][1:6:2] = tensors[name][0:6:2] * 1.01
    readers = tensors["head.weight"].unflatten(1, (24, 16))
    readers[:, 1:6:2] = readers[:, 0:6:2]
    return model


@pytest.fixture(scope="session")
def folder(original: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run by the paper's method."""
    encoding = hope.encode(original, EXAMPLE, method="paper", density=0.2, progress=False)
    assert [kind for kind, count in encoding.trajectory.mix().items() if count] == ["prune", "merge", "evict"]
    path = tmp_path_factory.mktemp("runs")
    save_file(original.state_dict(), path / "weights.safetensors")
    encoding.fidelities(4)
    source = {"model": "net.py:build", "weights": "the weights.pt", "input": "1x1x8x8"}
    return encoding.save(path / "paper", source=source)


@pytest.fixture(scope="session")
def stepped(original: nn.Module, folder: Path) -> Path:
    """A run whose widths are multiples of eight, beside the others."""
    encoding = hope.encode(original, EXAMPLE, method="paper", density=0.4, multiple_of=8, progress=False)
    assert len(encoding.trajectory.stops) < len(encoding.trajectory)
    return encoding.save(folder.with_name("stepped"), source={"model": "net.py:build", "input": "1x1x8x8"})


@pytest.fixture(scope="session")
def absorbed(original: nn.Module, folder: Path) -> Path:
    """A run by absorption, beside the other."""
    encoding = hope.encode(original, EXAMPLE, method="absorb", density=0.4, progress=False)
    return encoding.save(folder.with_name("absorb"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser."""
    api = pytest.importorskip("playwright.sync_api", reason="the browser extra is not installed")
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
        yield found
        found.close()


@pytest.fixture
def visit(browser: Any, pages: dict[str, str]) -> Iterator[Any]:
    """Open a page; whatever it says on the console, and whatever it asks for, fails the test."""
    opened, said = [], []

    def start(name: str, **options: Any) -> Any:
        page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
        opened.append(page)
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss()))
        page.on("request", lambda request: request.url.startswith("file:") or said.append(request.url))
        page.goto(pages[name])
        return page

    yield start
    for page in opened:
        page.close()
    assert said == []


def slide(page: Any, steps: int) -> None:
    page.locator("#slider").fill(str(steps))
    arrives(page, steps)


def arrives(page: Any, steps: int) -> None:
    page.wait_for_function("k => document.getElementById('step').textContent === String(k)", arg=steps)
