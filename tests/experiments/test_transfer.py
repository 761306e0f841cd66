"""The transfer experiment on made-up images: it runs, resumes, and refuses what does not fit."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.transfer import jobs as transfer
from experiments.transfer import training as transfer_training
from experiments.transfer.__main__ import main
from experiments.transfer.data import data_files, source_task, target_task
from experiments.transfer.page import table
from experiments.transfer.scale import SCALES, Point, grid_points
from hope.bench.images import UnusableImages
from hope.errors import MissingData

TINY = replace(
    SCALES["small"],
    width=0.04, trials=2, pretraining=1, tuning=1, sweep=1, batch=16, capped=32, source=48, target=48,
    percentiles=(40,), strengths=(1.0,),
    rates={"deft, absorbed": (0.01,), "ewc": (0.01,), "head-only": (0.04, 0.01)},
)  # fmt: skip


def _fake(folder: Path) -> None:
    rng = np.random.default_rng(0)

    def pixels(count: int) -> np.ndarray:
        return rng.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)

    fine = np.repeat(np.arange(30), 4).astype(np.uint8)
    some = {"x_train": pixels(120), "y_train": fine, "coarse_train": fine // 5}
    np.savez(folder / "cifar100-30c.npz", x_test=pixels(120), y_test=fine, coarse_test=fine // 5, **some)
    digits = (np.arange(80) % 10).astype(np.uint8)
    np.savez(folder / "svhn-part.npz", x_train=pixels(80), y_train=digits, x_test=pixels(80), y_test=digits)


def test_a_run_goes_through_and_resumes(tmp_path: Path) -> None:
    _fake(tmp_path)
    out = tmp_path / "out"
    found = transfer.run(out, tmp_path, TINY)
    assert set(found) == {"deft, absorbed", "ewc", "head-only"}
    for row in found.values():
        assert all(0 <= mean <= 1 for mean, _ in row["best by target"].values())
    assert found["head-only"]["prepared"] == found["head-only"]["before"]
    lines = table(out / "results.json").splitlines()
    rows = [line for line in lines if line.startswith("| ") and " ± " in line]
    assert [line.split(" (")[0] for line in rows] == [f"| {name}" for name in found]
    assert all(line.count(" ± ") == 6 for line in rows)
    swept = [json.loads(path.read_text()) for path in out.glob("sweep-0-0-head-only-*.json")]
    assert len(swept) == 2
    assert found["head-only"]["point"] == max(swept, key=lambda one: one["best by h"]["h"])["point"]
    (out / "results.json").unlink()
    times = {path: path.stat().st_mtime_ns for path in out.iterdir() if path.name != "scale.json"}
    assert transfer.run(out, tmp_path, TINY) == found
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    with pytest.raises(MissingData, match="another scale"):
        transfer.run(out, tmp_path, replace(TINY, batch=8))
    with np.load(tmp_path / "svhn-part.npz") as images:
        np.savez(tmp_path / "svhn-part.npz", **{**images, "y_train": images["y_train"][::-1]})
    with pytest.raises(MissingData, match="other data"):
        transfer.run(out, tmp_path, TINY)
    with pytest.raises(MissingData, match=r"no cifar100.npz in"):
        transfer.run(tmp_path / "full", tmp_path, replace(TINY, partial=False))
    with pytest.raises(transfer.UnknownMethod, match=r"'dfet'.*ewc"):
        transfer.run(tmp_path / "new", tmp_path, TINY, methods=["dfet"])
    with pytest.raises(MissingData, match="HOPE_DATA"):
        transfer.run(tmp_path / "new", tmp_path / "nowhere", TINY)


def test_source_tasks_have_twenty_classes_of_four_superclasses(tmp_path: Path) -> None:
    _fake(tmp_path)
    path = data_files(tmp_path, partial=True)["source"]
    one, other = (source_task(path, trial, 0, None) for trial in (0, 1))
    assert set(one.test[1].tolist()) == set(range(20))
    assert len(one.train[0]) == 64
    assert len(one.valid[0]) == 16
    assert not torch.equal(one.test[0], other.test[0])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"coarse_train": None}, "has no coarse_train"),
        ({"x_test": np.zeros((120, 32, 32))}, "x_test in .* uint8 NxHxWx3 is needed"),
        ({"coarse_train": np.zeros(120, dtype=np.uint8)}, "1 superclasses"),
        ({"coarse_test": np.zeros(3, dtype=np.uint8)}, "one whole number per image"),
    ],
)
def test_damaged_images_are_named(change: dict[str, np.ndarray | None], words: str, tmp_path: Path) -> None:
    _fake(tmp_path)
    path = data_files(tmp_path, partial=True)["source"]
    with np.load(path) as images:
        changed = {**images, **change}
    np.savez(path, **{name: array for name, array in changed.items() if array is not None})
    with pytest.raises(UnusableImages, match=words):
        source_task(path, 0, 0, None)


def test_the_full_scale_is_the_papers_and_the_small_one_decays_as_much() -> None:
    full, small = SCALES["full"], SCALES["small"]
    assert (full.trials, full.tasks, full.pretraining, full.tuning) == (4, 5, 100, 30)
    assert (full.batch, full.capped, full.penalty) == (16, 1000, 5e-4)
    assert len(grid_points(full, "deft")) == 20
    assert len(grid_points(full, "ewc")) == 35
    full_dose, small_dose = (s.penalty * s.pretraining / s.batch for s in (full, small))
    assert small_dose == pytest.approx(full_dose)
    assert full.percentiles == (60, 40, 30, 20)
    assert full.rates["deft"] == (0.04, 0.02, 0.01, 0.005, 0.001)
    assert full.strengths == (0.1, 0.5, 1.0, 5.0, 10.0, 20.0, 50.0)
    assert (full.width, full.sweep, full.partial) == (1.0, 30, False)


def test_an_executor_and_the_command_give_the_same_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    _fake(tmp_path)
    few = replace(TINY, trials=1, rates={"head-only": (0.04,), "deft, sum merges": (0.01,)})
    found = transfer.run(tmp_path / "here", tmp_path, few)
    with ThreadPoolExecutor(1) as pool:
        assert transfer.run(tmp_path / "there", tmp_path, few, executor=pool) == found
    monkeypatch.setitem(SCALES, "small", few)
    assert main(["--data", str(tmp_path), "--out", str(tmp_path / "here")]) == 0
    printed = capsys.readouterr().out
    again = ["--data", str(tmp_path), "--out", str(tmp_path / "here"), "--penalty", "0"]
    assert main(again) != 0
    assert "another scale" in capsys.readouterr().err
    for row in found.values():
        assert f"{100 * row['best by h']['test h'][0]:.2f}" in printed


def test_pretraining_anneals_by_a_cosine_and_decays_kernels_and_scales(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake(tmp_path)
    images = source_task(data_files(tmp_path, partial=True)["source"], 0, 0, 48)
    rates: list[float] = []
    decays: dict[str, float] = {}

    def epoch(model, data, optimizer, batch, before_step):  # type: ignore[no-untyped-def]
        names = {id(p): name for name, p in model.named_parameters()}
        for group in optimizer.param_groups:
            decays.update({names[id(p)]: group["weight_decay"] for p in group["params"]})
        for _ in range(3):  # 48 images in steps of 16
            before_step()
            rates.append(optimizer.param_groups[0]["lr"])

    monkeypatch.setattr(transfer_training, "_epoch", epoch)
    transfer_training.pretrain(images, replace(TINY, pretraining=100), seed=0)
    assert rates[0] == pytest.approx(0.05)
    assert rates[150] == pytest.approx(0.025, rel=0.01)
    assert rates[-1] == pytest.approx(0.05e-3, rel=0.1)
    assert rates == sorted(rates, reverse=True)
    for name, decay in decays.items():
        assert decay == (0 if name.endswith("bias") else 2 * TINY.penalty), name


def test_both_best_epochs_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(tmp_path)
    files = data_files(tmp_path, partial=True)
    source, target = source_task(files["source"], 0, 0, 48), target_task(files["target"], 0, 0, 48)
    point = Point("head-only", 0.01)
    tuning = transfer_training.tuning_of(transfer_training.Vgg8(20, 0.04).eval(), point, source, 0)
    scripted = iter([0.2, 0.6, 0.8, 0.05, 0.5, 0.5])  # target and source, epoch by epoch
    monkeypatch.setattr(transfer_training, "accuracy", lambda *images: next(scripted))
    found, states = transfer_training.tune(tuning, point, source, target, TINY, 3)
    assert [found[best]["epoch"] for best in ("best by target", "best by h")] == [1, 2]
    assert found["best by h"]["h"] == pytest.approx(0.5)
    assert not torch.equal(states["best by target"]["27.weight"], states["best by h"]["27.weight"])
