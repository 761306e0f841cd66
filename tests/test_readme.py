"""The Python of README and docs runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[1] / "README.md"


@pytest.mark.parametrize("code", re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL))
def test_readme_example_runs(code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    exec(code, scope)
    model = scope["model"]
    if "hope.deft" in code:
        tuning = scope["tuning"]
        assert type(tuning.model) is type(model)  # type: ignore[attr-defined]
        assert tuning.moved() == []  # type: ignore[attr-defined]
        return
    small = scope["small"]
    assert type(small) is type(model)
    assert len(str(small)) > 0
    assert sum(p.numel() for p in small.parameters()) < sum(p.numel() for p in model.parameters())  # type: ignore[attr-defined]


@pytest.mark.parametrize("page", sorted((README.parent / "docs").glob("*.md")), ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of one page share their names, from top to bottom."""
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL):
        exec(code, scope)
