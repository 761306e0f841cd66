"""The experiments that README and docs mention are there, with such options; the pages have their tables."""

from __future__ import annotations

import importlib
import importlib.util
import re
import shlex
from argparse import ArgumentParser
from pathlib import Path

import pytest

from experiments import (
    bits,
    bits_text,
    calibration,
    coverage,
    depthwise,
    dreams,
    finetune,
    gguf,
    heal,
    latency,
    milliseconds,
    normed,
    readings,
    readme,
    refit,
    rules,
    scale,
    speed,
    streams,
    stress,
    study,
    vit,
)
from experiments.compression import page as compression
from experiments.language import page as language
from experiments.transfer import page as transfer

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "Makefile", *sorted((ROOT / "docs").glob("*.md"))]
LINE = re.compile(r"python -m (experiments\.\w+)([^`\n]*)")


def lines() -> list[tuple[str, str]]:
    """(module, arguments) of every mention."""
    return sorted({(m[1], m[2].strip()) for p in PAGES for m in LINE.finditer(p.read_text())})


def parser(module: str) -> ArgumentParser:
    """Of a module, or of a package that is run."""
    spec = importlib.util.find_spec(module)
    assert spec is not None, f"there is no {module}"
    name = f"{module}.__main__" if spec.submodule_search_locations else module
    found = importlib.import_module(name).parser()
    assert isinstance(found, ArgumentParser)
    return found


@pytest.mark.parametrize(("module", "arguments"), lines())
def test_a_command_line_on_a_page_parses(module: str, arguments: str) -> None:
    top = parser(module)
    assert top.prog == f"python -m {module}"
    given = shlex.split(arguments)
    required = [action for action in top._actions if action.required]
    if given or not required:  # a sentence may leave arguments out
        known = [word for word in given if word.startswith("-")]
        assert all(word in top._option_string_actions for word in known)
        if not required or "--out" in given:
            top.parse_args(given)


def test_every_experiment_is_on_a_page_and_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    mentioned = {module for module, _ in lines()}
    names = (
        "bits",
        "bits_text",
        "calibration",
        "compression",
        "coverage",
        "depthwise",
        "draw",
        "dreams",
        "fetch",
        "finetune",
        "gguf",
        "heal",
        "language",
        "latency",
        "milliseconds",
        "normed",
        "readings",
        "refit",
        "rules",
        "scale",
        "screenshots",
        "speed",
        "streams",
        "stress",
        "study",
        "train",
        "vit",
    )
    assert mentioned == {f"experiments.{name}" for name in (*names, "transfer")}
    for module in mentioned:
        with pytest.raises(SystemExit) as stopped:
            parser(module).parse_args(["--help"])
        assert stopped.value.code == 0
        assert module in capsys.readouterr().out


def test_the_pages_have_the_tables_of_the_committed_results(tmp_path: Path) -> None:
    pytest.importorskip("scipy", reason="the table about the judge needs scipy")
    copies = {page: tmp_path / page.name for page in readme.PAGES}
    for page, copy in copies.items():
        copy.write_text(page.read_text())
    for name, table in (
        *compression.TABLES.items(),
        ("bits", bits.table),
        ("bits-text", bits_text.table),
        ("dreams", dreams.table),
        ("depthwise", depthwise.table),
        ("readings", readings.table),
        ("refit", refit.table),
        ("streams", streams.table),
        ("stress", stress.table),
        ("milliseconds", milliseconds.table),
        ("normed", normed.table),
        ("vit", vit.table),
        ("gguf", gguf.table),
        ("gguf-uneven", gguf.uneven),
        ("scale", scale.table),
        ("rules", rules.table),
        ("study", study.table),
        ("calibration", calibration.table),
        ("finetune", finetune.table),
        ("heal", heal.table),
        ("language", language.table),
        ("latency", latency.table),
        ("latency-budgets", latency.in_time),
        ("transfer", transfer.table),
        ("transfer-ablation", transfer.ablation),
        ("transfer-small", transfer.small),
        ("transfer-vit", transfer.vit),
        ("speed", speed.table),
        ("coverage", coverage.committed),
        ("reach", coverage.sentence),
    ):
        readme.put(name, table(), copies.values())
    for page, copy in copies.items():
        assert copy.read_text() == page.read_text(), (
            f"{page.name} is out of date: run `make figures` and `make coverage`"
        )


def test_a_marker_that_no_page_has_is_named(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- other:start -->\n<!-- other:end -->\n")
    with pytest.raises(SystemExit, match=r"none of page.md has <!-- mine:start -->"):
        readme.put("mine", "text", [page])


def test_methods_are_compared_at_one_size() -> None:
    points = {name: {"parameters": name, "accuracy": value} for name, value in ((0.4, 0.2), (0.6, 0.8))}
    assert compression.at_size(points, 0.605, "accuracy") == (0.8, [0.6])  # measured there, or nearly
    found = compression.at_size(points, 0.45, "accuracy")
    assert found is not None
    assert found == (pytest.approx(0.35), [0.4, 0.6])
    assert compression.at_size(points, 0.7, "accuracy") is None
    assert compression.at_size(points, 0.3, "accuracy") is None
    assert compression.at_size(points, 0.5, "fine-tuned") is None
