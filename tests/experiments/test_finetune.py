"""The fine-tuning experiment on made-up images: it trains once, measures every point once, and goes on."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from experiments import data as datasets
from experiments import finetune
from experiments.compression import peers
from experiments.finetune import main, table
from experiments.training import Recipe, augmented, train
from hope.bench.accuracy import accuracy
from hope.errors import MissingData
from zoo.networks import CifarResNet

SMALL = ["--methods", "paper", "l1-in", "--budgets", "params=0.5", "--epochs", "1", "--train-epochs", "1"]
SMALL += ["--images", "20", "--seeds", "2"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    folder = tmp_path / "data"
    folder.mkdir()
    parts = {}
    for which, count in (("train", 24), ("test", 12)):
        parts[f"x_{which}"] = rng.integers(0, 256, (count, 8, 8, 3), dtype=np.uint8)
        parts[f"y_{which}"] = np.array([7, 11, 90], np.uint8)[np.arange(count) % 3]
    np.savez(folder / "cifar100-30c.npz", **parts)
    return folder


def measure(data: Path, out: Path, *more: str) -> int:
    return main(["--data", str(data), "--out", str(out), *SMALL, *more])


def test_every_method_is_measured_before_and_after_fine_tuning(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "r.json"
    assert measure(data, out) == 0
    assert "fine-tuned" in capsys.readouterr().out
    results = json.loads(out.read_text())
    entry = results["networks"][finetune.NAME]
    assert (entry["images"], entry["fine-tuning images"], entry["seeds"]) == (12, 20, 2)
    assert entry["training"]["epochs"] == entry["fine-tuning"]["epochs"] == 1
    assert len(entry["base fine-tuned by seed"]) == 2
    assert "torch" in results["versions"]
    assert set(entry["points"]) == {"paper", "l1-in"}
    for points in entry["points"].values():
        point = points["params=0.5"]
        assert point["parameters"] <= 0.5
        assert point["fine-tuned"] == pytest.approx(np.mean(point["fine-tuned by seed"]))
        assert 0 <= point["accuracy"] <= 1


def test_it_goes_on_where_it_stopped_and_does_not_train_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.json"
    assert measure(data, out) == 0
    whole = json.loads(out.read_text())
    left = json.loads(out.read_text())
    del left["networks"][finetune.NAME]["points"]["l1-in"]
    left["networks"][finetune.NAME]["points"]["paper"]["params=0.5"]["seconds"] = -1.0
    out.write_text(json.dumps(left))
    trained = []
    monkeypatch.setattr(finetune, "train", lambda *given, **more: trained.append(1) or train(*given, **more))
    assert measure(data, out) == 0
    assert len(trained) == 2  # one network, two seeds
    points = json.loads(out.read_text())["networks"][finetune.NAME]["points"]
    assert points["paper"]["params=0.5"]["seconds"] == -1.0
    again, before = (p["l1-in"]["params=0.5"] for p in (points, whole["networks"][finetune.NAME]["points"]))
    assert again["fine-tuned by seed"] == before["fine-tuned by seed"]
    capsys.readouterr()
    assert measure(data, out, "--epochs", "2") == 2
    assert "give the same, or another --out" in capsys.readouterr().err


def test_fine_tuning_leaves_the_compressed_network_alone_and_repeats_itself() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(16, 3, 8, 8), torch.arange(16) % 3
    model = CifarResNet(8, 3).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    task = finetune.TuningTask(
        "n", model, x[:1], x, y, x[:4], (), train_images=x, train_labels=y, tuning=Recipe(1, 0.1, batch=8)
    )
    assert task.further(model) == task.further(model)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not model.training


def test_training_lowers_the_loss() -> None:
    torch.manual_seed(0)
    y = torch.arange(64) % 2
    x = torch.randn(64, 3, 8, 8) + 2 * (2 * y - 1)[:, None, None, None]
    model = train(CifarResNet(8, 2), x, y, Recipe(4, 0.05, batch=16), seed=0)
    assert accuracy(model, x, y) > 0.95


def test_augmentation_moves_and_mirrors_whole_images() -> None:
    torch.manual_seed(0)
    image = torch.arange(1.0, 65).reshape(1, 1, 8, 8)
    made = augmented(image.expand(200, 3, 8, 8))
    assert torch.equal(made[:, 0], made[:, 1])
    padded = torch.nn.functional.pad(image, (4,) * 4)
    crops = padded.unfold(2, 8, 1).unfold(3, 8, 1).reshape(-1, 8, 8)
    allowed = {tuple(one.flatten().tolist()) for crop in crops for one in (crop, crop.flip(1))}
    found = {tuple(one.flatten().tolist()) for one in made[:, 0]}
    assert found <= allowed
    assert len(found) > 60


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--methods", "l3"], "there is no method 'l3'"),
        (["--budgets", "weight=2"], "a budget must be"),
        (["--epochs", "0"], "--epochs must be at least 1"),
        (["--data", "nowhere"], "give --data FOLDER"),
    ],
)
def test_what_cannot_be_measured_is_reported(
    data: Path, tmp_path: Path, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert measure(data, tmp_path / "r.json", *arguments) == 2
    assert told in capsys.readouterr().err


def test_missing_or_incomplete_images_are_reported(data: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingData, match=r"there is no .*cifar100-30c\.npz"):
        datasets.cifar100(tmp_path)
    np.savez(tmp_path / "cifar100-30c.npz", x_train=np.zeros(1))
    with pytest.raises(MissingData, match="got none called y_train, x_test, y_test"):
        datasets.cifar100(tmp_path)
    _, labels, _, _ = datasets.cifar100(data)
    assert labels.unique().tolist() == [0, 1, 2]


def test_results_that_cannot_be_written_or_read_are_reported_before_the_training(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(finetune, "train", None)
    (tmp_path / "folder").mkdir()
    assert measure(data, tmp_path / "folder") == 2
    assert "it is a folder" in capsys.readouterr().err
    (tmp_path / "r.json").write_text('{"format": "hope-bench-compression", "version": 1}')
    assert measure(data, tmp_path / "r.json") == 2
    assert "r.json is damaged" in capsys.readouterr().err


def test_a_budget_that_no_method_meets_is_reported(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.json"
    assert measure(data, out, "--budgets", "params=0.5", "params=0.0001") == 0
    told = " ".join(capsys.readouterr().out.split())
    assert "paper, params=0.0001: params=0.0001 cannot be met" in told
    assert set(json.loads(out.read_text())["networks"][finetune.NAME]["points"]["paper"]) == {"params=0.5"}
    assert "params=0.5" in table(out)


def test_a_checkpoint_of_other_data_is_not_taken(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.json"
    finetune.weights_path(out, Recipe(1, 0.1)).write_bytes(b"no weights")
    assert measure(data, out) == 2
    assert "move it away" in capsys.readouterr().err


def test_without_torch_pruning_its_rows_are_left_out(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[str] = []

    class Enough(Exception):
        pass

    def stop(*given: object, methods: list[str], **more: object) -> None:
        asked.extend(methods)
        raise Enough

    monkeypatch.setattr(peers, "installed", lambda: False)
    monkeypatch.setattr(finetune, "run", stop)
    with pytest.raises(Enough):
        main(["--data", str(data), "--out", str(tmp_path / "r.json")])
    assert asked
    assert not set(asked) & set(peers.NAMES)
    assert "Torch-Pruning is not installed" in capsys.readouterr().err


def test_the_results_become_a_table(data: Path, tmp_path: Path) -> None:
    assert measure(data, tmp_path / "r.json") == 0
    lines = table(tmp_path / "r.json").splitlines()
    assert lines[0] == "**params=0.5**"
    assert [line.split("|")[1].strip() for line in lines[4:6]] == ["paper", "l1-in"]
    assert "mean of 2 seeds" in lines[-1]
