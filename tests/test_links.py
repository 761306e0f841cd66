"""Relative links and anchors of README and docs lead somewhere, on the repository's page and on the site."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOTS = ("README.md", "CHANGELOG.md", "SECURITY.md", "examples/README.md")
PAGES = [*(ROOT / name for name in ROOTS), *sorted((ROOT / "docs").glob("*.md"))]
LINK = re.compile(r"\]\(([^)\s]+)\)|(?:src|href)=\"([^\"]+)\"")


def prose(page: Path) -> str:
    """A page without its code."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"`[^`\n]*`", "`code`", text)


def links(page: Path) -> list[str]:
    """What a page links to, other sites left out."""
    found = [one or other for one, other in LINK.findall(prose(page))]
    return [link for link in found if not re.match(r"[a-z]+:", link)]


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub and mkdocs make them, and those that it gives itself."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    heads = re.findall(r"^#+ +(.+?) *$", text, re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}
    return slugs | set(re.findall(r"(?:id|name)=\"([^\"]+)\"", text))


def missing(page: Path) -> list[str]:
    """The links that lead nowhere."""
    wrong = []
    for link in links(page):
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    assert missing(page) == []


def test_there_are_links_to_look_at_and_broken_ones_are_found(tmp_path: Path) -> None:
    assert sum(len(links(page)) for page in PAGES) > 30
    page = tmp_path / "page.md"
    page.write_text("# One head\n[a](#one-head) [b](#another) [c](page.md#one-head) [d](other.md) `[e](f)`\n")
    assert missing(page) == ["#another", "other.md"]


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached, left = set(), [ROOT / "README.md"]
    while left:
        page = left.pop()
        if page not in reached and page.suffix == ".md":
            reached.add(page)
            left += [(page.parent / link.partition("#")[0]).resolve() for link in links(page)]
    assert set(PAGES) <= reached
