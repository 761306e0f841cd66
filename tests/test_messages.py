"""Error messages say what must be, what was given and what to do."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import hope.errors

SOURCE = Path(hope.errors.__file__).parent
ERRORS = {name for name, one in vars(hope.errors).items() if isinstance(one, type)}
# what is wrong with a file, a package or a process: there, what is says what must be
STATES = {"CannotWrite", "CheckpointMismatch", "DamagedFolder", "InvalidAccuracies"}
STATES |= {"LostWorker", "MissingData", "MissingExtra"}
ADVICE = re.compile(r"[:;] [^:;]|\{\w+\}'$")  # or a part that ends with it


def messages() -> list[tuple[str, str, str]]:
    """Where each error of `hope.errors` is raised with words, its name, and the words."""
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call) or not node.exc.args:
                continue
            kind, given = ast.unparse(node.exc.func).rpartition(".")[2], node.exc.args[0]
            if kind in ERRORS - {"Misused"} and isinstance(given, (ast.Constant, ast.JoinedStr, ast.BinOp)):
                found.append((f"{path.relative_to(SOURCE)}:{node.lineno}", kind, ast.unparse(given)))
    return found


@pytest.mark.parametrize(("where", "kind", "words"), [pytest.param(*one, id=one[0]) for one in messages()])
def test_a_message_says_what_must_be_and_what_to_do(where: str, kind: str, words: str) -> None:
    assert ADVICE.search(words), "what to do comes after a colon"
    assert kind in STATES or re.search(r"\b(must|cannot|there is no)\b|{advice}", words), "say what must be"
