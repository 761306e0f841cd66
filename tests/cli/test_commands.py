"""The command line as a person uses it: output, exit status, one-line errors."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hope._util import disk_cache, progress
from hope.bench.images import opened
from hope.cli.main import main
from hope.cli.models import make
from hope.demo import DigitsNet as Network
from hope.errors import MissingData
from hope.methods import Absorb
from hope.schedule.resources import Bytes
from hope.schedule.resume import RunCheckpoint
from hope.storage.run import fingerprint, read_run
from tests.report.test_page import embedded

ROOT = Path(__file__).resolve().parents[2]
MODEL = """
from torch import nn

def build():
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))

def number():
    return 3
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_inspect_prints_the_table_of_a_model_in_a_file(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", f"{file}:build", "--input", "1x3x8x8"]) == 0
    out = capsys.readouterr().out
    assert "Sequential: 8 compressible neurons in 1 layer" in out
    assert "fan-out" in out


def test_a_file_may_import_its_neighbours_and_hold_a_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "neighbour_of_model.py").write_text(MODEL)
    (tmp_path / "whole.py").write_text(
        "from neighbour_of_model import build\nmodel = build()\n"
        "def late():\n    import neighbour_of_model\n    return neighbour_of_model.build()\n"
    )
    for name in ("build", "model", "late"):
        assert main(["inspect", f"{tmp_path / 'whole.py'}:{name}", "--input", "1x3x8x8"]) == 0
        assert "8 compressible neurons" in capsys.readouterr().out


@pytest.mark.parametrize("quiet", [0.0, 1e6])
def test_a_long_command_writes_a_line_per_phase_where_there_is_no_terminal(
    quiet: float,
    file: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "QUIET", quiet)
    call = ["encode", f"{file}:build", "--input", "1x3x8x8", "--density", "0.5"]
    assert main([*call, "--out", str(tmp_path / "run")]) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("hope: [")]
    phases = [line.partition("] ")[2] for line in lines]
    if quiet:
        assert not phases
    else:
        names = [phase.rpartition(": ")[2].partition(",")[0] for phase in phases]
        order = ("LOAD", "READ", "MEASURE", "RANK", "REFIT", "FIDELITY")
        assert names == [getattr(progress, name) for name in order]


def test_the_curve_is_drawn_on_request(file: Path, tmp_path: Path) -> None:
    call = ["encode", f"{file}:build", "--input", "1x3x8x8", "--density", "0.5", "--method", "l1-in"]
    points = {}
    for more in ((), ("--curve",), ("--report",)):
        out = tmp_path / f"run{''.join(more)}"
        assert main([*call, "--out", str(out), *more]) == 0
        points[more] = read_run(out).details.fidelities
    assert len(points[()]) == 1 < len(points["--curve",])
    assert points["--curve",] == points["--report",]
    assert points[()][0] in points["--curve",]


@pytest.mark.parametrize("method", ["l1-in", "absorb"])
def test_a_finished_run_gets_the_same_curve_as_one_that_was_made_with_it(
    method: str, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "weights.py").write_text(
        MODEL.replace("def build", "import torch\ntorch.manual_seed(0)\ndef build")
    )
    call = ["encode", f"{tmp_path / 'weights.py'}:build", "--input", "1x3x8x8", "--density", "0.5"]
    call += ["--method", method]
    runs = {}
    for name, more in (("late", []), ("late", ["--resume", "--report"]), ("made", ["--curve"])):
        assert main([*call, "--out", str(tmp_path / name), *more]) == 0
        runs[name] = read_run(tmp_path / name)
    assert [*runs["late"].details.fidelities] == [*runs["made"].details.fidelities]
    assert runs["late"].record.weights == runs["made"].record.weights
    (page,) = embedded((tmp_path / "late" / "report.html").read_text())["runs"]
    assert page["fidelity"] == [[*point] for point in runs["made"].details.fidelities]


def test_the_folder_of_a_run_has_the_run_and_the_fidelity_that_was_printed(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_cache, "WORTH", 0.0)  # as if everything took long
    out = tmp_path / "run"
    call = ["encode", f"{file}:build", "--input", "1x3x8x8", "--density", "0.5", "--out", str(out)]
    assert main(call) == 0
    run, told = read_run(out), capsys.readouterr().out
    files = sorted(path.name for path in out.iterdir())
    assert files == sorted(["trajectory.json", *(one.file for one in run.files)])
    ((steps, value),) = run.details.fidelities
    assert steps == run.steps
    assert f"fidelity {value:.3f} (predicted" in told
    assert f"saved in {out} ({Bytes().format(sum(path.stat().st_size for path in out.iterdir()))}" in told


def test_inspect_knows_torchvision_and_timm_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchvision", reason="the torchvision extra is not installed")
    assert main(["inspect", "torchvision:squeezenet1_1", "--input", "1x3x64x64"]) == 0
    assert "SqueezeNet" in capsys.readouterr().out


def test_inspect_tells_which_streams_can_go(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torchvision", reason="torchvision is not installed")
    for more, words, floor in (([], "with streams=True", "94.0%"), (["--streams"], "yes", "100.0%")):
        assert main(["inspect", "torchvision:resnet18", *more]) == 0
        out = capsys.readouterr().out
        assert re.search(rf"layer2.0.conv2 +128 +3 +3 +{words}", out)
        assert f"of which {floor} are prunable" in out


def test_weights_are_loaded_and_checked(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_file(Network().state_dict(), tmp_path / "other.safetensors")
    arguments = ["inspect", f"{file}:build", "--input", "1x3x8x8", "--weights"]
    assert main([*arguments, str(tmp_path / "other.safetensors")]) == 2
    assert "does not fit Sequential" in capsys.readouterr().err
    assert main([*arguments, str(tmp_path / "none.safetensors")]) == 2
    assert "no checkpoint" in capsys.readouterr().err


def test_checkpoint_with_code_in_it_is_refused(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(Network(), tmp_path / "whole.pt")
    assert main(["inspect", f"{file}:build", "--weights", str(tmp_path / "whole.pt")]) == 2
    assert "does not fit" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("resnet18", "MODEL must be torchvision:NAME"),
        ("torchvision:nothing", "cannot be built"),
        ("missing.py:build", "there is no file"),
        ("{file}:number", "number must give a torch.nn.Module, got int"),
        ("{file}:nothing", "there is no nothing in"),
    ],
)
def test_a_wrong_model_is_one_line_and_status_two(
    file: Path, model: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", model.format(file=file)]) == 2
    err = capsys.readouterr().err
    assert words in err
    assert err.startswith("hope: ")
    assert err.count("\n") == 1


def test_a_wrong_input_shape_says_what_to_do(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inspect", f"{file}:build", "--input", "1,3,8"]) == 2
    assert "write it like 1x3x224x224" in capsys.readouterr().err
    assert main(["inspect", f"{file}:build", "--input", "1x5x8x8"]) == 2
    assert "cannot run on this example (1x5x8x8)" in capsys.readouterr().err


def test_demo_compares_methods_and_gives_any_moment_back(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sklearn", reason="the demo extra is not installed")
    assert main(["demo", "--epochs", "2", "--out", str(tmp_path / "run")]) == 0
    out = capsys.readouterr().out
    assert all(method in out for method in ("paper", "merge=sum", "l1-in", "l1-joint", "bn-scale", "random"))
    assert "the same run at 70% of the neurons" in out
    assert (tmp_path / "run" / "trajectory.json").is_file()


@pytest.fixture
def checkpoint(tmp_path: Path, file: Path) -> Path:
    assert main(["inspect", f"{file}:build", "--input", "1x3x8x8"]) == 0
    path = tmp_path / "weights.safetensors"
    save_file(make(f"{file}:build").state_dict(), path)
    return path


def test_encode_saves_a_run_that_extract_gives_back(
    file: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = [f"{file}:build", "--input", "1x3x8x8", "--weights", str(checkpoint)]
    run, small = str(tmp_path / "run"), tmp_path / "small.safetensors"
    assert main(["encode", *model, "--density", "0.5", "--out", run]) == 0
    assert "Sequential by absorb: 4 steps" in capsys.readouterr().out
    assert main(["encode", *model, "--density", "0.5", "--out", run, "--resume"]) == 0
    assert "already has this run" in capsys.readouterr().out
    assert main(["extract", run, *model, "--out", str(small)]) == 0
    assert load_file(small)["0.weight"].shape[0] == 4
    assert main(["extract", run, *model, "--density", "0.75", "--out", str(small)]) == 0
    assert load_file(small)["0.weight"].shape[0] == 6


def test_a_run_on_random_weights_can_be_had_at_other_budgets(file: Path, tmp_path: Path) -> None:
    model, run = [f"{file}:build", "--input", "1x3x8x8"], str(tmp_path / "run")
    state = torch.get_rng_state()
    assert main(["encode", *model, "--density", "0.5", "--out", run]) == 0
    small = tmp_path / "small.safetensors"
    assert main(["extract", run, "--trust-source", "--density", "0.75", "--out", str(small)]) == 0
    assert load_file(small)["0.weight"].shape[0] == 6
    assert torch.equal(torch.get_rng_state(), state)  # of whoever calls it


def test_extract_writes_onnx_or_says_what_it_needs(
    file: Path,
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("onnxscript", reason="the onnx extra is not installed")
    model = [f"{file}:build", "--input", "1x3x8x8", "--weights", str(checkpoint)]
    run, onnx = str(tmp_path / "run"), tmp_path / "small.onnx"
    assert main(["encode", *model, "--density", "0.5", "--out", run]) == 0
    extract = ["extract", run, *model, "--out", str(tmp_path / "small.safetensors"), "--onnx", str(onnx)]
    assert main(extract) == 0
    assert onnx.is_file()
    onnx.unlink()

    def without(*args: object, **kwargs: object) -> None:
        raise ImportError("No module named 'onnxscript'", name="onnxscript")

    monkeypatch.setattr(torch.onnx, "export", without)
    assert main(extract) == 2
    assert "(onnxscript): pip install 'hope-encoding[onnx]'" in capsys.readouterr().err
    assert not onnx.exists()


def test_budgets_that_cannot_be_met_are_one_line(
    file: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = [f"{file}:build", "--input", "1x3x8x8", "--weights", str(checkpoint)]
    assert main(["encode", *model, "--density", "0.01", "--out", str(tmp_path / "run")]) == 2
    err = capsys.readouterr().err
    assert "cannot be met: the smallest reachable is density=0.1250" in err
    assert err.count("\n") == 1
    assert not (tmp_path / "run").exists()
    assert main(["extract", str(tmp_path), *model, "--out", str(tmp_path / "s.safetensors")]) == 2
    assert "is not a saved run" in capsys.readouterr().err


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    out = capsys.readouterr().out
    assert "inspect" in out
    assert "demo" in out


def test_a_run_with_another_multiple_is_made_anew(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = file.parent / "w.safetensors"
    save_file(make(f"{file}:build").state_dict(), weights)
    given = ["encode", f"{file}:build", "--weights", str(weights), "--input", "1x3x8x8", "--density", "0.5"]
    given += ["--out", str(file.parent / "run"), "--resume", "--force"]
    assert main([*given, "--multiple-of", "2"]) == 0
    for multiple, there in (("2", True), ("4", False), ("4", True), ("1", False)):
        capsys.readouterr()
        assert main([*given, "--multiple-of", multiple]) == 0
        assert ("already has this run" in capsys.readouterr().out) == there


def test_a_run_with_other_options_is_made_anew_and_they_are_named(
    file: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        np.save(tmp_path / f"{name}.npy", rng.normal(size=(4, 3, 8, 8)).astype(np.float32))
    run = tmp_path / "run"
    given = ["encode", f"{file}:build", "--weights", str(checkpoint), "--input", "1x3x8x8"]
    given += ["--density", "0.5", "--out", str(run), "--resume", "--force"]
    paper, absorb = ["--method", "paper"], ["--method", "absorb"]
    for more, differs in (
        (paper, None),
        ([*paper, "--streams"], "(streams was False, not True)"),
        ([*paper, "--calibration", str(tmp_path / "a.npy")], "calibration was none, not "),
        ([*paper, "--merge", "sum"], "merge was pair, not sum"),
        ([*paper, "--merge", "none"], "merge was sum, not none"),
        ([*paper, "--kernel", "exact"], "merge was none, not pair; kernel was zero-bias, not exact"),
        ([*paper, "--no-evict"], "evict was True, not False; kernel was exact, not zero-bias"),
        ([*paper, "--exclude", "3*"], "evict was False, not True; exclude was none, not 3*"),
        (
            absorb,
            "exclude was 3*, not none; method was paper, not absorb; calibration was none, not patterns)",
        ),
        ([*absorb, "--calibration", str(tmp_path / "a.npy")], "calibration was patterns, not "),
        ([*absorb, "--calibration", str(tmp_path / "b.npy")], "calibration was "),
        ([*absorb, "--calibration", "dream"], "not dream"),
        ([*absorb, "--calibration", "dream", "--multiple-of", "2"], "multiple_of was 1, not 2"),
    ):
        capsys.readouterr()
        assert main([*given, *more]) == 0
        out = capsys.readouterr().out
        assert "already has this run" not in out
        assert (f"{run} has another run (" in out) == (differs is not None)
        assert differs is None or differs in out
        assert main([*given, *("hope" if word == "paper" else word for word in more)]) == 0
        assert "already has this run" in capsys.readouterr().out
    save_file({name: tensor + 1 for name, tensor in load_file(checkpoint).items()}, checkpoint)
    assert main([*given, *more]) == 0
    assert "(it has other weights): it is made again" in capsys.readouterr().out


def test_resume_does_not_replace_a_run_of_other_options(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan, partial = tmp_path / "run" / "trajectory.json", tmp_path / "run" / "partial.json"
    given = ["encode", f"{file}:build", "--input", "1x3x8x8", "--out", str(plan.parent), "--resume"]
    assert main([*given, "--density", "0.5"]) == 0
    before = plan.read_bytes()
    for more, differs in (
        (["--density", "0.75"], "another budget"),
        (["--density", "0.5", "--method", "paper"], "method was absorb, not paper"),
    ):
        assert main([*given, *more]) == 2
        err = capsys.readouterr().err
        refused = f"{plan.parent} must have a run of the same options, got a run of other options"
        assert f"{refused} ({differs}" in err
        assert "give the same to resume it, --force too to replace it" in err
    plan.write_bytes(before[:-20])
    assert main([*given, "--density", "0.5"]) == 2  # what cannot be read may be another's
    assert plan.read_bytes() == before[:-20]
    assert main([*given, "--density", "0.75", "--force"]) == 0
    assert plan.read_bytes() != before
    assert not partial.exists()


def test_resume_does_not_replace_an_interrupted_run_of_other_options(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    partial = tmp_path / "run" / "partial.json"
    model = make(f"{file}:build").eval()
    method = Absorb(sensitivity=False).to_dict()
    reported = {"original": fingerprint(model), "method": method, "evict": True, "exclude": []}
    RunCheckpoint(partial, reported).write([], now=True)
    before = partial.read_bytes()
    given = ["encode", f"{file}:build", "--input", "1x3x8x8", "--out", str(partial.parent), "--resume"]
    for more, differs in (
        (["--method", "paper"], "method was absorb, not paper"),
        (["--no-evict"], "(evict was True, not False)"),
        (["--streams"], "(streams was False, not True)"),
    ):
        assert main([*given, "--density", "0.5", *more]) == 2
        err = capsys.readouterr().err
        assert f"{partial.parent} must have a run of the same options, got an interrupted run of" in err
        assert differs in err
        assert partial.read_bytes() == before
    assert main([*given, "--macs", "0.5"]) == 2
    assert "ranked was params, not macs" in capsys.readouterr().err
    weights = tmp_path / "w.safetensors"
    save_file({name: tensor + 1 for name, tensor in model.state_dict().items()}, weights)
    assert main([*given, "--density", "0.5", "--weights", str(weights)]) == 2
    assert "(it has other weights)" in capsys.readouterr().err
    assert main([*given, "--density", "0.5", "--no-evict", "--force"]) == 0


def test_a_multiple_that_no_width_can_have_is_named(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["encode", f"{file}:build", "--input", "1x3x8x8", "--out", str(tmp_path / "run")]
    for budget, words in (
        (
            ["--density", "0.5"],
            "density=0.5 cannot be met with multiple_of=64, the run comes down to density=1",
        ),
        (["--steps", "3"], "steps=3 cannot be met with multiple_of=64, the run has 0 steps"),
    ):
        assert main([*given, *budget, "--multiple-of", "64"]) == 2
        err = capsys.readouterr().err
        assert words in err
        assert "take a smaller multiple_of" in err
        assert "encode again" not in err


def test_a_package_that_is_missing_is_told_by_what_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bad = tmp_path / "bad.py"
    bad.write_text("import no_such_package\n")
    extras = re.findall(r"^(\w+) = \[", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    cases = [(f"{bad}:build", None), ("torchvision:x", "torchvision"), ("timm:x", "timm")]
    for spec, extra in [*cases, ("hf:x", "transformers")]:
        for package in ("torchvision.models", "timm", "transformers"):
            monkeypatch.setitem(sys.modules, package, None)
        assert main(["inspect", spec]) == 2
        err = capsys.readouterr().err
        if extra is None:
            assert "(No module named 'no_such_package'): install what the file imports" in err
        else:
            assert f"pip install 'hope-encoding[{extra}]'" in err
            assert extra in extras


def test_image_files_without_pillow_are_told_by_what_brings_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(MissingData, match=r"pip install 'hope-encoding\[images\]'"):
        opened(tmp_path / "a.png", 3)
    assert 'images = ["pillow' in (ROOT / "pyproject.toml").read_text()


def test_a_missing_folder_is_reported_before_anything_is_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for given in (["--out", "nowhere/x"], ["--out", str(tmp_path / "x"), "--onnx", "nowhere/y"]):
        assert main(["extract", str(tmp_path), "torchvision:resnet18", *given]) == 2
        assert "cannot be written: there is no folder nowhere" in capsys.readouterr().err


def test_a_folder_is_not_written_over(
    file: Path, checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = [f"{file}:build", "--input", "1x3x8x8", "--weights", str(checkpoint)]
    run = str(tmp_path / "run")
    assert main(["encode", *model, "--density", "0.5", "--out", run]) == 0
    assert main(["encode", *model, "--density", "0.5", "--out", str(file)]) == 2
    assert "it is a file: give a folder" in capsys.readouterr().err
    assert main(["extract", run, *model, "--out", str(tmp_path)]) == 2
    assert f"{tmp_path} cannot be written" in capsys.readouterr().err
    assert main(["bench", "latency", *model, "--out", str(tmp_path)]) == 2
    assert "it is a folder" in capsys.readouterr().err
    assert main(["bench", "speed", *model, "--out", str(tmp_path)]) == 2
    assert "it is a folder" in capsys.readouterr().err
