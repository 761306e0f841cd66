"""`hope report`, `hope plot` and `hope encode --report` as a person uses them."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import hope
from hope.cli.main import main
from hope.report.figure import draw
from hope.storage import run as store
from tests.report.test_page import embedded, widths


def test_report_writes_one_page_of_several_runs(
    folder: Path, absorbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    scores = tmp_path / "scores.json"
    scores.write_text(json.dumps({"10": 0.5, "0": 0.75}))
    assert main(["report", str(folder), str(absorbed), "-o", str(page), "--accuracy", str(scores)]) == 0
    assert "open it in a browser" in capsys.readouterr().out
    text = page.read_text()
    assert '"accuracy":[[0,0.75],[10,0.5]]' in text
    assert text.count('"kinds":') == 2
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".part")] == []


def test_report_goes_into_the_run_by_default(folder: Path) -> None:
    assert main(["report", str(folder)]) == 0
    assert (folder / "report.html").is_file()


def test_encode_can_report_and_knows_the_command(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.py").write_text("from hope.demo import DigitsNet as build\n")
    monkeypatch.chdir(tmp_path)
    weights = str(folder.with_name("weights.safetensors"))
    arguments = ["net.py:build", "--weights", weights, "--input", "1x1x8x8", "--steps", "5", "--out", "run"]
    assert main(["encode", *arguments, "--report"]) == 0
    assert "run/report.html" in capsys.readouterr().out
    (data,) = embedded((tmp_path / "run" / "report.html").read_text())["runs"]
    command = f"{data['command']['before']} --steps 3 {data['command']['after']}"
    assert main(shlex.split(command)[1:]) == 0
    small = load_file(tmp_path / "small.safetensors")
    assert all(small[f"{name}.weight"].shape[0] == width for name, width in widths(data, 3).items() if width)
    assert main(shlex.split(data["command"]["saved"])[1:]) == 0
    assert main(["encode", *arguments, "--resume", "--report", "other.html"]) == 0
    assert (tmp_path / "other.html").is_file()


def newer(folder: Path) -> None:
    plan = json.loads((folder / store.PLAN).read_text())
    (folder / store.PLAN).write_text(json.dumps({**plan, "version": 99}))


@pytest.mark.parametrize("command", ["report", "plot"])
@pytest.mark.parametrize(
    ("harm", "words"),
    [(lambda folder: (folder / store.PLAN).unlink(), "not a saved run"), (newer, "update the package")],
)
def test_what_is_not_a_run_is_one_line_and_status_two(
    folder: Path, tmp_path: Path, command: str, harm: object, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "run"
    copy.mkdir()
    (copy / store.PLAN).write_bytes((folder / store.PLAN).read_bytes())
    assert callable(harm)
    harm(copy)
    assert main([command, str(folder), str(copy), "-o", str(tmp_path / "out.svg")]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1
    assert not (tmp_path / "out.svg").exists()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[1]", "is not an object"),
        ('{"x": 0.5}', "steps must be 0 to"),
        ('{"100000": 0.5}', "steps must be 0 to"),
        ('{"1": "high"}', "must be a number from 0 to 1"),
        ('{"1": 93.5}', "must be a number from 0 to 1"),
        ('{"1": NaN}', "must be a number from 0 to 1"),
        ('{"1": ' + "9" * 400 + "}", "must be a number from 0 to 1"),
        ('{"0": 0.5, "00": 0.5}', "those of this run, got '00'"),
        ('{"' + "1" * 5000 + '": 0.5}', "steps must be 0 to"),
    ],
)
def test_wrong_accuracies_say_what_is_wrong(
    folder: Path, tmp_path: Path, text: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scores.json").write_text(text)
    page = str(tmp_path / "page.html")
    assert main(["report", str(folder), "-o", page, "--accuracy", str(tmp_path / "scores.json")]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.count("\n") == 1


def test_missing_or_surplus_accuracies_and_places_are_refused(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = str(tmp_path / "page.html")
    assert main(["report", str(folder), "-o", page, "--accuracy", str(tmp_path / "none.json")]) == 2
    assert "cannot be read" in capsys.readouterr().err
    assert main(["report", str(folder), "-o", page, "--accuracy", "a", "--accuracy", "b"]) == 2
    assert "each of 1 runs, got 2 files" in capsys.readouterr().err
    assert main(["report", str(folder), "-o", str(tmp_path / "nowhere" / "page.html")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_plot_draws_the_same_file_twice(
    folder: Path, absorbed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib", reason="the report extra is not installed")
    (tmp_path / "scores.json").write_text('{"0": 0.9, "20": 0.8}')
    one, two = tmp_path / "one.svg", tmp_path / "two.svg"
    for target in (one, two):
        arguments = [str(folder), str(absorbed), "--accuracy", str(tmp_path / "scores.json")]
        assert main(["plot", *arguments, "-o", str(target)]) == 0
    assert one.read_bytes() == two.read_bytes()
    text = one.read_text()
    assert all(words in text for words in ("accuracy", "distortion", "absorb", "% of parameters kept"))
    assert main(["plot", str(folder), "-o", str(tmp_path / "figure.pdf")]) == 0
    assert (tmp_path / "figure.pdf").read_bytes().startswith(b"%PDF")
    assert main(["plot", str(folder), "-o", str(tmp_path / "figure.doc")]) == 2
    assert "must end with one of" in capsys.readouterr().err


def test_plot_takes_names_for_what_they_are(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the report extra is not installed")
    names = [r"a$\frac$b", "_x", "plain"]
    for name in names:
        shutil.copytree(folder, tmp_path / name)
    figure = tmp_path / "figure.svg"
    assert main(["plot", *(str(tmp_path / name) for name in names), "-o", str(figure)]) == 0
    text = figure.read_text()
    assert all(f">{name}</text>" in text for name in names)
    assert text.count("stroke-dasharray") >= 4  # two of three runs, in two panels


def test_plot_says_that_other_models_have_other_scales(folder: Path) -> None:
    pytest.importorskip("matplotlib", reason="the report extra is not installed")
    run = store.read_run(folder)
    other = replace(run, anatomy=replace(run.anatomy, model="Other"))
    same, differ = (draw(runs).axes for runs in ([run, run], [run, other]))
    assert "scales differ" not in same[1].get_ylabel()
    assert "scales differ" in differ[1].get_ylabel()
    assert [text.get_text() for text in differ[0].get_legend().get_texts()] == [
        "DigitsNet: paper (1)",
        "Other: paper (2)",
    ]


def test_extract_says_when_it_ends_elsewhere(
    stepped: Path,
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "net.py").write_text("from hope.demo import DigitsNet as build\n")
    monkeypatch.chdir(tmp_path)
    weights = str(folder.with_name("weights.safetensors"))
    command = ["extract", str(stepped), "net.py:build", "--weights", weights, "--input", "1x1x8x8"]
    stop = store.read_run(stepped).trajectory.stops[1]
    assert main([*command, "--out", "small.safetensors", "--steps", str(stop + 1)]) == 0
    assert f"{stop + 1} steps is no stop of this run" in capsys.readouterr().out
    assert main([*command, "--out", "small.safetensors", "--steps", str(stop)]) == 0
    assert "stop" not in capsys.readouterr().out


def test_plot_without_matplotlib_says_what_to_install(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["plot", str(folder), "-o", str(tmp_path / "figure.svg")]) == 2
    assert "pip install 'hope-encoding[report]'" in capsys.readouterr().err


def test_an_encoding_plots_what_hope_plot_draws(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="the report extra is not installed")
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)
    ).eval()
    encoding = hope.encode(net, torch.randn(1, 3, 8, 8), density=0.5)
    assert len(encoding.plot().axes) == 2
    encoding.fidelities(4)
    figure = encoding.plot()
    assert figure.axes[2].get_ylabel() == "predicted fidelity"
    (line,) = figure.axes[2].get_lines()
    assert [*line.get_ydata()] == pytest.approx([value for _, value in encoding.fidelities(4)], abs=1e-3)
    saved = draw([store.read_run(encoding.save(tmp_path / "run"))])
    for mine, theirs in zip(figure.axes, saved.axes, strict=True):
        pairs = zip(mine.get_lines(), theirs.get_lines(), strict=True)
        assert all((a.get_xydata() == b.get_xydata()).all() for a, b in pairs)
    assert encoding.plot(accuracy={0: 0.9, 2: 0.8}).axes[2].get_ylabel() == "accuracy"
    assert main(["plot", str(tmp_path / "run"), "-o", str(tmp_path / "figure.png")]) == 0
