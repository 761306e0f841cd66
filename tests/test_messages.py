"""Error messages say what must be, what was given and what to do."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import hope.errors

SOURCE = Path(hope.errors.__file__).parent
TREES = {path.relative_to(SOURCE): ast.parse(path.read_text()) for path in sorted(SOURCE.rglob("*.py"))}
BUILTIN = {"ArgumentTypeError", "TypeError", "ValueError"}  # what to do is said where they are caught
# what is wrong with a file, a package or a process: there, what is says what must be
STATES = {"CannotWrite", "CheckpointMismatch", "DamagedFolder", "InvalidAccuracies", "_Foreign"}
STATES |= {"LostWorker", "MissingData", "MissingExtra"}
MUST = re.compile(r"\b(must|cannot|there is no)\b|\{advice\}")
# after the last colon: words, or a variable that holds them; an error that is quoted is no advice
ADVICE = re.compile(r"[A-Za-z]|\{([A-Z_]+|advice|command|error|way|words)\}")


def error_classes() -> set[str]:
    """All classes of errors that the package defines or raises with words of its own."""
    found = {name for name, one in vars(hope.errors).items() if isinstance(one, type)} | BUILTIN
    for tree in TREES.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and {ast.unparse(base) for base in node.bases} & {
                "Exception", *found
            }:  # fmt: skip
                found.add(node.name)
    return found - {"Misused"}


def template(words: ast.expr) -> str | None:
    """A message as it is written, with {expressions}; None if it is made elsewhere."""
    if isinstance(words, ast.BinOp):
        return (template(words.left) or "{…}") + (template(words.right) or "{…}")
    parts = words.values if isinstance(words, ast.JoinedStr) else [words]
    if not isinstance(words, ast.JoinedStr | ast.Constant):
        return None
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
        for part in parts
        if isinstance(part, ast.Constant | ast.FormattedValue)
    )


def advice(message: str) -> str:
    """What follows the last colon or semicolon that is outside of expressions."""
    plain = re.sub(r"\{(?![A-Za-z_]+\})[^{}]*(\{[^{}]*\}[^{}]*)*\}", "{}", message)
    return re.split(r"[:;] ", plain)[-1] if re.search(r"[:;] ", plain) else ""


def messages() -> list[tuple[str, str, str]]:
    """Where each error is made with words, its class, and the words."""
    found, kinds = [], error_classes()
    for path, tree in TREES.items():
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not node.args:
                continue
            kind, words = ast.unparse(node.func).rpartition(".")[2], template(node.args[0])
            if kind in kinds and words:
                found.append((f"{path}:{node.lineno}", kind, words))
    return found


def test_a_quoted_error_is_no_advice() -> None:
    assert not ADVICE.search(advice("{path} cannot be made: {error.strerror or first_line(error)}"))
    assert not ADVICE.search(advice("{path} must be a folder, got {given}"))
    assert ADVICE.search(advice("{path} cannot be read ({first_line(error)}): give another"))
    assert ADVICE.search(advice("{path} must be a folder, got {given}: {way}"))
    assert MUST.search("there is no {path}")


@pytest.mark.parametrize(("where", "kind", "words"), [pytest.param(*one, id=one[0]) for one in messages()])
def test_a_message_says_what_must_be_and_what_to_do(where: str, kind: str, words: str) -> None:
    assert kind in BUILTIN or ADVICE.search(advice(words)), "what to do comes after a colon"
    assert kind in STATES or MUST.search(words), "say what must be"
    assert kind not in BUILTIN or re.search(r"\bgot\b", words), "say what was given"
