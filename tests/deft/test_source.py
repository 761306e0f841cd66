"""Going back to the source task and leaving everything as it was; heads; saving."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import hope
from hope.deft import Tuning
from hope.deft.store import PLAN
from tests.deft.nets import Residual, chain, core_entries, images, made, prepared, slack_entries, train


def _everything(tuning: Tuning) -> dict[str, object]:
    state = {name: value.clone() for name, value in tuning.model.state_dict().items()}
    return {
        "state": state,
        "modes": [module.training for module in tuning.model.modules()],
        "head": tuning.model.get_submodule(tuning.head),
        "parameters": [id(parameter) for parameter in tuning.model.parameters()],
        "needs": [parameter.requires_grad for parameter in tuning.model.parameters()],
    }


def _assert_same(before: dict[str, object], after: dict[str, object]) -> None:
    assert before.keys() == after.keys()
    for name in ("modes", "head", "parameters", "needs"):
        assert before[name] == after[name]
    old, new = before["state"], after["state"]
    assert isinstance(old, dict)
    assert isinstance(new, dict)
    assert old.keys() == new.keys()
    assert all(torch.equal(old[name], new[name]) for name in old)


@pytest.fixture
def tuned() -> Tuning:
    _, tuning = prepared(made(Residual()))
    train(tuning.model, torch.optim.SGD(tuning.model.parameters(), lr=0.1, momentum=0.9))
    tuning.model.train()
    tuning.model.get_submodule("first.bn1").eval()  # modes of single modules are put back, too
    return tuning


def test_source_leaves_the_model_as_it_found_it(tuned: Tuning) -> None:
    before = _everything(tuned)
    with tuned.source() as model:
        assert model is tuned.model
        assert not any(module.training for module in model.modules())
        assert model(images()).shape == (8, 5)
        model.train()
        model(images())  # even statistics that drift in here are put back
    _assert_same(before, _everything(tuned))
    assert tuned.model(images()).shape == (8, 4)


def test_source_leaves_the_model_as_it_found_it_after_an_exception(tuned: Tuning) -> None:
    before = _everything(tuned)
    with pytest.raises(ZeroDivisionError), tuned.source(), tuned.source():
        _ = 1 / 0
    _assert_same(before, _everything(tuned))


@pytest.mark.parametrize("merge", [False, True])
def test_the_source_task_is_what_it_was_right_after_masking(merge: bool) -> None:
    _, tuning = prepared(made(Residual()), merge=merge)
    with tuning.source() as model, torch.no_grad():
        before = model(images())
    train(tuning.model, torch.optim.AdamW(tuning.model.parameters(), lr=0.01, weight_decay=0.5))
    with tuning.source() as model, torch.no_grad():
        assert torch.equal(model(images()), before)


@pytest.mark.parametrize("net", [chain, Residual])
@pytest.mark.parametrize("sever", ["mask", "absorb"])
def test_the_source_task_outlives_a_diverged_slack(net: Callable[[], nn.Module], sever: str) -> None:
    model = made(net())
    part = hope.deft.partition(model, images(2), percentile=50)
    tuning = hope.deft.prepare(model, part, head=4, sever=sever)
    with tuning.source() as source, torch.no_grad():
        before = source(images())
    tuning.masks_source = False  # with slack as it is: finite, and just as little heard
    with tuning.source(masked=True) as source, torch.no_grad():
        assert torch.equal(source(images()), before)
    tuning.masks_source = True
    with torch.no_grad():
        for name, mask in tuning.frozen.items():
            tensor = tuning.model.state_dict()[name]
            tensor.masked_fill_(~mask, float("-inf" if name.endswith("bias") else "inf"))
            if name.endswith("running_mean"):
                variance = tuning.model.get_buffer(name.replace("mean", "var"))
                variance.masked_fill_(~mask, float("nan"))
    start = {name: value.clone() for name, value in tuning.model.state_dict().items()}
    with tuning.source() as source, torch.no_grad():
        assert torch.equal(source(images()), before)
    with pytest.raises(ZeroDivisionError), tuning.source(), tuning.source():
        _ = 1 / 0
    assert tuning.model.state_dict().keys() == start.keys()
    for name, value in tuning.model.state_dict().items():
        torch.testing.assert_close(value, start[name], rtol=0, atol=0, equal_nan=True)
    with tuning.source(masked=False) as source, torch.no_grad():  # a head that listens hears it
        assert source(images()).isnan().any()


def test_a_baseline_keeps_what_it_learned_when_the_source_head_is_masked() -> None:
    net = made(chain())
    part = hope.deft.partition(net, images(2), percentile=50, merge=False)
    tuning = hope.deft.baselines.full(net, part, head=4)
    with tuning.source(masked=True) as model:
        assert torch.equal(model.get_parameter("4.weight"), net.get_parameter("4.weight"))


def test_a_look_at_the_source_does_not_disturb_a_backward_pass() -> None:
    _, tuning = prepared(made(chain()))
    loss = tuning.model.train()(images()).square().sum()
    with tuning.source() as model, torch.no_grad():
        model(images())
    loss.backward()
    assert tuning.model.get_parameter("4.weight").grad.any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("sever", ["mask", "absorb"])
def test_the_source_task_follows_the_models_type(dtype: torch.dtype, sever: str) -> None:
    net = made(chain())
    part = hope.deft.partition(net, images(2), percentile=50)
    tuning = hope.deft.prepare(net, part, head=4, sever=sever)
    with tuning.source() as model, torch.no_grad():
        want = model(images())
    tuning.model.to(dtype)
    with tuning.source() as model, torch.no_grad():
        found = model(images().to(dtype))
    assert found.dtype == dtype
    near = 1e-5 if dtype == torch.float64 else 0.1
    torch.testing.assert_close(found.float(), want, rtol=near, atol=near)


def test_without_slack_the_source_task_is_the_source_model() -> None:
    net = made(Residual())
    part = hope.deft.partition(net, images(2), percentile=0, merge=False)
    tuning = hope.deft.prepare(net, part, head=4)
    with tuning.source() as model, torch.no_grad():
        assert torch.equal(model(images()), net(images()))


def test_the_source_head_does_not_listen_to_slack() -> None:
    part, tuning = prepared(made(chain()))
    with tuning.source() as model:
        weight = model.get_parameter("12.weight")
        assert not weight[:, ~part.core["9"]].any()
        assert weight[:, part.core["9"]].abs().sum() > 0
    with tuning.source(masked=False) as model:
        assert model.get_parameter("12.weight")[:, ~part.core["9"]].abs().sum() > 0


# ---- the model and its head --------------------------------------------------------------------------------


def test_preparing_changes_no_model_but_its_own() -> None:
    net = made(chain())
    before = copy.deepcopy(net.state_dict())
    _, tuning = prepared(net, merge=True)
    train(tuning.model, torch.optim.SGD(tuning.model.parameters(), lr=0.1))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(parameter.requires_grad for parameter in net.parameters())


def test_the_state_dict_loads_into_the_plain_model(tuned: Tuning) -> None:
    plain = Residual()
    plain.head = nn.Linear(16, 4)
    plain.load_state_dict(tuned.model.state_dict())
    x = images()
    assert torch.equal(plain.eval()(x), tuned.model.eval()(x))
    assert type(tuned.model) is Residual


def test_a_partition_belongs_to_its_weights() -> None:
    part = hope.deft.partition(made(chain()), images(2))
    with pytest.raises(hope.CheckpointMismatch, match=r"hope\.deft\.partition"):
        hope.deft.prepare(made(chain(), seed=1), part)


def test_heads_are_made_given_or_kept() -> None:
    net = made(chain())
    part = hope.deft.partition(net, images(2), percentile=20)
    assert hope.deft.prepare(net, part, head=7).model(images()).shape == (8, 7)
    kept = hope.deft.prepare(net, part, head=None)
    assert torch.equal(kept.model.get_parameter("12.bias"), net.get_parameter("12.bias"))
    two = nn.Sequential(nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 2))
    assert hope.deft.prepare(net, part, head=two).model(images()).shape == (8, 2)
    with pytest.raises(hope.deft.InvalidHead, match="number of classes"):
        hope.deft.prepare(net, part, head=0)


def test_a_convolution_as_head() -> None:
    net = made(
        nn.Sequential(
            nn.Conv2d(3, 8, 3),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.Conv2d(8, 5, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
    )
    part = hope.deft.partition(net, images(2))
    assert part.head == "3"
    tuning = hope.deft.prepare(net, part, head=2)
    assert tuning.model(images()).shape == (8, 2)
    with tuning.source() as model:
        assert model(images()).shape == (8, 5)


def test_trainable_parameters_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    part, tuning = prepared(made(chain()))
    free, total = tuning.trainable()
    assert total == sum(parameter.numel() for parameter in tuning.model.parameters())
    slack = {name: int((~mask).sum()) for name, mask in part.core.items()}
    want = slack["0"] * (27 + 2) + slack["4"] * (12 * 9 + 1 + 2) + slack["9"] * (12 + 2) + 4 * 12 + 4
    assert free == want
    tuning.print_trainable_parameters()
    assert capsys.readouterr().out.startswith(f"trainable params: {free:,} || all params: {total:,} || ")


# ---- saving ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("merge", [False, True])
@pytest.mark.parametrize("freeze", [False, True])
def test_a_saved_tuning_comes_back(tmp_path: Path, merge: bool, freeze: bool) -> None:
    net = made(chain())
    _, tuning = prepared(net, merge=merge, freeze_statistics=freeze)
    train(tuning.model, torch.optim.AdamW(tuning.model.parameters(), lr=0.01))
    tuning.save_pretrained(tmp_path)
    again = Tuning.from_pretrained(tmp_path, net)
    state, other = tuning.model.state_dict(), again.model.state_dict()
    assert state.keys() == other.keys()
    assert all(torch.equal(value, other[name]) for name, value in state.items())
    assert again.trainable() == tuning.trainable()
    with again.source() as one, tuning.source() as two, torch.no_grad():
        assert torch.equal(one(images()), two(images()))
    core, slack = core_entries(again), slack_entries(again)
    for one in (again, tuning):  # and goes on as if nothing had happened
        train(one.model, torch.optim.AdamW(one.model.parameters(), lr=0.01, weight_decay=0.5))
    assert all(torch.equal(value, core_entries(again)[name]) for name, value in core.items())
    assert any(not torch.equal(value, slack_entries(again)[name]) for name, value in slack.items())
    torch.testing.assert_close(dict(again.model.state_dict()), dict(tuning.model.state_dict()))


def test_saving_twice_and_again_after_loading_keeps_one_whole_folder(tmp_path: Path) -> None:
    net = made(chain())
    _, tuning = prepared(net, merge=True)
    tuning.save_pretrained(tmp_path)
    train(tuning.model, torch.optim.SGD(tuning.model.parameters(), lr=0.1))
    tuning.save_pretrained(tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".safetensors"]
    again = hope.deft.load(tmp_path, net)
    again.save_pretrained(tmp_path)
    third = hope.deft.load(tmp_path, net)
    assert all(torch.equal(v, third.model.state_dict()[n]) for n, v in tuning.model.state_dict().items())


def test_only_what_changed_is_stored(tmp_path: Path) -> None:
    net = made(chain(48))
    part = hope.deft.partition(net, images(2), percentile=10, merge=False)
    tuning = hope.deft.prepare(net, part, head=4)
    tuning.save_pretrained(tmp_path)
    (arrays,) = tmp_path.glob("*.safetensors")
    found = load_file(arrays)
    split = {n for n, m in tuning.frozen.items() if m.any() and not m.all()}
    free_all = {n for n, m in tuning.frozen.items() if not m.any() and n in dict(net.named_parameters())}
    assert found.keys() == (
        {f"{kind}/{name}" for name in split for kind in ("frozen", "values", "places")}
        - {f"{kind}/{name}" for name in split if name.endswith("mean") for kind in ("values", "places")}
        | {f"values/{name}" for name in free_all}
        | {"head/weight", "head/bias", "columns/weight"}
    )  # no statistics, and no masks where there is nothing to tell
    stored = sum(v.numel() for k, v in found.items() if k.startswith(("values/", "head/")))
    free, total = tuning.trainable()
    severed = sum(int(mask.expand(net.get_parameter(n).shape).sum()) for n, mask in part.severed.items())
    assert stored == free + severed
    assert stored < total / 3


def test_a_folder_and_a_model_must_belong_together(tmp_path: Path) -> None:
    net = made(chain())
    _, tuning = prepared(net)
    tuning.save_pretrained(tmp_path)
    with pytest.raises(hope.CheckpointMismatch, match="source checkpoint"):
        hope.deft.load(tmp_path, made(chain(), seed=3))
    plan = json.loads((tmp_path / PLAN).read_text())
    (tmp_path / PLAN).write_text(json.dumps({**plan, "method": "full"}))
    with pytest.raises(hope.DamagedFolder, match="altered"):
        hope.deft.load(tmp_path, net)
    (tmp_path / PLAN).write_text("{")
    with pytest.raises(hope.DamagedFolder, match="not JSON"):
        hope.deft.load(tmp_path, net)
    tuning.save_pretrained(tmp_path)
    (arrays,) = tmp_path.glob("*.safetensors")
    save_file({"values/0.weight": torch.zeros(1)}, arrays)
    with pytest.raises(hope.DamagedFolder, match="altered"):
        hope.deft.load(tmp_path, net)
    with pytest.raises(hope.DamagedFolder, match="no adapter"):
        hope.deft.load(tmp_path / "nowhere", net)


def test_a_head_of_ones_own_is_passed_again_when_loading(tmp_path: Path) -> None:
    net = made(chain())
    part = hope.deft.partition(net, images(2))

    def two() -> nn.Module:
        return nn.Sequential(nn.Linear(12, 6), nn.ReLU(), nn.Linear(6, 2))

    tuning = hope.deft.prepare(net, part, head=two())
    tuning.save_pretrained(tmp_path)
    with pytest.raises(hope.deft.InvalidHead, match="head="):
        hope.deft.load(tmp_path, net)
    again = Tuning.from_pretrained(tmp_path, net, head=two())
    assert torch.equal(again.model.eval()(images()), tuning.model.eval()(images()))
