"""`hope bench speed`: what is told; never how long anything took."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hope.cli.main import main


@pytest.mark.parametrize("with_model", [True, False])
def test_a_model_and_layers_are_measured(
    with_model: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text("from hope.demo import DigitsNet\n")
    model = [f"{tmp_path / 'net.py'}:DigitsNet", "--input", "1x1x8x8", "--density", "0.5"]
    out = tmp_path / "speed.json"
    given = ["bench", "speed", *(model if with_model else []), "--widths", "16", "--out", str(out)]
    assert main(given) == 0
    results = json.loads(out.read_text())
    assert [row["neurons"] for row in results["layers"]] == [16]
    assert ("network" in results) == with_model
    told = " ".join(capsys.readouterr().out.split())  # lines break where the table's width lets them
    assert ("to density 0.5" in told) == with_model
