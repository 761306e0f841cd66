"""What is written for other programs to run gives the model's answers for any batch, or is not written."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import hope
from hope.demo import DigitsNet
from hope.rewrite import export, programs
from tests.support import assert_same, randomise, run

EXAMPLE = torch.zeros(1, 1, 8, 8)


class Named(nn.Module):
    """Inputs by name, one of them no tensor; answers by name."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, pixels: Tensor, mask: Tensor | None = None, *, scale: float = 1.0) -> dict[str, Tensor]:
        assert mask is not None
        return {"logits": self.layer(pixels) * mask * scale, "energy": pixels.square().sum(1)}


class Pairs(nn.Module):
    """Takes two at a time, whatever it is given."""

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(2, -1) * 2


@pytest.fixture(scope="module")
def encoding() -> hope.Encoding:
    torch.manual_seed(0)
    return hope.encode(randomise(DigitsNet()).eval(), EXAMPLE, params=0.6)


@pytest.fixture
def runtime() -> Any:
    pytest.importorskip("onnxscript", reason="the onnx extra is not installed")
    return pytest.importorskip("onnxruntime", reason="the onnx extra is not installed")


def served(runtime: Any, path: Path, **inputs: Tensor) -> list[Tensor]:
    """What a server answers that has the file and nothing else."""
    session = runtime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return [
        torch.from_numpy(one) for one in session.run(None, {name: x.numpy() for name, x in inputs.items()})
    ]


def test_onnxruntime_serves_a_compressed_network_from_one_file(
    encoding: hope.Encoding, runtime: Any, tmp_path: Path
) -> None:
    written = encoding.export_onnx(tmp_path / "small.onnx")
    assert (written.batch, written.checked, written.note) == (None, True, "")
    assert str(written) == f"{tmp_path}/small.onnx: it takes batches of any size; its answers were checked"
    assert [file.name for file in tmp_path.iterdir()] == ["small.onnx"]
    (tmp_path / "small.onnx").rename(tmp_path / "moved.onnx")
    for size in (1, 2, 7):
        x = torch.randn(size, 1, 8, 8)
        assert_same(served(runtime, tmp_path / "moved.onnx", x=x), run(encoding.model, x), 1e-4)


def test_inputs_and_answers_have_the_names_that_the_model_gives(runtime: Any, tmp_path: Path) -> None:
    model = Named().eval()
    example = {"mask": torch.ones(1, 3), "scale": 2.0, "pixels": torch.zeros(1, 4)}
    assert hope.export_onnx(model, example, tmp_path / "named.onnx").batch is None
    session = runtime.InferenceSession(tmp_path / "named.onnx", providers=["CPUExecutionProvider"])
    assert [(one.name, one.shape) for one in session.get_inputs()] == [
        ("pixels", ["batch", 4]),
        ("mask", ["batch", 3]),
    ]
    assert [one.name for one in session.get_outputs()] == ["logits", "energy"]
    pixels, mask = torch.randn(5, 4), torch.rand(5, 3)
    want = list(model(pixels, mask, scale=2.0).values())
    assert_same(served(runtime, tmp_path / "named.onnx", pixels=pixels, mask=mask), want, 1e-5)


def test_weights_that_do_not_fit_lie_beside_the_file(
    encoding: hope.Encoding, runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "LARGEST", 1000)
    encoding.export_onnx(tmp_path / "small.onnx")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["small.onnx", "small.onnx.data"]
    x = torch.randn(3, 1, 8, 8)
    assert_same(served(runtime, tmp_path / "small.onnx", x=x), run(encoding.model, x), 1e-4)


def test_a_batch_that_cannot_vary_is_the_examples_with_a_note(runtime: Any, tmp_path: Path) -> None:
    for write, file in ((hope.export_onnx, "pairs.onnx"), (hope.export_program, "pairs.pt2")):
        with pytest.warns(UserWarning, match=r"it takes batches of 2 only, since the model's code fixes"):
            written = write(Pairs(), torch.zeros(2, 4), tmp_path / file)
        assert (written.batch, written.checked) == (2, True)
        assert "batches of 2 only" in str(written)
    x = torch.randn(2, 4)
    assert_same(served(runtime, tmp_path / "pairs.onnx", x=x), [2 * x], 1e-6)


def test_nothing_is_left_of_a_file_that_onnxruntime_cannot_run(runtime: Any, tmp_path: Path) -> None:
    model, example = DigitsNet().bfloat16(), EXAMPLE.bfloat16()
    with pytest.raises(hope.CannotExport, match="cannot be written: onnxruntime cannot run it") as refusal:
        hope.export_onnx(model, example, tmp_path / "d.onnx")
    assert "\n" not in str(refusal.value)
    assert str(tmp_path) not in str(refusal.value)
    assert not list(tmp_path.iterdir())
    assert not hope.export_onnx(model, example, tmp_path / "d.onnx", check=False).checked
    assert (tmp_path / "d.onnx").is_file()


def test_nothing_is_left_of_a_file_with_other_answers(
    encoding: hope.Encoding, runtime: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(programs.TOLERANCE, torch.float32, 1e-12)
    (tmp_path / "small.onnx").write_text("an earlier one")
    with pytest.raises(
        hope.CannotExport, match="answers of onnxruntime must be the model's, got a difference"
    ):
        hope.export_onnx(encoding.model, EXAMPLE, tmp_path / "small.onnx", dynamic=False)
    assert [file.name for file in tmp_path.iterdir()] == ["small.onnx"]
    assert (tmp_path / "small.onnx").read_text() == "an earlier one"


def test_an_operator_that_onnx_does_not_have_is_named(runtime: Any, tmp_path: Path) -> None:
    class Bessel(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.special.i0e(x)

    with pytest.raises(hope.CannotExport, match=r"b\.onnx cannot be made: .*bessel_i0e") as refusal:
        hope.export_onnx(Bessel(), torch.zeros(2, 4), tmp_path / "b.onnx")
    assert "\n" not in str(refusal.value)
    assert not list(tmp_path.iterdir())


def test_a_program_runs_without_the_models_code(encoding: hope.Encoding, tmp_path: Path) -> None:
    written = encoding.export_program(tmp_path / "small.pt2")
    assert (written.batch, written.checked) == (None, True)
    assert [file.name for file in tmp_path.iterdir()] == ["small.pt2"]
    module = torch.export.load(written).module()
    for size in (1, 5):
        x = torch.randn(size, 1, 8, 8)
        assert_same([module(x)], run(encoding.model, x), 1e-5)


def test_the_mode_of_a_model_is_what_it_was(tmp_path: Path) -> None:
    model = randomise(DigitsNet()).train()
    hope.export_program(model, EXAMPLE, tmp_path / "d.pt2")
    assert all(module.training for module in model.modules())
    x = torch.randn(2, 1, 8, 8)
    assert_same([torch.export.load(tmp_path / "d.pt2").module()(x)], run(model.eval(), x), 1e-5)


def test_a_place_that_cannot_be_written_is_one_line(encoding: hope.Encoding, tmp_path: Path) -> None:
    for path in (tmp_path / "none" / "small.pt2", tmp_path):
        with pytest.raises(hope.CannotWrite, match="cannot be written") as refusal:
            encoding.export_program(path)
        assert "\n" not in str(refusal.value)
    assert not list(tmp_path.iterdir())
    assert not list(tmp_path.parent.glob(f".{tmp_path.name}*"))


def test_a_blank_example_is_not_what_answers_are_compared_on() -> None:
    (filled,), _ = programs._filled(((EXAMPLE,), {}))
    assert np.std(filled.numpy()) > 0.5
    kept = torch.arange(4.0)
    assert programs._filled(((kept,), {}))[0][0] is kept


@pytest.mark.parametrize("write", [hope.export_program, hope.export_onnx])
def test_a_full_disk_is_reported_in_a_line_and_nothing_is_left(write: Any, tmp_path: Path) -> None:
    net, before = nn.Sequential(nn.Linear(4, 64), nn.ReLU()).eval(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, before[1]))
    try:
        with pytest.raises(hope.CannotWrite, match=r"net.file cannot be written: File too large"):
            write(net, torch.zeros(1, 4), tmp_path / "net.file")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert not list(tmp_path.iterdir())
