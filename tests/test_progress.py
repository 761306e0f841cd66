"""One bar for a whole run: in a notebook, on a terminal, and as lines elsewhere."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import hope
from hope._util import progress
from hope._util.progress import (
    FIDELITY,
    MEASURE,
    RANK,
    READ,
    REFIT,
    bar,
    busy,
    expect,
    run_of,
)
from hope.deft.search import SLACK
from hope.demo import DigitsNet
from hope.evaluate.estimate import estimate
from hope.healing.heal import HEALING
from hope.healing.inputs import INPUTS
from tests.support import randomise

NET = """
import torch
from torch import nn
def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3)).eval()
"""


def _digits() -> nn.Module:
    return randomise(DigitsNet()).eval()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time, which passes only when a test says so."""
    now = [0.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: now[0])
    return now


def test_the_time_left_follows_estimates_that_are_corrected_by_what_took_so_long(clock: list[float]) -> None:
    with run_of((READ,), False) as run:
        run.enter(READ)
        clock[0] = 3.0
        assert (run.left, run.share, run.text) == (None, None, READ)
        expect({MEASURE: 10.0, RANK: 2.0, REFIT: 20.0})
        with bar(MEASURE, 4) as show:
            assert run.text == f"2 of 4: {MEASURE}"
            assert run.left == 32.0
            clock[0] += 10.0
            show(2)
            assert run.left == 10.0 + 22.0
            clock[0] += 10.0
        with busy(RANK):  # the first phase took twice its estimate
            assert run.left == 2 * (2.0 + 20.0)
            assert run.share == pytest.approx(23.0 / 67.0)


def test_phases_never_go_back_and_parts_of_a_phase_are_not_phases(clock: list[float]) -> None:
    with run_of((READ,), False) as run:
        expect({MEASURE: 1.0, REFIT: 1.0, FIDELITY: 1.0})
        with busy(MEASURE):
            with busy(READ):
                assert run.text == f"2 of 4: {MEASURE}"
            with bar(REFIT, 2) as show:  # a refit that a measurement needs
                show(1)
            assert (run.text, run.done) == (f"2 of 4: {MEASURE}", 0.0)
        with busy(FIDELITY), run_of(("another",), True):
            assert run.text == f"4 of 4: {FIDELITY}"
        with busy("loading"):
            assert run.text == f"4 of 4: {FIDELITY}"


def test_a_call_that_is_asked_for_progress_writes_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    net = randomise(
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    ).eval()
    for show, expected in ((None, []), (False, []), (True, [READ, MEASURE, RANK])):
        hope.encode(net, torch.zeros(1, 3, 8, 8), density=0.5, progress=show)
        lines = capsys.readouterr().err.splitlines()
        found = [
            re.fullmatch(r"hope: \[\d+:\d\d\] (?:(\d of \d): )?([^,]*)(, about .*)?", line) for line in lines
        ]
        assert [one[2] for one in found if one] == expected
        if show:
            assert [one[1] for one in found if one] == [None, "2 of 3", "3 of 3"]


@pytest.mark.parametrize("method", ["paper", hope.Absorb(sensitivity=True)])
def test_all_phases_of_a_run_are_in_its_estimate_in_their_order(method: Any) -> None:
    model = _digits()
    for budget in ({"fidelity": 0.9}, {"size": 0.5}):
        with run_of((READ,), False) as run:
            run.visible = True
            encoding = hope.encode(model, torch.zeros(2, 1, 8, 8), method=method, **budget)
            assert [*run.spent, run.phases[run.number]] == [*run.phases], (method, budget)
            assert encoding.steps


def test_what_takes_long_in_other_calls_has_a_line_per_phase(capsys: pytest.CaptureFixture[str]) -> None:
    net, x = _digits(), torch.zeros(1, 1, 8, 8)
    small = hope.encode(net, x, density=0.5, progress=False).model
    ranked = [READ, MEASURE, RANK]
    calls: dict[str, tuple[Callable[[], object], list[str]]] = {
        "wrap": (lambda: hope.deft.wrap(net, x, head=5, progress=True), [*ranked, SLACK, FIDELITY]),
        "free": (lambda: hope.deft.partition(net, x, free=0.5, progress=True), [*ranked, REFIT]),
        "mask": (
            lambda: hope.deft.partition(net, x, sever="mask", fidelity=0.8, progress=True),
            [READ, MEASURE, SLACK],
        ),
        "heal": (lambda: hope.heal(net, small, example=x, steps=2, progress=True), [INPUTS, HEALING]),
    }
    for name, (call, phases) in calls.items():
        capsys.readouterr()
        call()
        lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("hope: [")]
        assert [line.partition("] ")[2].partition(",")[0] for line in lines] == phases, name


def test_phases_without_estimates_are_counted() -> None:
    with run_of((READ, MEASURE, RANK, REFIT), False) as run:
        assert run.share == 0.0
        with bar(RANK, 2) as show:
            show(1)
            assert run.share == 2.5 / 4


def test_an_estimate_grows_with_the_work() -> None:
    model, x = _digits(), torch.zeros(1, 1, 8, 8)
    anatomy = hope.inspect(model, x)
    few, many = ([torch.randn(32, 1, 8, 8)] * count for count in (1, 16))
    small, large = (
        estimate(model, x, anatomy, hope.Absorb(calibration=some), evaluations=1) for some in (few, many)
    )
    assert large.memory > small.memory > 0
    assert large.seconds[MEASURE] > small.seconds[MEASURE] > 0
    assert REFIT not in estimate(model, x, anatomy, hope.Paper()).seconds
    assert re.fullmatch(r"about \d+ \w+ and [\d.]+ GB of memory", str(large))


def test_a_phase_that_a_command_begins_twice_has_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET", 0.0)
    with progress.logged():
        for name in ("one", "one", "two"):
            with busy(name):
                pass
    assert [line.split("] ")[1] for line in capsys.readouterr().err.splitlines()] == ["one", "two"]


def test_a_terminal_shows_one_bar_with_phases_and_the_time_left(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(NET)
    command = [sys.executable, "-m", "hope.cli.main", "encode", "net.py:build", "--input", "1x3x8x8"]
    parent, child = pty.openpty()
    with subprocess.Popen(
        [*command, "--density", "0.5", "--out", "run"],
        cwd=tmp_path,
        stderr=child,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"},
    ) as process:
        os.close(child)
        shown = b""
        while True:
            try:
                part = os.read(parent, 4096)
            except OSError:  # the other end is closed
                break
            if not part:
                break
            shown += part
    text = re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", shown.decode())
    assert process.returncode == 0
    assert "about" in text
    assert "left" in text
    numbers = re.findall(r"(\d) of (\d): ", text)
    assert {total for _, total in numbers} == {"5"}
    assert numbers == sorted(numbers)


def test_a_notebook_shows_one_output_that_needs_no_widgets(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="the dev extra is not installed")
    nbclient = pytest.importorskip("nbclient", reason="the dev extra is not installed")
    cells = [
        NET,
        "import hope\nencoding = hope.encode(build(), torch.zeros(1, 3, 8, 8), density=0.5, progress=True)",
        "from hope._util.progress import bar\nimport time\nwith bar('counting', 3) as show:\n"
        "    for k in range(3):\n        show(k); time.sleep(1)",
        "from hope.demo import DigitsNet\nfrom tests.support import randomise\n"
        "net, x = randomise(DigitsNet()).eval(), torch.zeros(1, 1, 8, 8)\n"
        "tuning = hope.deft.wrap(net, x, head=5, progress=True)",
        "small = hope.encode(net, x, density=0.5, progress=False).model",
        "fitted = hope.refit(net, small, 'patterns', example=x, progress=True)",
        "healed = hope.heal(net, small, example=x, steps=2, progress=True)",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    messages = []
    client = nbclient.NotebookClient(book, timeout=300, kernel_name="python3")
    original = client.process_message

    def spy(message: Any, cell: Any, index: int) -> Any:
        if message["msg_type"] in ("display_data", "update_display_data"):
            messages.append((index, message["content"]["data"]))
        return original(message, cell, index)

    client.process_message = spy
    client.execute()
    outputs = [cell.outputs for cell in book.cells]
    shown = [[one for one in some if one.output_type == "display_data"] for some in outputs]
    assert [len(one) for one in shown] == [0, 1, 1, 1, 1, 1, 1]
    assert outputs[:3] == shown[:3]
    assert "application/vnd.jupyter.widget-view+json" not in outputs[1][0]["data"]
    texts = [data["text/plain"] for index, data in messages if index == 1]
    assert any(text.startswith(f"2 of 3: {MEASURE}, about") for text in texts)
    assert outputs[2][0]["data"]["text/plain"] == "counting: done after 3 seconds"
    assert any("<progress" in data.get("text/html", "") for _, data in messages)
