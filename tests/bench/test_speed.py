"""`hope bench speed`: what is reported; never how long anything took."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hope.cli.main import main


def test_a_model_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text("from hope.demo import DigitsNet\n")
    out = tmp_path / "speed.json"
    model = [f"{tmp_path / 'net.py'}:DigitsNet", "--input", "1x1x8x8", "--density", "0.5"]
    assert main(["bench", "speed", *model, "--out", str(out)]) == 0
    assert json.loads(out.read_text())["network"]["steps"] > 0
    reported = " ".join(capsys.readouterr().out.split())  # lines break where the table's width lets them
    assert "to density 0.5" in reported
