"""Who may import whom: the package no one, the zoo the package, experiments both, and none of them tests."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OWN = {"hope", "zoo", "experiments", "tests"}
MAY: dict[str, set[str]] = {
    "src": {"hope"},
    "docs": {"hope"},
    "zoo": {"hope", "zoo"},
    "experiments": {"hope", "zoo", "experiments"},
    "tests": {"hope", "zoo", "tests"},
    "tests/experiments": OWN,
}


def imported(path: Path) -> set[str]:
    """The top-level packages that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("folder", MAY)
def test_imports_stay_within_what_a_folder_may_see(folder: str) -> None:
    inner = [ROOT / other for other in MAY if other.startswith(f"{folder}/")]
    files = [f for f in (ROOT / folder).rglob("*.py") if not any(f.is_relative_to(i) for i in inner)]
    assert files
    for file in files:
        beyond = (imported(file) & OWN) - MAY[folder]
        assert not beyond, f"{file.relative_to(ROOT)} imports {', '.join(sorted(beyond))}"
