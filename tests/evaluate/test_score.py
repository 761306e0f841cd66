"""The user's own score: along a run, as a budget, on the command line."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import hope
from hope.cli.main import main
from hope.errors import InfeasibleBudget, InvalidExample, UnknownMethod
from hope.storage.run import read_run
from tests.report.test_page import embedded
from tests.support import randomise

EXAMPLE = torch.linspace(-1, 1, 4 * 3 * 64).reshape(4, 3, 8, 8)
FILE = """
import torch
from torch import nn
from tests.support import randomise
def build():
    torch.manual_seed(0)
    layers = (nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 4, 3))
    return randomise(nn.Sequential(*layers)).eval()
x = torch.linspace(-1, 1, 4 * 3 * 64).reshape(4, 3, 8, 8)
known = build()(x).detach()
def score(model):
    with torch.no_grad():
        return 1 - float((model(x) - known).abs().mean() / known.abs().mean())
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("score")
    (folder / "scored.py").write_text(FILE)
    return folder


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return randomise(
        nn.Sequential(nn.Conv2d(3, 12, 3), nn.BatchNorm2d(12), nn.ReLU(), nn.Conv2d(12, 4, 3))
    ).eval()


class Score:
    """Minus the distance to the original's outputs, relative to them; counts its calls."""

    def __init__(self, model: nn.Module) -> None:
        self.known, self.calls = model(EXAMPLE).detach(), 0

    def __call__(self, model: nn.Module) -> torch.Tensor:
        self.calls += 1
        assert not model.training
        with torch.no_grad():
            return 1 - (model(EXAMPLE) - self.known).abs().mean() / self.known.abs().mean()


@pytest.mark.parametrize("drop", [0.0, 0.02, 0.3])
def test_a_run_is_as_long_as_the_drop_allows(model: nn.Module, drop: float) -> None:
    encoding = hope.encode(model, EXAMPLE, method="paper", drop=drop, evaluate=Score(model))
    assert encoding.score_after(0) == 1.0
    assert encoding.score >= 1 - drop - 1e-6
    assert encoding.steps == len(encoding.trajectory) or encoding.score_after(encoding.steps + 1) < 1 - drop
    assert encoding.steps > 0 or drop == 0
    assert f"score {encoding.score:.4g}; of the original 1" in str(encoding)


def test_a_score_below_zero_may_drop_by_any_amount(model: nn.Module) -> None:
    score = Score(model)
    encoding = hope.encode(
        model, EXAMPLE, method="paper", drop=1.5, evaluate=lambda small: float(score(small)) - 2
    )
    assert encoding.score_after(0) == -1.0
    assert encoding.steps > 0


def test_a_score_may_compute_gradients(model: nn.Module) -> None:
    def steep(small: nn.Module) -> float:
        x = EXAMPLE.clone().requires_grad_()
        return -float(torch.autograd.grad(small(x).sum(), x)[0].abs().mean())

    assert hope.encode(model, EXAMPLE, method="paper", density=0.5, evaluate=steep).score < 0


def test_scores_along_a_run_are_computed_once_and_drawn(model: nn.Module, tmp_path: Path) -> None:
    score = Score(model)
    encoding = hope.encode(model, EXAMPLE, method="paper", density=0.5, evaluate=score)
    points = encoding.scores(4)
    assert [steps for steps, _ in points] == sorted({0, *(steps for steps, _ in points), encoding.steps})
    assert dict(points)[encoding.steps] == encoding.score
    calls = score.calls
    assert encoding.scores(4) == points
    assert score.calls == calls == len(points)
    pytest.importorskip("matplotlib", reason="the report extra is not installed")
    (line,) = encoding.plot().axes[2].get_lines()
    assert [*line.get_ydata()] == pytest.approx([value for _, value in points], abs=1e-5)
    assert encoding.plot().axes[2].get_ylabel() == "score"


def test_scores_that_are_none_are_refused(model: nn.Module) -> None:
    with pytest.raises(UnknownMethod, match="drop must have a score, got no evaluate="):
        hope.encode(model, EXAMPLE, drop=0.01)
    with pytest.raises(UnknownMethod, match="evaluate must be a function of a model, got float"):
        hope.encode(model, EXAMPLE, drop=0.01, evaluate=0.9)  # type: ignore[arg-type]
    with pytest.raises(InvalidExample, match="evaluate must return a finite number, got None"):
        hope.encode(model, EXAMPLE, method="paper", drop=0.1, evaluate=lambda _: None)  # type: ignore[arg-type, return-value]
    with pytest.raises(InfeasibleBudget, match="drop must be a number from 0, got -1"):
        hope.encode(model, EXAMPLE, drop=-1.0, evaluate=Score(model))
    for drop in (1.0, 1.5):
        score = Score(model)
        with pytest.raises(
            InfeasibleBudget, match=f"drop must be less than the score of the original, 1, got {drop:g}"
        ):
            hope.encode(model, EXAMPLE, method="paper", drop=drop, evaluate=score)
        assert score.calls == 1  # before the run
    with pytest.raises(UnknownMethod, match="a score must have a function"):
        _ = hope.encode(model, EXAMPLE, method="paper", density=0.5).score


def test_the_command_line_takes_a_function_of_a_file(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["encode", f"{place / 'scored.py'}:build", "--input", "1x3x8x8", "--method", "paper"]
    call += ["--drop", "0.05", "--out", str(tmp_path / "run")]
    assert main(call) == 2
    assert (
        "--drop must have a score, got no --evaluate: add --evaluate FILE.py:FUNCTION"
        in capsys.readouterr().err
    )
    assert main([*call, "--evaluate", f"{place / 'scored.py'}:scores"]) == 2
    assert "did you mean score?" in capsys.readouterr().err
    assert main([*call, "--evaluate", f"{place / 'scored.py'}:score"]) == 0
    assert "of the original 1" in capsys.readouterr().out
    assert read_run(tmp_path / "run").steps > 0


@pytest.mark.parametrize("resumed", [False, True])
def test_scores_of_a_run_are_saved_and_shown(place: Path, tmp_path: Path, resumed: bool) -> None:
    call = ["encode", f"{place / 'scored.py'}:build", "--input", "1x3x8x8", "--method", "paper"]
    call += ["--density", "0.5", "--out", str(tmp_path / "run")]
    scored = [*call, "--evaluate", f"{place / 'scored.py'}:score"]
    if resumed:
        assert main(call) == 0
        assert not read_run(tmp_path / "run").details.scores
        scored.append("--resume")
    assert main([*scored, "--report"]) == 0
    details = read_run(tmp_path / "run").details
    assert [steps for steps, _ in details.scores] == [steps for steps, _ in details.fidelities]
    assert details.scores[0] == (0, 1.0)
    assert 0 < details.scores[-1][1] < 1
    (page,) = embedded((tmp_path / "run" / "report.html").read_text())["runs"]
    assert page["score"] == [[*point] for point in details.scores]
    assert main([*call, "--resume", "--curve"]) == 0  # without the function: they are kept
    assert read_run(tmp_path / "run").details.scores == details.scores
    pytest.importorskip("matplotlib", reason="the report extra is not installed")
    assert main(["plot", str(tmp_path / "run"), "-o", str(tmp_path / "figure.svg")]) == 0
    assert ">score</text>" in (tmp_path / "figure.svg").read_text()


@pytest.mark.parametrize("scored", [False, True])
def test_a_finished_run_is_known_again_with_and_without_a_score(
    place: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], scored: bool
) -> None:
    call = ["encode", f"{place / 'scored.py'}:build", "--input", "1x3x8x8", "--method", "paper"]
    call += ["--density", "0.5", "--out", str(tmp_path / "run")]
    call += ["--evaluate", f"{place / 'scored.py'}:score"] if scored else []
    assert main(call) == 0
    assert main([*call, "--resume"]) == 0
    assert "already has this run" in capsys.readouterr().out
