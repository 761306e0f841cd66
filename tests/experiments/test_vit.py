"""The experiment on a vision transformer, on a small one and made-up images."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from experiments import train, vit
from zoo.networks import SmallVit


def test_a_small_one_is_trained_and_measured_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    small = partial(SmallVit, 3, width=16, depth=2, patch=8)
    monkeypatch.setattr(train, "NETWORKS", {"cifar100-vit": (small, "cifar100-30c.npz", 1)})
    monkeypatch.setattr(vit, "SHARES", {"neurons": (0.5,), "params": (0.5,)})
    monkeypatch.setattr(vit, "RESULTS", tmp_path / "out.json")
    x = np.random.default_rng(0).integers(0, 256, (128, 32, 32, 3), dtype=np.uint8)
    y = np.arange(128) % 3
    np.savez(tmp_path / "cifar100-30c.npz", x_train=x, y_train=y, x_test=x[:32], y_test=y[:32])
    assert train.main([str(tmp_path), "--data", str(tmp_path)]) == 0
    line = ["--data", str(tmp_path), "--out", str(tmp_path / "out.json"), "--ways", "96 images", "l1-in"]
    assert vit.main(line) == 0
    entry = json.loads((tmp_path / "out.json").read_text())["cifar100-vit"]
    neurons, params = (entry["points"]["96 images"][kind]["0.5"] for kind in ("neurons", "params"))
    assert neurons["neurons"] == 64 + 8  # half of the MLP neurons, and all heads
    assert neurons["heads"] == 8
    assert params["params"] <= 0.5
    assert {"accuracy", "refitted"} <= neurons.keys() & entry["points"]["l1-in"]["params"]["0.5"].keys()
    capsys.readouterr()
    assert vit.main(line) == 0
    assert capsys.readouterr().out == ""  # nothing is measured twice
    assert vit.table().count("\n| ") == 3
