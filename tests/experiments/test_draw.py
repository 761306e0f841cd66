"""The figures are those of the committed results, and can be read on any background."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("matplotlib", reason="figures need the extra 'report'")

from experiments import draw

LABELS = {
    "bits": ("neurons and bits", "neurons", "8 bits"),
    "compression": ("HOPE", "the paper", "Torch-Pruning"),
    "coverage": ("torchvision (", "timm (", "transformers ("),
    "readings": ("HOPE", "the paper, without evictions", "with evictions", "magnitude, best of three"),
    "speed": ("exponent ",),
    "transfer": ("DEFT, absorbed", "head only", "full fine-tuning"),
}


def luminance(colour: str) -> float:
    """Relative luminance after WCAG."""
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("name", draw.DRAWINGS)
def test_a_figure_is_what_the_results_say(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    committed = (draw.FIGURES / f"{name}.svg").read_text()
    monkeypatch.setattr(draw, "FIGURES", tmp_path)
    draw.draw(name)
    made = (tmp_path / f"{name}.svg").read_text()
    assert made == committed, f"docs/{name}.svg is out of date: run `make figures`"


@pytest.mark.parametrize("name", draw.DRAWINGS)
def test_a_figure_has_names_on_its_lines_and_no_background(name: str) -> None:
    picture = (draw.FIGURES / f"{name}.svg").read_text()
    for label in LABELS[name]:
        assert label in re.sub(r"<!--.*?-->", "", picture)
    for colour in {c.lower() for c in re.findall(r"(?:fill|stroke): (#[0-9a-fA-F]{6})", picture)}:
        on_white = 1.05 / (luminance(colour) + 0.05)
        on_dark = (luminance(colour) + 0.05) / (luminance("#0d1117") + 0.05)
        assert min(on_white, on_dark) > 2.5, f"{colour} cannot be read on every background"
