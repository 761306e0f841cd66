"""The API reference from the docstrings: `python docs/reference.py` writes docs/api.md (make docs)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

import hope
import hope.deft

PAGE = Path(__file__).with_name("api.md")
WIDTH = 100
MADE_BY_USERS = (  # others are given
    hope.Absorb, hope.Paper, hope.Score, hope.Runtime, hope.Evict, hope.Merge, hope.Prune, hope.Quantise
)  # fmt: skip
SECTION = re.compile(r"(Args|Attributes|Returns|Raises|Example):")
ITEM = re.compile(r"(\*{0,2}\w+(?:, \*{0,2}\w+)*): (.*)")
HEAD = """# API reference

Made from the docstrings by `make docs`; the examples are run by the tests. What it is for: [guide](guide.md).
"""


def public(module: ModuleType) -> dict[str, Any]:
    """Functions and classes of a module by name, functions first and errors last."""
    names = getattr(module, "__all__", None)
    if names is None:
        names = [n for n, v in vars(module).items() if getattr(v, "__module__", None) == module.__name__]
    found = {n: getattr(module, n) for n in names if not n.startswith("_")}
    callables = {n: v for n, v in found.items() if inspect.isfunction(v) or inspect.isclass(v)}
    return dict(sorted(callables.items(), key=lambda item: (_rank(item[1]), item[0])))


def _rank(value: Any) -> int:
    return 0 if inspect.isfunction(value) else 2 if issubclass(value, Exception) else 1


def members(kind: type) -> dict[str, Any]:
    """A class's own public methods and properties, in the order of the source."""
    wanted = (property, cached_property, classmethod, staticmethod)
    return {
        name: value
        for name, value in vars(kind).items()
        if not name.startswith("_") and (inspect.isfunction(value) or isinstance(value, wanted))
    }


def signature(name: str, value: Any) -> str:
    """A call as it stands in the source, a line per parameter where it is long."""
    if isinstance(value, (property, cached_property)):
        function = value.fget if isinstance(value, property) else value.func
        return f"{name}: {_words(inspect.signature(function).return_annotation)}"
    call = inspect.signature(value)
    parts, starred = [], False
    for parameter in call.parameters.values():
        if parameter.name in ("self", "cls"):
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and not starred:
            parts.append("*")
        starred = starred or parameter.kind in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL)
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        given = getattr(parameter.default, "__name__", repr(parameter.default))  # functions by name
        default = "" if parameter.default is parameter.empty else f" = {given}"
        parts.append(f"{stars}{parameter.name}: {_words(parameter.annotation)}{default}")
    made = inspect.isclass(value) or call.return_annotation is call.empty
    end = ")" if made else f") -> {_words(call.return_annotation)}"
    line = f"{name}({', '.join(parts)}{end}"
    return line if len(line) <= WIDTH else "\n    ".join([f"{name}(", *(f"{p}," for p in parts)]) + f"\n{end}"


def _words(annotation: Any) -> str:
    if isinstance(annotation, str):
        return annotation
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return str(annotation).replace("collections.abc.", "")


def doc(value: Any) -> str:
    """A docstring of its own; an inherited one does not count."""
    if isinstance(value, cached_property):
        value = value.func
    return inspect.cleandoc(getattr(value, "__doc__", None) or "")


def markdown(text: str) -> str:
    """A docstring as Markdown."""
    return "\n\n".join(_parts(text))


def _parts(text: str) -> Iterator[str]:
    for paragraph in re.split(r"\n\s*\n", text):
        lines = paragraph.splitlines()
        if SECTION.fullmatch(lines[0]):
            if lines[0] != "Example:":
                yield f"**{lines[0].removesuffix(':')}**"
            body = inspect.cleandoc("\n" + "\n".join(lines[1:]))
        else:
            body = "\n".join(lines)
        if body.lstrip().startswith(">>>"):
            yield f"```pycon\n{inspect.cleandoc(body)}\n```"
        elif SECTION.fullmatch(lines[0]):
            yield "\n".join(_items(body))
        else:
            yield body


def _items(body: str) -> Iterator[str]:
    """A list: an item starts at the margin, further lines of it are indented."""
    found: list[str] = []
    for line in body.splitlines():
        if line.startswith(" ") and found:
            found[-1] += f" {line.strip()}"
        else:
            found.append(line.strip())
    for item in found:
        match = ITEM.fullmatch(item)
        yield f"- `{match[1]}`: {match[2]}" if match else f"- {item}"


def entry(name: str, value: Any, level: int) -> Iterator[str]:
    """A name with its signature, its docstring and what belongs to it."""
    yield f"{'#' * level} {name}"
    short = name.rpartition(".")[2]
    if inspect.isclass(value) and issubclass(value, Exception):
        bases = ", ".join(f"`{base.__name__}`" for base in value.__bases__)
        yield f"{markdown(doc(value))} A kind of {bases}."
        return
    if inspect.isfunction(value) or value in MADE_BY_USERS:
        yield f"```py\n{signature(name, value)}\n```"
    yield markdown(doc(value))
    if inspect.isclass(value):
        for member, what in members(value).items():
            called = getattr(value, member) if isinstance(what, (classmethod, staticmethod)) else what
            yield f"```py\n{signature(f'{short}.{member}', called)}\n```"
            yield markdown(doc(called))


def sections() -> dict[str, ModuleType]:
    """The modules on the page."""
    return {"hope": hope, "hope.deft": hope.deft, "hope.deft.baselines": hope.deft.baselines}


def anchors() -> dict[str, str]:
    """Where each name is found on the page. Names that differ in case only have one heading's anchor, which
    is the first one's; the second gets one of its own.
    """
    found: dict[str, str] = {}
    for place, module in sections().items():
        for name in public(module):
            anchor = f"{place}{name}".replace(".", "").lower()
            found[f"{place}.{name}"] = f"class-{anchor}" if anchor in found.values() else anchor
    return found


def page() -> str:
    """The whole page."""
    parts = [HEAD.strip()]
    links, where = [], anchors()
    for place, module in sections().items():
        names = [f"[`{name}`](#{where[f'{place}.{name}']})" for name in public(module)]
        links.append(f"- `{place}`: {', '.join(names)}")
    parts.append("\n".join(links))
    for place, module in sections().items():
        parts += [f"## {place}", markdown(doc(module))]
        for name, value in public(module).items():
            anchor = where[f"{place}.{name}"]
            if anchor.startswith("class-"):
                parts.append(f'<a id="{anchor}"></a>')
            parts += entry(f"{place}.{name}", value, 3)
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page())
