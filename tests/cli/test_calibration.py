"""--calibration takes folders of images and files of arrays; hf: takes names from the cache."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from hope.cli.calibration_files import inputs
from hope.cli.main import main
from hope.errors import InvalidExample

EXAMPLE = torch.zeros(1, 3, 8, 8)
BYTES = np.random.default_rng(0).integers(0, 256, (40, 8, 8, 3), dtype=np.uint8)
PIXELS = torch.from_numpy(BYTES).movedim(-1, 1).float() / 255


def read(what: Path, spec: str = "net.py:build", model: Any = None, example: Any = EXAMPLE) -> list[Any]:
    return inputs(str(what), spec, model or nn.Identity(), example)


def images(folder: Path, count: int = 3, side: int = 8) -> Path:
    image = pytest.importorskip("PIL.Image")
    (folder / "sub").mkdir(parents=True)
    for number in range(count):
        pixels = np.resize(BYTES[number], (side, side, 3))
        image.fromarray(pixels).save(folder / "sub" / f"{number}.png")
    return folder


@pytest.mark.parametrize("name", ["x", "inputs"])
def test_an_npz_file_holds_inputs(name: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **{name: PIXELS.numpy()})
    batches = read(tmp_path / "a.npz")
    assert [len(batch) for batch in batches] == [32, 8]
    assert torch.equal(torch.cat(batches), PIXELS)
    np.savez(tmp_path / "b.npz", a=BYTES, b=BYTES)
    with pytest.raises(InvalidExample, match="its array must be called x, got a, b"):
        read(tmp_path / "b.npz")


def test_bytes_are_divided_and_their_channels_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.save(tmp_path / "rows.npy", BYTES)
    np.save(tmp_path / "planes.npy", np.moveaxis(BYTES, -1, 1))
    for name, words in (("rows", "images x height x width x channels"), ("planes", "bytes")):
        assert torch.equal(torch.cat(read(tmp_path / f"{name}.npy")), PIXELS)
        assert f"has {words}: taken as inputs from 0 to 1" in capsys.readouterr().err


def test_a_folder_of_images_is_scaled_to_the_example(tmp_path: Path) -> None:
    assert torch.equal(torch.cat(read(images(tmp_path / "a"))), PIXELS[:3])
    (batch,) = read(images(tmp_path / "b", side=20))
    assert batch.shape == (3, 3, 8, 8)
    assert 0 <= batch.min() < batch.max() <= 1
    (tmp_path / "none").mkdir()
    with pytest.raises(InvalidExample, match=r"must have images .* got none"):
        read(tmp_path / "none")


def test_images_are_prepared_as_timm_does(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    model = timm.create_model("resnet18").eval()
    example = torch.zeros(1, 3, 64, 64)
    (batch,) = read(images(tmp_path / "a", side=64), "timm:resnet18", model, example)
    assert batch.shape == (3, 3, 64, 64)
    assert batch.min() < 0  # normalised


def test_a_run_is_calibrated_on_a_folder_of_images(tmp_path: Path) -> None:
    code = (
        "from torch import nn\ndef build():\n    conv = nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3)\n"
    )
    (tmp_path / "net.py").write_text(f"{code}    return nn.Sequential(*conv)\n")
    folder = images(tmp_path / "images", count=8)
    call = ["encode", f"{tmp_path}/net.py:build", "--input", "1x3x8x8", "--params", "0.6"]
    assert main([*call, "--calibration", str(folder), "--out", str(tmp_path / "run")]) == 0


def test_a_name_is_loaded_from_the_cache_of_the_hub(tmp_path: Path) -> None:
    library = pytest.importorskip("transformers")
    entry = tmp_path / "hub" / "models--org--tiny"
    config = library.GPT2Config(vocab_size=64, n_positions=16, n_embd=8, n_layer=1, n_head=2)
    library.GPT2LMHeadModel(config).save_pretrained(entry / "snapshots" / "0123")
    (entry / "refs").mkdir()
    (entry / "refs" / "main").write_text("0123")
    code = "import sys; from hope.cli.main import main; sys.exit(main(sys.argv[1:]))"
    call = [sys.executable, "-c", code, "inspect", "--input", "1x8"]
    environment = os.environ | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    how: Any = {"env": environment, "capture_output": True, "text": True, "check": False}
    found = subprocess.run([*call, "hf:org/tiny"], **how)
    assert found.returncode == 0, found.stderr
    assert "GPT2LMHeadModel" in found.stdout
    missing = subprocess.run([*call, "hf:org/none"], **how)
    assert missing.returncode == 2
    assert "no such model in the Hugging Face cache or on the hub" in missing.stderr
