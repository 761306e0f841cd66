"""The transfer experiment on made-up images: it runs, resumes, and refuses what does not fit."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from experiments.transfer import jobs as transfer
from experiments.transfer import training as transfer_training
from experiments.transfer.__main__ import main
from experiments.transfer.data import data_files, source_task, target_task
from experiments.transfer.page import table, vit
from experiments.transfer.scale import SCALES, Point, ablations, grid_points
from experiments.transfer.streams import seed
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
    images = {tuple(x.flatten().tolist()) for x in one.train[0]}
    assert not images & {tuple(x.flatten().tolist()) for x in one.valid[0]}


def test_superclasses_are_drawn_distinct_over_all_tasks_of_all_trials(tmp_path: Path) -> None:
    _fake(tmp_path)
    path = data_files(tmp_path, partial=True)["source"]
    seen = []
    with np.load(path) as arrays:
        where = {x.tobytes(): int(c) for x, c in zip(arrays["x_test"], arrays["coarse_test"], strict=True)}
    for trial in range(5):
        for task in range(3):
            x = source_task(path, trial, task, None, tasks=3).test[0]
            pixels = (x.permute(0, 2, 3, 1) * 255).round().to(torch.uint8).contiguous()
            seen.append(frozenset(where[one.numpy().tobytes()] for one in pixels))
    assert all(len(four) == 4 for four in seen)
    assert len(set(seen)) == 15  # all that six superclasses have
    assert len({four for four in seen[:3] if 0 in four}) != 1  # drawn, not partitioned: some come again


def test_every_trial_task_and_purpose_has_a_stream_of_its_own(tmp_path: Path) -> None:
    purposes = ("superclasses", "source split", "target split", "pre-training", "fine-tuning")
    starts = [seed(p, trial, task) for p in purposes for trial in range(4) for task in range(5)]
    assert len(set(starts)) == len(starts)
    assert starts == [seed(p, trial, task) for p in purposes for trial in range(4) for task in range(5)]
    _fake(tmp_path)
    path = data_files(tmp_path, partial=True)["target"]
    one, other = (target_task(path, trial, 0, None) for trial in (0, 1))
    assert not torch.equal(one.train[0], other.train[0])
    transfer.run(tmp_path / "out", tmp_path, replace(TINY, rates={"head-only": (0.04,)}))
    weights = [load_file(tmp_path / "out" / f"source-{trial}-0.safetensors") for trial in (0, 1)]
    assert not torch.equal(weights[0]["0.weight"], weights[1]["0.weight"])


def test_the_start_of_fine_tuning_differs_by_task_and_not_by_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake(tmp_path)
    heads: dict[tuple[int, str], torch.Tensor] = {}
    orders: dict[tuple[int, str], torch.Tensor] = {}

    def tested(tuning, point, source, target, scale):  # type: ignore[no-untyped-def]
        key = (sum(name == point.method for _, name in heads), point.method)
        heads[key], orders[key] = tuning.model[-1].weight.detach().clone(), torch.randperm(20)
        bound = (6 / (tuning.model[-1].in_features + 10)) ** 0.5  # Glorot's
        assert 0.8 * bound < heads[key].abs().max() <= bound
        assert not tuning.model[-1].bias.any()
        best = {f"test {k}": 0.5 for k in ("target", "source", "source masked", "h")}
        return {"point": asdict(point), "prepared": 0.5, "best by target": best, "best by h": best}

    monkeypatch.setattr(transfer, "tune_and_test", tested)
    transfer.run(tmp_path / "out", tmp_path, replace(TINY, rates={"full": (0.01,), "deft": (0.01,)}))
    for drawn in (heads, orders):
        assert torch.equal(drawn[0, "full"], drawn[0, "deft"])
        assert torch.equal(drawn[1, "full"], drawn[1, "deft"])
        assert not torch.equal(drawn[0, "full"], drawn[1, "full"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"coarse_train": None}, "got none called coarse_train"),
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
    medium = SCALES["medium"]
    assert medium.penalty * medium.pretraining / medium.batch == pytest.approx(full_dose)
    assert (full.width, full.sweep, full.partial, full.half) == (1.0, 30, False, False)
    assert (full.source, full.target) == (None, None)


def test_the_full_grids_are_the_papers() -> None:
    full = SCALES["full"]
    deft = {(p, rate) for p in (60, 40, 30, 20) for rate in (0.04, 0.02, 0.01, 0.005, 0.001)}
    for name in ("deft", "deft by capacity", "deft, absorbed"):
        assert {(point.percentile, point.rate) for point in grid_points(full, name)} == deft
    strengths, rates = (0.1, 0.5, 1, 5, 10, 20, 50), (0.01, 0.005, 0.001, 0.0005, 0.0001)
    points = grid_points(full, "ewc")
    assert {(point.strength, point.rate) for point in points} == {(s, r) for s in strengths for r in rates}
    lines = {
        "bn-tuning": (0.01, 0.005, 0.0025, 0.001, 0.0005, 0.0001),
        "full": (0.02, 0.01, 0.005, 0.001, 0.0005, 0.0001),
        "head-only": (0.04, 0.02, 0.01, 0.005, 0.001, 0.0005),
    }
    for name, line in lines.items():
        assert tuple(point.rate for point in grid_points(full, name)) == line
    assert all(grid_points(scale, name) for scale in SCALES.values() for name in scale.rates)


def test_the_network_is_the_papers_made_as_keras_makes_it() -> None:
    torch.manual_seed(0)
    net = transfer_training.Vgg8(20)
    letters = {"Conv2d": "c", "BatchNorm2d": "b", "ReLU": "r", "MaxPool2d": "p", "AdaptiveAvgPool2d": "g"}
    letters |= {"Flatten": "f", "Linear": "d", "BatchNorm1d": "b"}
    kinds = "".join(letters[type(module).__name__] for module in net)
    assert kinds == "cbrp" + "cbrp" + "cbrcbrp" + "cbrcbrp" + "gf" + "dbr" + "d"
    sizes, x = [], torch.zeros(2, 3, 32, 32)
    for module in net.eval():
        x = module(x)
        if isinstance(module, (torch.nn.Conv2d, torch.nn.MaxPool2d)):
            sizes.append((x.shape[1], x.shape[2]))
    assert sizes == [(128, 32), (128, 16), (256, 16), (256, 8), (512, 8), (512, 8), (512, 4),
                     (512, 4), (512, 4), (512, 2)]  # fmt: skip
    layers = [m for m in net if isinstance(m, (torch.nn.Conv2d, torch.nn.Linear))]
    assert [m.bias is None for m in layers] == [True] * 7 + [False]
    assert [tuple(m.weight.shape[2:]) for m in layers] == [(3, 3)] * 6 + [()] * 2
    assert layers[6].weight.shape == (512, 512)
    for layer in layers:
        out, into, taps = layer.weight.shape[0], layer.weight.shape[1], layer.weight[0, 0].numel()
        bound = (6 / (taps * (into + out))) ** 0.5  # Keras: fans count the taps
        largest = float(layer.weight.detach().abs().max())
        assert 0.97 * bound < largest <= bound
        assert float(layer.weight.detach().std()) == pytest.approx(bound / 3**0.5, rel=0.03)
    assert not layers[-1].bias.any()
    for bn in (m for m in net if isinstance(m, torch.nn.modules.batchnorm._BatchNorm)):
        assert (bn.eps, bn.momentum) == (1e-3, pytest.approx(0.01))
        assert bool((bn.weight == 1).all())
        assert not bn.bias.any()


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

    def epoch(model, data, optimizer, scale, before_step):  # type: ignore[no-untyped-def]
        names = {id(p): name for name, p in model.named_parameters()}
        for group in optimizer.param_groups:
            assert (group["momentum"], group["nesterov"], group["dampening"]) == (0.9, False, 0)
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


@pytest.mark.parametrize("method", ["deft", "full", "bn-tuning", "ewc", "l2-sp", "head-only"])
def test_fine_tuning_decays_kernels_alone_at_a_fixed_rate(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake(tmp_path)
    files = data_files(tmp_path, partial=True)
    source, target = source_task(files["source"], 0, 0, 48), target_task(files["target"], 0, 0, 48)
    point = Point(method, 0.02, strength=1.0)
    tuning = transfer_training.tuning_of(transfer_training.Vgg8(20, 0.04).eval(), point, source, 0)
    rates, decays = [], {}

    def epoch(model, data, optimizer, scale, penalty):  # type: ignore[no-untyped-def]
        names = {id(p): (name, p) for name, p in model.named_parameters()}
        assert data is target.train
        assert (penalty is not None) == (method in ("ewc", "l2-sp"))
        for group in optimizer.param_groups:
            assert (group["momentum"], group["nesterov"], group["dampening"]) == (0.9, False, 0)
            rates.append(group["lr"])
            decays.update({names[id(p)][0]: (p.ndim, group["weight_decay"]) for p in group["params"]})

    monkeypatch.setattr(transfer_training, "_epoch", epoch)
    transfer_training.tune(tuning, point, source, target, TINY, 3)
    assert set(rates) == {0.02}
    assert {dims for dims, _ in decays.values()} >= {1, 2}
    for name, (dims, decay) in decays.items():
        assert decay == (2 * TINY.penalty if dims > 1 else 0), name


def test_an_epoch_is_every_image_once_and_heavy_ball_steps() -> None:
    torch.manual_seed(0)
    net = torch.nn.Linear(3, 2)
    x, y = torch.randn(36, 3), torch.randint(2, (36,))
    seen = []
    net.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    optimizer = transfer_training._optimizer(net, 0.1, 0.01, lambda name, p: p.ndim > 1)
    weight, bias = (p.detach().clone() for p in net.parameters())
    torch.manual_seed(5)
    transfer_training._epoch(net, (x, y), optimizer, replace(TINY, batch=16))
    assert [len(batch) for batch in seen] == [16, 16, 4]
    torch.manual_seed(5)
    order = torch.randperm(36)
    assert torch.equal(torch.cat(seen), x[order])
    velocity = [torch.zeros_like(weight), torch.zeros_like(bias)]
    for some in order.split(16):  # by hand: softmax minus label, L2 of 0.01·‖w‖², v = 0.9·v + g
        error = torch.softmax(x[some] @ weight.T + bias, dim=1) - torch.eye(2)[y[some]]
        gradient = [error.T @ x[some] / len(some) + 2 * 0.01 * weight, error.mean(dim=0)]
        velocity = [0.9 * v + g for v, g in zip(velocity, gradient, strict=True)]
        weight, bias = weight - 0.1 * velocity[0], bias - 0.1 * velocity[1]
    assert torch.allclose(net.weight, weight, atol=1e-6)
    assert torch.allclose(net.bias, bias, atol=1e-6)


def test_ewc_holds_on_to_the_fisher_information_of_training_images(tmp_path: Path) -> None:
    _fake(tmp_path)
    path = data_files(tmp_path, partial=True)["source"]
    few = replace(TINY, trials=1, source=6, rates={"ewc": (0.01,)})
    transfer.run(tmp_path / "out", tmp_path, few)
    kept = load_file(tmp_path / "out" / "fisher-0-0.safetensors")
    model = transfer_training.Vgg8(20, few.width).eval()
    model.load_state_dict(load_file(tmp_path / "out" / "source-0-0.safetensors"))
    images = source_task(path, 0, 0, 6)
    total = {name: torch.zeros_like(p) for name, p in model.named_parameters()}
    for x, y in zip(*images.train, strict=True):  # one by one
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x[None]), y[None]).backward()
        for name, p in model.named_parameters():
            total[name] += p.grad.square() / 6
    assert kept.keys() == total.keys()
    for name, value in total.items():
        assert torch.allclose(kept[name], value, rtol=1e-3, atol=1e-7 * float(value.max())), name
    tuning = transfer_training.tuning_of(model, Point("ewc", 0.01, strength=3.0), images, 0, kept)
    with torch.no_grad():
        tuning.model[0].weight[0, 0, 0, 0] += 0.5
        tuning.model[-1].weight += 1  # the head is free
    assert tuning.penalty().item() == pytest.approx(
        3 / 2 * float(total["0.weight"][0, 0, 0, 0]) * 0.25, rel=1e-3
    )


def test_the_sweep_is_decided_by_the_h_score() -> None:
    def swept(rate: float, target: float, source: float, later: float) -> dict[str, Any]:
        best = {"target": target, "source": source, "h": 2 * target * source / (target + source)}
        return {"point": asdict(Point("full", rate)), "best by h": best, "best by target": {"target": later}}

    points = [swept(0.1, 0.9, 0.1, 0.9), swept(0.2, 0.5, 0.4, 0.5), swept(0.3, 0.2, 0.9, 0.95)]
    assert transfer.choose(points) == {"full": Point("full", 0.2)}


@pytest.mark.parametrize(
    ("method", "merge", "by", "sever"),
    [
        ("deft", "pair", "prune-cost", "mask"),
        ("deft by capacity", "pair", "capacity", "mask"),
        ("deft, absorbed", "pair", "prune-cost", "absorb"),
        ("deft, sum merges", "sum", "prune-cost", "mask"),
        ("full", False, "prune-cost", None),
    ],
)
def test_deft_is_split_merged_and_severed_as_its_name_says(
    method: str, merge: object, by: str, sever: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake(tmp_path)
    source = source_task(data_files(tmp_path, partial=True)["source"], 0, 0, 48)
    asked: dict[str, object] = {}
    for name in ("partition", "prepare"):
        real = getattr(transfer_training, name)

        def record(*args, real=real, **options):  # type: ignore[no-untyped-def]
            asked.update(options)
            return real(*args, **options)

        monkeypatch.setattr(transfer_training, name, record)
    model = transfer_training.Vgg8(20, 0.04).eval()
    transfer_training.tuning_of(model, Point(method, 0.02, percentile=30), source, 0)
    assert (asked["merge"], asked["by"], asked.get("sever")) == (merge, by, sever)
    assert asked["percentile"] == 30


def test_ablations_change_one_thing_and_keep_what_the_sweep_chose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fake(tmp_path)
    few = replace(TINY, tuning=2, pretraining=2, rates={"deft": (0.01,), "head-only": (0.04, 0.01)})
    for name, other in ablations(few, 48, 40).items():
        changed = [k for k, v in asdict(replace(few, trials=1)).items() if asdict(other)[k] != v]
        assert len(changed) == 1, name
    out = tmp_path / "out"
    with pytest.raises(MissingData, match="without --ablate first"):
        transfer.ablate(out, tmp_path, few)
    run = transfer.run(out, tmp_path, few)
    some = ("half the width", "half the fine-tuning")

    def two(scale, source, target):  # type: ignore[no-untyped-def]
        assert (source, target) == (48, 48)
        return {name: other for name, other in ablations(scale, source, target).items() if name in some}

    monkeypatch.setattr(transfer, "ablations", two)
    found = transfer.ablate(out, tmp_path, few, methods=["deft"])
    assert list(found) == ["as it is", *some]
    final = json.loads((out / "final-0-0-deft-0.01-40-0.json").read_text())
    assert found["as it is"]["deft"]["before"][0] == final["before"]
    half = json.loads((out / "ablation/half-the-fine-tuning/final-0-0-deft-0.01-40-0.json").read_text())
    assert (len(final["history"]), len(half["history"])) == (2, 1)
    assert half["before"] == final["before"]  # the same source model
    narrow = load_file(out / "ablation/half-the-width/source-0-0.safetensors")
    assert len(narrow["27.weight"][0]) < len(load_file(out / "source-0-0.safetensors")["27.weight"][0])
    results = json.loads((out / "results.json").read_text())
    assert results["ablation"] == found
    assert results["methods"].keys() == run.keys()


def test_results_are_there_after_every_trial(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _fake(tmp_path)
    few = replace(TINY, rates={"head-only": (0.04,)})

    def stop(images, scale, seed, done=[]):  # type: ignore[no-untyped-def] # noqa: B006
        done.append(seed)
        if len(done) > 1:
            raise KeyboardInterrupt
        return transfer_training.pretrain(images, scale, seed)

    monkeypatch.setattr(transfer, "pretrain", stop)
    with pytest.raises(KeyboardInterrupt):
        transfer.run(tmp_path / "out", tmp_path, few)
    assert json.loads((tmp_path / "out" / "results.json").read_text())["trials"] == 1
    assert "1 source models" in table(tmp_path / "out" / "results.json")


def test_both_best_epochs_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_vision_transformer_goes_through_and_its_source_stays_to_the_bit(tmp_path: Path) -> None:
    _fake(tmp_path)
    tiny = replace(
        SCALES["vit"],
        width=0.25, trials=1, pretraining=1, tuning=1, sweep=1, batch=16, capped=32, target=48,
        percentiles=(60,), strengths=(50.0,),
        rates={"deft": (0.01,), "deft, absorbed": (0.01,), "head-only": (0.01,), "full": (0.01,)},
    )  # fmt: skip
    out = tmp_path / "out"
    found = transfer.run(out, tmp_path, tiny)
    assert load_file(out / "source-0-0.safetensors")["head.weight"].shape == (30, 16)
    kept = {name for name, row in found.items() if row["difference"] == 0}
    assert kept == {"deft", "deft, absorbed", "head-only"}
    assert all(row["reloaded"] == 0 for row in found.values())
    lines = vit(out / "results.json").splitlines()[2:6]
    assert [line.split(" (")[0] for line in lines] == [f"| {name}" for name in found]
    assert lines[0].endswith("| 0 | 0 |")


def test_pixels_are_centred_for_a_network_without_bn(tmp_path: Path) -> None:
    _fake(tmp_path)
    plain = source_task(data_files(tmp_path, partial=True)["source"], 0, 0, None)
    centred = plain.centred()
    assert abs(float(centred.train[0].mean())) < 0.1  # of bytes that are all as likely
    assert torch.equal(centred.test[0], (plain.test[0] - 0.5) / 0.25)
    assert torch.equal(centred.test[1], plain.test[1])
