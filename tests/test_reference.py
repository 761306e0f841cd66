"""The API reference is up to date, and every public name explains itself."""

from __future__ import annotations

import doctest
import importlib.util
import inspect
import pkgutil
import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import hope


def _script(path: Path) -> Any:
    """The maker of the page lies beside it, in no package."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = _script(Path(__file__).resolve().parents[1] / "docs" / "reference.py")

NAMES = [
    (f"{place}.{name}", value)
    for place, module in reference.sections().items()
    for name, value in reference.public(module).items()
]


def test_the_page_is_what_the_docstrings_say() -> None:
    assert reference.PAGE.read_text() == reference.page(), "docs/api.md is out of date: run `make docs`"


def test_the_architecture_is_drawn_from_the_imports_as_they_are() -> None:
    drawing = _script(reference.PAGE.with_name("draw_architecture.py"))
    picture = drawing.draw(drawing.short(drawing.imports()))
    assert drawing.TARGET.read_text() == picture, "docs/architecture.svg is out of date: run `make docs`"
    assert "#e74c3c" not in picture, "an import goes the wrong way round"


def test_every_path_and_class_of_the_architecture_page_exists() -> None:
    root = reference.PAGE.parents[1]
    quoted = re.findall(r"`([^`\n]+)`", reference.PAGE.with_name("architecture.md").read_text())
    paths = [name for name in quoted if re.fullmatch(r"[\w/.]+(\.py|/)", name)]
    package = list((root / "src" / "hope").rglob("*.py"))
    known = {str(path.relative_to(root / "src" / "hope")) for path in package} | {
        path.name for path in package
    }
    lost = [name for name in paths if name not in known and not (root / name).exists()
            and not (root / "src" / "hope" / name).exists()]  # fmt: skip
    classes = [name for name in quoted if re.fullmatch(r"[A-Z]\w*[a-z]\w*", name)]
    source = "\n".join(path.read_text() for path in package)
    lost += [name for name in classes if not re.search(rf"^class {name}\b", source, re.M)]
    assert paths
    assert classes
    assert not lost, f"docs/architecture.md names what does not exist: {lost}"


def resolved(name: str) -> bool:
    """Whether a dotted name is in the package. `encoding.run` is an attribute of an `Encoding`."""
    *outer, last = name.removeprefix("hope.").split(".")
    owners = [".".join(["hope", *outer]), *["hope.encoding.Encoding"] * (outer == ["encoding"])]
    for owner in owners:
        with suppress(AttributeError, ImportError):
            found = pkgutil.resolve_name(owner)
            if last in getattr(found, "__annotations__", {}) or pkgutil.resolve_name(f"{owner}.{last}"):
                return True
    return False


def test_names_are_resolved_to_their_last_part() -> None:
    right = ["hope.encode", "pipeline.compress", "structure.grouping.read", "encoding.measurements"]
    wrong = [
        "hope.encoder",
        "pipeline.compres",
        "structure.grouping.reads",
        "encoding.measured",
        "encoding.x",
    ]
    assert [name for name in (*right, *wrong) if resolved(name)] == right


@pytest.mark.parametrize("page", ["architecture.md", "theory.md"])
def test_every_dotted_name_and_function_of_a_page_exists(page: str) -> None:
    root = reference.PAGE.parents[1]
    quoted = re.findall(r"`([^`\n]+)`", reference.PAGE.with_name(page).read_text())
    names = [name.partition("(")[0] for name in quoted]
    inside = {path.stem for path in (root / "src" / "hope").iterdir()} | {"hope"}
    dotted = [name for name in names if re.fullmatch(r"[a-z_]\w*(\.[A-Za-z_]\w*)+", name)]
    dotted = [name for name in dotted if name.partition(".")[0] in inside and not name.endswith(".py")]
    source = "\n".join(path.read_text() for path in (root / "src" / "hope").rglob("*.py"))
    called = [name.partition("(")[0] for name in quoted if re.fullmatch(r"[a-z_]\w*\(.*\)", name)]
    paths = [name for name in names if re.fullmatch(r"[\w/]+/[\w/]*(\.py)?", name)]
    lost = [name for name in dotted if not resolved(name)]
    lost += [name for name in called if not re.search(rf"def {name}\b", source)]
    lost += [
        name for name in paths if not any((start / name).exists() for start in (root, root / "src/hope"))
    ]
    assert len(dotted) > 2
    assert not lost, f"docs/{page} names what does not exist: {lost}"


def test_the_page_has_no_block_that_the_pages_test_would_run_again() -> None:
    assert "```python" not in reference.page()


def test_every_public_name_is_on_the_page() -> None:
    page = reference.page()
    for place, module in reference.sections().items():
        assert f"\n## {place}\n" in page
        for name in reference.public(module):
            assert f"\n### {place}.{name}\n" in page


@pytest.mark.parametrize(("name", "value"), NAMES, ids=[name for name, _ in NAMES])
def test_every_public_name_has_a_docstring_and_an_example(name: str, value: Any) -> None:
    own = reference.doc(value)
    assert own
    if inspect.isclass(value):
        for member, what in reference.members(value).items():
            assert reference.doc(what), f"{name}.{member} has no docstring"
        if issubclass(value, Exception):
            return
    assert doctest.DocTestParser().get_examples(own), f"{name} has no example"


def test_a_docstring_becomes_lists_and_blocks() -> None:
    text = "Add.\n\nArgs:\n    a: one\n        more.\n    b, c: two.\n\nExample:\n    >>> 1 + 1\n    2"
    assert reference.markdown(text).split("\n\n") == [
        "Add.",
        "**Args**",
        "- `a`: one more.\n- `b, c`: two.",
        "```pycon\n>>> 1 + 1\n2\n```",
    ]


def test_a_signature_reads_as_in_the_source() -> None:
    def f(a: int, *, b: str = "x") -> bool:
        return bool(a) and bool(b)

    assert reference.signature("f", f) == "f(a: int, *, b: str = 'x') -> bool"
    assert reference.signature("Score", hope.Score) == "Score(by: str = 'l1-in')"
    assert reference.signature("size", hope.Encoding.size) == "size: Size"
