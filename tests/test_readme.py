"""The Python of README and docs runs as it stands, and their command lines are known to the parser."""

from __future__ import annotations

import argparse
import pkgutil
import re
import shlex
from pathlib import Path

import pytest
import torch

import hope
from hope.cli.main import parser
from zoo.networks import ResNet50V1

README = Path(__file__).resolve().parents[1] / "README.md"
PAGES = [README, *sorted((README.parent / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The blocks of one page share their names, from top to bottom."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL)
    if any("onnx" in code for code in blocks):
        pytest.importorskip("onnxruntime", reason="the page serves an ONNX file")
    if any("transformers" in code for code in blocks):
        pytest.importorskip("transformers", reason="the page loads a model of transformers")
    scope: dict[str, object] = {}
    for code in blocks:
        exec(code, scope)
    if page == README:
        model, small = scope["model"], scope["small"]
        assert type(small) is type(model)
        assert isinstance(model, torch.nn.Module)
        assert isinstance(small, torch.nn.Module)
        sizes = [sum(p.numel() for p in net.parameters()) for net in (small, model)]
        assert sizes[0] <= 0.6 * sizes[1]


def test_the_readme_can_be_read_in_minutes() -> None:
    assert len(README.read_text().splitlines()) <= 140


def test_the_functions_of_the_theory_are_where_it_says() -> None:
    text = (README.parent / "docs" / "theory.md").read_text()
    rows = [line.rpartition("|")[0].rpartition("|")[2] for line in text.splitlines() if line.startswith("| ")]
    names = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert len(names) > 25
    for name in names:
        assert callable(pkgutil.resolve_name(f"hope.{name}")), name


def test_the_theory_counts_the_compressible_filters_of_resnet_50() -> None:
    net = ResNet50V1()
    filters = sum(m.num_features for m in net.modules() if isinstance(m, torch.nn.BatchNorm2d))
    able = hope.inspect(net.eval(), torch.zeros(1, 3, 64, 64)).size().neurons
    assert (
        f"{able:,} (the stem's and those inside blocks) of the {filters:,}"
        in (README.parent / "docs" / "theory.md").read_text()
    )


def shown(page: Path) -> list[str]:
    """The command lines of a page's blocks, in one line each."""
    text = page.read_text().replace("\\\n", " ")
    fences = "\n".join(
        re.findall(r"^```(?:sh|bash|shell|console|text)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    )
    lines = [*re.findall(r"^ {4}(?:\$ )?(hope .*)$", text, re.MULTILINE)]
    return lines + re.findall(r"^(?:\$ )?(hope .*)$", fences, re.MULTILINE)


def mentioned(page: Path) -> list[str]:
    """The commands in a page's sentences, which may leave arguments out."""
    return re.findall(r"(?<!`)`(hope [^`]+)`(?!`)", page.read_text())


def check(words: list[str]) -> None:
    """There is such a (sub-)command, with such options."""
    at, path = parser(), []
    for word in words:
        kinds = [action for action in at._actions if isinstance(action, argparse._SubParsersAction)]
        if kinds:
            assert word in kinds[0].choices, f"there is no `hope {' '.join([*path, word])}`"
            at = kinds[0].choices[word]
            path.append(word)
        elif word.startswith("-"):
            assert word.partition("=")[0] in at._option_string_actions, (
                f"`hope {' '.join(path)}` has no {word}"
            )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_commands_of_a_page_are_there(page: Path) -> None:
    for line in [*shown(page), *mentioned(page)]:
        first, *others = (shlex.split(part) for part in line.split(" | "))
        check(first[1:])
        for other in others:  # hope bench latency | speed
            check([*first[1:-1], *other])


@pytest.mark.parametrize(
    "line", [line for page in PAGES for line in shown(page) if " | " not in line and "…" not in line]
)
def test_a_command_line_in_a_block_parses(line: str) -> None:
    assert callable(parser().parse_args(shlex.split(line)[1:]).run)


def test_there_are_commands_to_look_at() -> None:
    assert len(shown(README)) > 3
    assert sum(len(mentioned(page)) for page in PAGES) > 10
