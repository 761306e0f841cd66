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
PAGES = sorted({ROOT / "README.md", *(ROOT / "docs").glob("*.md")} - OTHER)

# Old word -> how often the package still has it, in names, comments, docstrings and messages: lower it, never
# raise it.
LIMITS = dict.fromkeys(
    (
        "hear",
        "hearing",
        "listen",
        "listening",
        "settles",
        "mute",
        "weighs",
        "weighed",
        "vessel",
        "vessels",
        "voice",
        "speak",
        "taker",
        "pace",
        "merger",
        "melted",
        "recalled",
    ),
    0,
) | {
    "begun": 0,
    "behind": 16,
    "beside": 0,
    "brought": 0,
    "carries": 0,
    "clock": 1,  # time.get_clock_info
    "deaf": 4,
    "deciding": 2,
    "eye": 4,
    "fate": 0,
    "goes": 1,
    "gone": 0,
    "heard": 0,
    "hears": 0,
    "intake": 0,
    "intakes": 1,
    "judge": 0,
    "judged": 0,
    "judges": 0,
    "listener": 0,
    "listens": 0,
    "mesh": 0,
    "nobody": 0,
    "paced": 0,
    "settle": 0,
    "settled": 0,
    "silence": 1,
    "silenced": 0,
    "silent": 3,
    "speaks": 0,
    "spot": 0,
    "spots": 0,
    "standings": 0,
    "survivor": 0,
    "survivors": 0,
    "takeover": 0,
    "takers": 0,
    "tell": 0,
    "telling": 0,
    "tells": 0,
    "thinned": 0,
    "told": 1,
    "untold": 0,
    "voices": 0,
    "ways": 0,
    "weave": 0,
    "weaver": 0,
    "weigh": 0,
    "woven": 0,
}
PHRASES = ("closing the loop", "close the loop", "loop is closed", "what it was told", "held fast", "made up")
PACKAGES = ("graph", "anatomy", "signals", "judge", "surgery", "run")  # as they were called


def words(text: str) -> list[str]:
    """The words of a text or a name, in lower case."""
    return re.findall(r"[a-z]+", re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text).lower())


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_have_none_of_the_old_words(page: Path) -> None:
    text = prose(page)
    assert sorted(set(words(text)) & LIMITS.keys()) == []
    assert [phrase for phrase in PHRASES if phrase in " ".join(text.lower().split())] == []


@pytest.mark.parametrize("word", LIMITS)
def test_the_package_has_no_more_of_the_old_words(word: str) -> None:
    assert package()[word] <= LIMITS[word], f"{word!r}: see the words of the field in the other docstrings"


@pytest.mark.parametrize("name", PACKAGES)
def test_packages_have_their_present_names(name: str) -> None:
    assert not (ROOT / "src" / "hope" / name).exists()
    for page in (*PAGES, *(ROOT / "src" / "hope").rglob("*.py")):
        assert not re.search(rf"\bhope[./]{name}[./]", page.read_text()), page
