"""Nothing is written to a result after it was made: what can be seen of that in the source."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).resolve().parents[1] / "src" / "hope"
FILES = {str(path.relative_to(SOURCE)): ast.parse(path.read_text()) for path in SOURCE.rglob("*.py")}
CHANGES = {"append", "extend", "insert", "update", "add", "pop", "popitem", "remove", "discard", "clear"}
CHANGES |= {"setdefault", "sort", "reverse", "__setitem__", "__setattr__", "__delitem__", "__delattr__"}


def is_frozen(node: ast.ClassDef) -> bool:
    calls = [one for one in node.decorator_list if isinstance(one, ast.Call)]
    words = [*node.keywords, *(word for call in calls for word in call.keywords)]
    return any(word.arg == "frozen" and ast.unparse(word.value) == "True" for word in words)


def classes(tree: ast.AST) -> Iterator[ast.ClassDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and is_frozen(node))


FROZEN = {node.name for tree in FILES.values() for node in classes(tree)}


def root(node: ast.AST) -> str:
    """The name whose attribute, or an entry of it, this is; "" for others."""
    inside = False
    while isinstance(node, (ast.Attribute, ast.Subscript)):
        inside |= isinstance(node, ast.Attribute)
        node = node.value
    return node.id if inside and isinstance(node, ast.Name) else ""


def written(tree: ast.AST, names: Collection[str]) -> Iterator[str]:
    """Where an attribute of one of these names is assigned, deleted, or changed by a method."""
    for node in ast.walk(tree):
        found = ""
        if isinstance(node, (ast.Attribute, ast.Subscript)) and not isinstance(node.ctx, ast.Load):
            found = root(node)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            changed = node.func.attr in CHANGES and isinstance(
                node.func.value, (ast.Attribute, ast.Subscript)
            )
            found = root(node.func.value) if changed else ""
            if ast.unparse(node.func) == "object.__setattr__":
                yield f"{node.lineno}: {ast.unparse(node)}"
        if found in names:
            yield f"{getattr(node, 'lineno', 0)}: {ast.unparse(node)}"


def arguments(function: ast.FunctionDef) -> set[str]:
    """The arguments whose annotation is a frozen class."""
    some = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    hints = {one.arg: ast.unparse(one.annotation) for one in some if one.annotation is not None}
    return {name for name, hint in hints.items() if FROZEN & set(hint.split(" | "))}


@pytest.mark.parametrize("file", sorted(FILES))
def test_no_function_writes_to_an_instance_of_a_frozen_class(file: str) -> None:
    found = [*written(FILES[file], ())]
    for node in classes(FILES[file]):
        found += written(node, {"self"})
    for function in ast.walk(FILES[file]):
        if isinstance(function, ast.FunctionDef):
            found += written(function, arguments(function))
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "self.cost = 1",
        "self.counts[0] = 1",
        "self.counts['a'] += 1",
        "self.known.append(1)",
        "self.known['a'].update(b=1)",
        "del self.known[0]",
        "other.steps = 1",
        "object.__setattr__(self, 'cost', 1)",
        "self.a, self.b = 1, 2",
    ],
)
def test_a_write_is_seen(line: str) -> None:
    assert [*written(ast.parse(line), {"self", "other"})]


@pytest.mark.parametrize(
    "line", ["found = self.known", "self.known.of(1, f)", "known[0] = 1", "some.append(self)"]
)
def test_a_read_is_none(line: str) -> None:
    assert not [*written(ast.parse(line), {"self", "other"})]
