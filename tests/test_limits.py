"""Files and functions stay short enough to be read at once."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "hope"
LINES, BODY = 350, 60


@pytest.mark.parametrize("file", sorted(SOURCE.rglob("*.py")), ids=lambda file: str(file.relative_to(SOURCE)))
def test_files_and_function_bodies_have_their_limits(file: Path) -> None:
    text = file.read_text()
    assert text.count("\n") <= LINES
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            length = node.end_lineno - body[0].lineno + 1 if body and node.end_lineno else 0
            assert length <= BODY, f"{node.name} has {length} lines"


def test_no_module_or_class_has_the_name_of_another() -> None:
    public = {"demo"}  # hope.demo, and the command
    modules = [file.stem for file in SOURCE.rglob("*.py") if not file.stem.startswith("_")]
    trees = [ast.parse(file.read_text()) for file in SOURCE.rglob("*.py")]
    classes = [node.name for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)]
    for names in (modules, classes):
        assert {name for name in names if names.count(name) > 1} <= public
