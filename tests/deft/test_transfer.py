"""The transfer benchmark on made-up images: it runs, resumes, and refuses what does not fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from benchmarks.transfer import table

from hope.bench import transfer
from hope.bench.datasets import MissingData, UnusableImages
from hope.bench.transfer_data import data_files, source_task
from hope.bench.transfer_scale import SCALES, grid_points

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
