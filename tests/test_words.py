"""Names and prose use the words of the field: `told` is `to_dict`, `note` or `known`, `gone` is
`removed`, …
"""

from __future__ import annotations

import io
import re
import tokenize
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
# mutation.md has the names of the version that was tested; api.md is made from docstrings
OTHER = {ROOT / "docs" / name for name in ("mutation.md", "api.md")}
ROOTS = {ROOT / name for name in ("README.md", "CHANGELOG.md", "SECURITY.md")}
PAGES = sorted({*ROOTS, *(ROOT / "docs").glob("*.md")} - OTHER)
REPORT = sorted(
    path for path in (ROOT / "src/hope/report").iterdir() if path.suffix in (".js", ".css", ".html")
)

OLD = """
begun behind beside brought carries clock deaf deciding eye fate fates goes gone hear heard hearing
hears intake intakes judge judged judges listen listener listening listens melted merger mesh
mute nobody pace paced recalled settle settled settles silence silenced silent speak speaks
spot spots standings survivor survivors taker takeover takers tell telling tells thinned told
untold vessel vessels voice voices ways weave weaver weigh weighed weighs woven
"""
IN_CODE = "trial trials"  # which on pages are experiments that were repeated
# how often the package has them all the same: in formats of files, and in names of Python and torch
KEPT = {"clock": 1, "deciding": 2, "eye": 4, "goes": 1, "intakes": 1, "silence": 1}
PHRASES = (
    "closing the loop", "close the loop", "loop is closed", "what it was told", "held fast", "made up",
    "looked at", "looks at", "look at", "takes over", "took over", "take over",
    "made inputs", "a stand in", "not as it should",
)  # fmt: skip
PACKAGES = ("graph", "anatomy", "signals", "judge", "surgery", "run")  # as they were called


def words(text: str) -> list[str]:
    """The words of a text or a name, in lower case."""
    return re.findall(r"[a-z]+", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text).lower())


def phrases(text: str) -> list[str]:
    """The old phrases of a text, however their words are joined."""
    plain = " ".join(re.sub(r"[-_]", " ", text.lower()).split())
    return [phrase for phrase in PHRASES if phrase in plain]


def prose(page: Path) -> str:
    """A page without its code and its comments."""
    return re.sub(r"```.*?```|`[^`\n]*`|<!--.*?-->", " ", page.read_text(), flags=re.DOTALL)


@cache
def package() -> Counter[str]:
    """How often the package has each word, in names, comments and strings."""
    found: Counter[str] = Counter()
    for module in sorted((ROOT / "src" / "hope").rglob("*.py")):
        for token in tokenize.generate_tokens(io.StringIO(module.read_text()).readline):
            if token.type in (tokenize.NAME, tokenize.COMMENT, tokenize.STRING):
                found.update(words(token.string))
    return found


def test_names_are_split_into_words() -> None:
    assert words("BlockMatch, not_as_told: 3 ways") == ["block", "match", "not", "as", "told", "ways"]
    assert phrases("made-up images, made_inputs") == ["made up", "made inputs"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_have_none_of_the_old_words(page: Path) -> None:
    text = prose(page)
    assert sorted(set(words(text)) & set(words(OLD))) == []
    assert phrases(text) == []


@pytest.mark.parametrize("part", REPORT, ids=lambda part: part.name)
def test_the_report_has_none_of_the_old_words(part: Path) -> None:
    text = part.read_text()
    found = set(words(text.replace("EventListener", ""))) & {
        *words(OLD),
        *words(IN_CODE),
    }  # which is a browser's
    assert sorted(found) == []
    assert phrases(text) == []


@pytest.mark.parametrize("word", words(OLD + IN_CODE))
def test_the_package_has_no_more_of_the_old_words(word: str) -> None:
    assert package()[word] <= KEPT.get(word, 0), (
        f"{word!r}: see the words of the field in the other docstrings"
    )


def test_the_package_has_none_of_the_old_phrases() -> None:
    for module in (ROOT / "src" / "hope").rglob("*.py"):
        assert phrases(module.read_text()) == [], module


@pytest.mark.parametrize("name", PACKAGES)
def test_packages_have_their_present_names(name: str) -> None:
    assert not (ROOT / "src" / "hope" / name).exists()
    for page in (*PAGES, *(ROOT / "src" / "hope").rglob("*.py")):
        assert not re.search(rf"\bhope[./]{name}[./]", page.read_text()), page
