"""Bad calls: one line that helps, exit status 2, and no traceback."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import hope
from hope.cli.main import main
from hope.cli.models import make

MODEL = """
import torch
from torch import nn

def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2)).eval()

def plain():
    return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 2)).eval()

def nan():
    model = build()
    model[0].weight.data[0, 0] = float("nan")
    return model

def negative():
    model = build()
    model[1].running_var[0] = -1
    return model

def number():
    return 3

def broken():
    raise RuntimeError("no\\nway")

def loud(x):
    return build()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, its weights, a run of it, and files that are something else."""
    place = tmp_path_factory.mktemp("calls")
    (place / "model.py").write_text(MODEL)
    (place / "syntax.py").write_text("def build(:\n")
    (place / "text.pt").write_text("hello\n")
    (place / "accuracy.json").write_text("[1]")
    (place / "empty").mkdir()
    model = make(f"{place / 'model.py'}:build")
    save_file(model.state_dict(), place / "w.safetensors")
    save_file({"0.weight": torch.zeros(2, 2)}, place / "other.safetensors")
    np.save(place / "nan.npy", np.full((4, 3), np.nan, dtype=np.float32))
    np.save(place / "wide.npy", np.zeros((4, 5), dtype=np.float32))
    np.save(place / "text.npy", np.array(["a", "b"]))
    np.savez(place / "x.npz", x=np.zeros(3))
    hope.encode(model, torch.zeros(2, 3), density=0.5).save(place / "run")
    hope.encode(model, torch.zeros(2, 3), density=0.5).save(place / "cut")
    plan = place / "cut" / "trajectory.json"
    plan.write_bytes(plan.read_bytes()[:-20])
    (place / "old").mkdir()
    (place / "old" / "trajectory.json").write_text(json.dumps({"format": "other"}))
    return place


INSPECT = "inspect {m}:build --input 2x3"
ENCODE = "encode {m}:build --input 2x3"
EXTRACT = "extract {f}/run {m}:build --input 2x3"
CALLS = [
    # the command itself
    ("", "COMMAND"),
    ("compress", "invalid choice: 'compress'"),
    ("--nothing", "COMMAND"),
    ("inspect", "the following arguments are required: MODEL"),
    ("inspect {m}:build --nothing", "there is no option --nothing"),
    ("encode {m}:build --density 0.5", "--out"),
    ("encode {m}:build --out {f}/new", "--density"),
    ("bench", "KIND"),
    ("bench accuracy", "invalid choice: 'accuracy'"),
    # models
    ("inspect resnet18", "MODEL must be torchvision:NAME"),
    ("inspect {m}", "MODEL must be"),
    ("inspect {f}/none.py:build", "there is no file"),
    ("inspect {m}:none", "there is no none in"),
    ("inspect {m}:number", "must give a torch.nn.Module, got int"),
    ("inspect {m}:broken", "cannot be built: no"),
    ("inspect {m}:loud", "cannot be built"),
    ("inspect {f}/syntax.py:build", "cannot be built"),
    ("inspect {f}/text.pt:build", "must be a Python file"),
    ("inspect hf:{f}/empty", "hf:"),
    ("inspect {m}:build --pretrained", "--pretrained must go with torchvision or timm"),
    ("inspect {m}:build --pretrained --weights x", "cannot be combined"),
    # inputs
    ("inspect {m}:build --input 3,4", "write it like"),
    ("inspect {m}:build --input 2x0", "at least 1, got 2x0"),
    ("inspect {m}:build --input x", "write it like"),
    ("inspect {m}:build --input 2x5", "cannot run on this example"),
    ("inspect {m}:build --input 9999999999x9999999999", "cannot be made"),
    # weights
    (INSPECT + " --weights {f}/none.pt", "there is no checkpoint"),
    (INSPECT + " --weights {f}", "is a folder"),
    (INSPECT + " --weights {f}/text.pt", "it is a text file"),
    (INSPECT + " --weights {f}/x.npz", "NumPy arrays"),
    (INSPECT + " --weights {f}/other.safetensors", "missing (0.bias, 1.weight, 1.bias, …)"),
    # budgets
    (
        ENCODE + " --out {f}/new --params abc",
        "params must be a fraction between 0 and 1 or a whole count, got 'abc': give",
    ),
    (ENCODE + " --out {f}/new --params inf", "a whole count, got inf: give params=0.6"),
    (ENCODE + " --out {f}/new --density nan", "a whole count, got nan: give density=0.6"),
    (ENCODE + " --out {f}/new --macs=-0.5", "a whole count, got -0.5: give macs=0.6"),
    (ENCODE + " --out {f}/new --params 600000", "params must be at most "),
    (ENCODE + " --out {f}/new --params 1.5", "a whole count, got 1.5: give"),
    (ENCODE + " --out {f}/new --density 0.01", "the smallest reachable is density=0.1250"),
    (ENCODE + " --out {f}/new --steps 1.5", "steps must be a whole number from 0, got 1.5: give steps=100"),
    (ENCODE + " --out {f}/new --steps 99", "steps must be at most 7, got 99"),
    (
        ENCODE + " --out {f}/new --fidelity -1",
        "between 0 and 1, which is the original, got -1: give",
    ),
    (ENCODE + " --out {f}/new --fidelity 2", "got 2: give fidelity=0.9"),
    (ENCODE + " --out {f}/new --parms 0.5", "there is no option --parms: did you mean --params?"),
    ("inspect {m}:buidl --input 2x3", "did you mean build?"),
    ("inspect torchvision:resnt50 --input 1x3x8x8", "did you mean torchvision:resnet50?"),
    (ENCODE + " --out {f}/new --params 0.5 --density 0.5", "not allowed with argument"),
    ("encode {m}:plain --input 2x3 --out {f}/new --density 0.5", "--calibration inputs.npy"),
    ("encode {m}:plain --input 2x3 --out {f}/new --steps 2", "give a few inputs, calibration=batches"),
    ("encode {m}:plain --input 2x3 --out {f}/new --fidelity 0.5", "need calibration"),
    (
        "encode {m}:plain --input 2x3 --out {f}/new --steps 2 --method paper",
        "give a few inputs, calibration=batches",
    ),
    # what a method does not have, and what nothing fits
    (ENCODE + " --out {f}/new --density 0.5 --method magic", "invalid choice: 'magic'"),
    (ENCODE + " --out {f}/new --density 0.5 --merge sum", "use --method paper"),
    (
        ENCODE + " --out {f}/new --density 0.5 --method l1-in --calibration dream",
        "use --method absorb or paper",
    ),
    (
        ENCODE + " --out {f}/new --density 0.5 --method l1-in --kernel exact",
        "--kernel must be left out with --method l1-in",
    ),
    (
        ENCODE + " --out {f}/new --density 0.5 --method absorb --release live",
        "--release must be left out with --method absorb",
    ),
    (ENCODE + " --out {f}/new --density 0.5 --exclude head*", "which fits none"),
    (ENCODE + " --out {f}/new --density 0.5 --multiple-of 0", "must be at least 1, got 0"),
    (ENCODE + " --out {f}/new --density 0.5 --multiple-of x", "invalid int value"),
    (ENCODE + " --out {f}/new --density 0.5 --multiple-of 64", "multiple_of, from 1 to 7"),
    # numbers
    ("encode {m}:nan --input 2x3 --out {f}/new --density 0.5", "0.weight must be finite, got NaN"),
    ("encode {m}:nan --input 2x3 --out {f}/new --density 0.5 --method paper", "0.weight must be finite"),
    ("encode {m}:negative --input 2x3 --out {f}/new --density 0.5", "1.running_var must not be negative"),
    (ENCODE + " --out {f}/new --density 0.5 --calibration {f}/nan.npy", "batch 0 must have finite entries"),
    (
        ENCODE + " --out {f}/new --density 0.5 --calibration {f}/wide.npy",
        "that the model runs on, got batch 0",
    ),
    (
        ENCODE + " --out {f}/new --density 0.5 --method paper --calibration {f}/nan.npy",
        "batch 0 must have finite entries",
    ),
    (ENCODE + " --out {f}/new --density 0.5 --method paper --calibration {f}/wide.npy", "got batch 0"),
    (ENCODE + " --out {f}/new --density 0.5 --calibration {f}/text.npy", "cannot be read"),
    (ENCODE + " --out {f}/new --density 0.5 --calibration {f}/none.npy", "cannot be read"),
    (ENCODE + " --out {f}/new --density 0.5 --calibration {f}/x.npz", "cannot be read"),
    # places
    (ENCODE + " --out {m} --density 0.5", "it is a file: give a folder"),
    (ENCODE + " --out {m}/below/it --density 0.5", "model.py is a file"),
    (ENCODE + " --out /proc/nowhere/run --density 0.5", "cannot be"),
    (ENCODE + " --out {f}/run --density 0.5", "must not contain a run, got one: give --resume"),
    (ENCODE + " --density 0.5 --out=", "argument --out: a path must be given, got ''"),
    (EXTRACT + " --out {f}/none/x.safetensors", "there is no folder"),
    (EXTRACT + " --out {f}/x.safetensors --density 0.01", "comes down to density="),
    ("extract {f}/empty {m}:build --input 2x3 --out {f}/x.safetensors", "is not a saved run"),
    ("report {f}/none", "none"),
    ("report {f}/cut -o {f}/page.html", "cut"),
    ("report {f}/old -o {f}/page.html", "old"),
    ("report {f}/run --accuracy {f}/accuracy.json -o {f}/page.html", "accuracy.json"),
    ("report {f}/run --accuracy {f}/none.json -o {f}/page.html", "none.json"),
    ("plot {f}/run -o {f}/figure.docx", "docx"),
    ("plot {f}/run", "-o"),
    ("bench compression {m}:build --input 2x3 --data {f}/none", "inputs must be images"),
    ("bench compression {m}:build --data {f} --budgets params", "params"),
    ("bench latency {m}:build --batches 0", "0"),
]


@pytest.mark.parametrize(("call", "words"), CALLS, ids=[call for call, _ in CALLS])
def test_a_bad_call_is_one_line_that_helps(
    call: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main([word.format(m=folder / "model.py", f=folder) for word in call.split()])
    err = capsys.readouterr().err
    assert status == 2, err
    assert err.startswith("hope: ")
    assert err.count("\n") == 1
    assert words in err
    assert "Traceback" not in err
    assert not (folder / "new").exists()


def test_a_traceback_is_there_for_those_who_ask(folder: Path) -> None:
    with pytest.raises(hope.HopeError):
        main(["--debug", "inspect", f"{folder / 'model.py'}:number"])
