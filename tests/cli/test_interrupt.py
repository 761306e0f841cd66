"""A run that was stopped at any moment goes on, and the last line says how; what needs no torch has none."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hope.cli import encode
from hope.cli.main import COMMANDS, main, parser
from hope.methods import METHODS

MODEL = """
import time
from pathlib import Path
import torch
from hope.demo import DigitsNet

class Slow(DigitsNet):
    def forward(self, x):
        time.sleep(0.03)
        return super().forward(x)

def build():
    Path(__file__).with_name("built").touch()
    torch.manual_seed(0)
    return Slow()
"""
BUDGETS = {"absorb": ["--density", "0.5"], "paper": ["--density", "0.5", "--method", "paper"]}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A slow model, and what runs of it come to if nobody stops them."""
    folder = tmp_path_factory.mktemp("slow")
    (folder / "model.py").write_text(MODEL)
    for name in BUDGETS:
        assert main(_call(folder, name, folder / f"whole-{name}")) == 0
    return folder


def _call(folder: Path, method: str, out: Path) -> list[str]:
    model = ["encode", f"{folder / 'model.py'}:build", "--input", "1x1x8x8"]
    return [*model, *BUDGETS[method], "--curve", "--out", str(out)]


def _listen() -> None:
    """Whoever runs the tests in the background of a script has told them not to hear SIGINT."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("method", "moment", "number"),
    [
        ("absorb", "built", signal.SIGTERM),
        ("absorb", "run/partial.json", signal.SIGINT),
        ("absorb", "run/trajectory.json", signal.SIGTERM),
        ("paper", "run/trajectory.json", signal.SIGINT),
    ],
)
def test_a_run_that_was_stopped_goes_on(
    method: str,
    moment: str,
    number: signal.Signals,
    place: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    call = _call(tmp_path, method, tmp_path / "run")
    running = subprocess.Popen(
        [sys.executable, "-m", "hope.cli.main", *call],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=_listen,
    )
    while not (tmp_path / moment).exists():
        assert running.poll() is None, running.communicate()
        time.sleep(0.002)
    running.send_signal(number)
    _, err = running.communicate()
    assert running.returncode == 130, err
    last = err.splitlines()[-1]
    assert last.startswith("hope: stopped; to go on: hope encode ")
    assert last.endswith(" --resume")
    assert not list(tmp_path.rglob("*.part"))

    assert main([*call, "--resume"]) == 0
    assert "already has this run" not in capsys.readouterr().out
    runs = [
        json.loads((folder / "trajectory.json").read_text())
        for folder in (tmp_path / "run", place / f"whole-{method}")
    ]
    assert runs[0]["trajectory"] == runs[1]["trajectory"]
    assert runs[0]["details"]["fidelities"] == runs[1]["details"]["fidelities"]
    assert not (tmp_path / "run" / "partial.json").exists()
    assert main([*call, "--resume"]) == 0
    assert "already has this run" in capsys.readouterr().out


def test_a_run_is_not_replaced_unasked(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = place / "whole-paper"
    before = (out / "trajectory.json").stat().st_mtime_ns
    call = _call(place, "paper", out)
    assert main(call) == 2
    assert (
        "must not contain a run, got one: give --resume to continue it, --force to replace it"
        in capsys.readouterr().err
    )
    assert (out / "trajectory.json").stat().st_mtime_ns == before
    assert main([*call, "--force"]) == 0
    assert (out / "trajectory.json").stat().st_mtime_ns > before


@pytest.mark.parametrize("call", ["--version", "--help", "encode --help", "inspect --help"])
def test_what_needs_no_torch_does_not_wait_for_it(call: str) -> None:
    script = (
        "import sys\nfrom hope.cli.main import main\n"
        "try: main(sys.argv[1:])\nexcept SystemExit as end: assert end.code == 0\n"
        "print([name for name in ('torch', 'numpy', 'rich') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *call.split()], capture_output=True, text=True, check=True
    )
    assert done.stderr.strip() == "[]"
    assert "hope" in done.stdout


def test_what_main_says_of_commands_is_what_they_say() -> None:
    (commands,) = [one for one in parser()._actions if one.dest == "command"]
    assert {one.dest: one.help for one in commands._choices_actions} == COMMANDS  # type: ignore[attr-defined]
    assert tuple(METHODS) == encode.METHODS


def test_random_weights_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("timm", reason="the timm extra is not installed")
    call = ["encode", "timm:tinynet_e", "--input", "1x3x32x32", "--steps", "1", "--method", "l1-in"]
    assert main([*call, "--out", str(tmp_path / "run")]) == 0
    assert "timm:tinynet_e has random weights: give --weights FILE or --pretrained" in capsys.readouterr().err
