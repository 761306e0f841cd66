"""The site's own pages and its menu, without mkdocs: `make docs` checks the rest."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]


def _hooks() -> Any:
    """They lie beside the pages, in no package."""
    spec = importlib.util.spec_from_file_location("site_hooks", ROOT / "docs" / "site_hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


hooks = _hooks()
FILES = {path.name for path in (ROOT / "docs").iterdir()} | set(hooks.made())


@pytest.mark.parametrize(
    ("link", "folder", "found"),
    [
        ("docs/guide.md#limits", "", "guide.md#limits"),
        ("docs/compression.svg", "", "compression.svg"),
        ("CHANGELOG.md", "", "changelog.md"),
        ("examples/README.md", "", "examples.md"),
        ("examples/finetune.py", "", "examples.md#finetunepy"),
        ("finetune.py", "examples", "examples.md#finetunepy"),
        ("first_steps.ipynb", "examples", "examples.md#first_stepsipynb"),
        ("../examples/onnx_server.py", "docs", "examples.md#onnx_serverpy"),
        ("../README.md", "docs", "index.md"),
        ("guide.md", "docs", "guide.md"),
    ],
)
def test_a_link_to_a_file_becomes_one_to_its_page(link: str, folder: str, found: str) -> None:
    assert hooks.site_links(f"[a]({link})", folder) == f"[a]({found})"


def test_links_to_elsewhere_and_within_a_page_stay() -> None:
    text = "[a](https://example.org/docs/x.md) [b](#here)"
    assert hooks.site_links(text, "docs") == text


@pytest.mark.parametrize("name", hooks.made())
def test_the_links_of_a_made_page_lead_to_pages_of_the_site(name: str) -> None:
    text = re.sub(r"^```.*?^```", "", hooks.made()[name], flags=re.DOTALL | re.MULTILINE)
    for path, anchor in hooks.LINK.findall(text):
        assert path in FILES, path
        if path == "examples.md" and anchor:
            heads = re.findall(r"^## (\S+)$", hooks.made()[path], re.MULTILINE)
            assert anchor.removeprefix("#") in [head.lower().replace(".", "") for head in heads]


def test_the_menu_has_every_page() -> None:
    settings = (ROOT / "mkdocs.yml").read_text()
    hidden, menu = settings.partition("not_in_nav: |")[2].split("nav:\n")
    menu = re.findall(r"^ +- (?:.+: )?([\w-]+\.md)$", menu, re.MULTILINE)
    assert hidden.split() == ["mutation.md"], "it is for developers: linked, and in no menu"
    menu += hidden.split()
    assert sorted(menu) == sorted(name for name in FILES if name.endswith(".md"))
