"""New heads: their own BN, saving and loading them, and what is no head."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import hope
from hope.deft import InvalidHead, Tuning, baselines
from hope.deft.heads import known_recipe, recipe
from hope.storage.adapter import Head
from tests.deft.nets import chain, images, made, prepared, train


def _with_bn() -> nn.Module:
    return nn.Sequential(nn.Linear(12, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 4))


def _tuning(net: nn.Module, head: int | nn.Module | None, **options: bool) -> Tuning:
    part = hope.deft.partition(net, images(2), percentile=50, merge=False)
    return hope.deft.prepare(net, part, head=head, **options)


MAKE: dict[str, Callable[[nn.Module], Tuning]] = {
    "deft": lambda net: _tuning(net, _with_bn()),
    "statistics frozen": lambda net: _tuning(net, _with_bn(), freeze_statistics=True),
    "head-only": lambda net: baselines.head_only(net, "12", head=_with_bn()),
}


@pytest.mark.parametrize("name", MAKE)
def test_a_head_with_bn_learns_its_statistics_and_comes_back(name: str, tmp_path: Path) -> None:
    net = made(chain())
    tuning = MAKE[name](net)
    train(tuning.model, torch.optim.SGD(tuning.model.parameters(), lr=0.1))
    bn = tuning.model.get_submodule("12.1")
    assert bn.running_mean.abs().sum() > 0
    assert bn.num_batches_tracked == 4
    tuning.save_pretrained(tmp_path)
    again = hope.deft.load(tmp_path, net, head=_with_bn())
    state, other = tuning.model.state_dict(), again.model.state_dict()
    assert state.keys() == other.keys()
    assert all(torch.equal(value, other[key]) for key, value in state.items())


@pytest.mark.parametrize("merge", [False, True])
def test_statistics_are_stored_where_they_differ(merge: bool, tmp_path: Path) -> None:
    net = made(chain())
    _, tuning = prepared(net, merge=merge, freeze_statistics=True)
    train(tuning.model, torch.optim.SGD(tuning.model.parameters(), lr=0.1))
    tuning.save_pretrained(tmp_path)
    (arrays,) = tmp_path.glob("*.safetensors")
    found = load_file(arrays)
    start = net.state_dict()
    for name, value in tuning.statistics.items():
        assert (f"statistics/{name}" in found) == (not torch.equal(value, start[name]))
        now = tuning.model.get_buffer(name)
        assert (f"buffers/{name}" in found) == (not torch.equal(value, now))
    assert merge == any(key.startswith("statistics/") for key in found)


@pytest.mark.parametrize("head", [nn.Linear(12, 4, bias=False), nn.Linear(12, 3), 1, None])
def test_plain_heads_are_made_again(head: int | nn.Module | None, tmp_path: Path) -> None:
    net = made(chain())
    tuning = _tuning(net, head)
    tuning.save_pretrained(tmp_path)
    again = hope.deft.load(tmp_path, net)
    assert torch.equal(again.model.eval()(images()), tuning.model.eval()(images()))


def test_a_convolution_is_made_again_with_its_options(tmp_path: Path) -> None:
    last = [nn.Conv2d(8, 5, 1), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    net = made(nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), *last))
    tuning = _tuning(net, nn.Conv2d(8, 4, 3, padding=1, padding_mode="reflect", bias=False))
    tuning.save_pretrained(tmp_path)
    again = hope.deft.load(tmp_path, net)
    assert torch.equal(again.model.eval()(images()), tuning.model.eval()(images()))
    with pytest.raises(InvalidHead, match=r"padding is \[0, 0\] and was \[1, 1\]"):
        hope.deft.load(tmp_path, net, head=nn.Conv2d(8, 4, 3, padding_mode="reflect", bias=False))


@pytest.mark.parametrize(
    ("saved", "given", "words"),
    [
        (1, nn.Linear(12, 4), r"weight is \[4, 12\] and was \[1, 12\]"),
        (4, nn.Linear(12, 5), "out_features is 5 and was 4"),
        (4, nn.Linear(12, 4, bias=False), r"bias is False and was True"),
        (nn.Linear(12, 4, bias=False), nn.Linear(12, 4), "bias is True and was False"),
        (_with_bn(), nn.Sequential(nn.Linear(12, 6), nn.Linear(6, 4)), "3.bias is not there"),
        (4, nn.Identity(), "weight is not there"),
    ],
)
def test_a_head_unlike_the_saved_one_is_refused(
    saved: int | nn.Module, given: nn.Module, words: str, tmp_path: Path
) -> None:
    net = made(chain())
    _tuning(net, saved).save_pretrained(tmp_path)
    with pytest.raises(InvalidHead, match=f"{words}.*head="):
        hope.deft.load(tmp_path, net, head=given)


def test_the_sources_own_module_is_copied() -> None:
    net = made(chain())
    tuning = _tuning(net, net.get_submodule("12"))
    assert tuning.model.get_submodule("12") is not net.get_submodule("12")
    own = nn.Linear(12, 4)
    assert _tuning(net, own).model.get_submodule("12") is own


@pytest.mark.parametrize("head", ["10", True, 2.0, 0, -3])
def test_what_is_no_head_is_refused(head: object) -> None:
    with pytest.raises(InvalidHead, match="number of classes"):
        _tuning(made(chain()), head)


def test_a_module_without_parameters_is_no_head() -> None:
    with pytest.raises(InvalidHead, match="2 has none"):
        baselines.full(made(chain()), "2", head=4)


def test_what_an_old_folder_does_not_tell_is_as_in_the_sources_head_if_that_is_of_its_kind() -> None:
    saved = Head(name="12", kind="Linear", recipe={"kind": "Linear", "out_features": 3}, shapes=None)
    assert known_recipe(saved, nn.Linear(8, 5, bias=False)) == recipe(nn.Linear(8, 3, bias=False))
    for other in (nn.Conv2d(8, 5, 1), nn.Sequential(nn.Linear(8, 5))):
        assert known_recipe(saved, other) is None
