"""What makes no sense is refused before any work, with the way out."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.deft import InvalidPartition, InvalidPenalty, NotSeparable, baselines
from hope.deft.statistics import snapshot
from hope.errors import InvalidExample
from tests.deft.nets import Residual, chain, images, made, prepared


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"percentile": 101}, "between 0 and 100, got 101"),
        ({"percentile": "40"}, "between 0 and 100, got '40'"),
        ({"percentile": True}, "between 0 and 100, got True"),
        ({"percentile": float("nan")}, "between 0 and 100, got nan"),
        ({"fidelity": 0}, "fidelity must be above 0 and at most 1, got 0"),
        ({"fidelity": 1.01}, "at most 1, got 1.01"),
        ({"fidelity": True}, "above 0.*got True"),
        ({"fidelity": "0.9"}, "above 0.*got '0.9'"),
        ({"fidelity": float("nan")}, "at most 1, got nan"),
        ({"fidelity": 0.9, "percentile": 20}, "fidelity= and percentile= cannot be combined"),
        ({"sever": "cut"}, "sever must be one of refit, mask, absorb, got 'cut'"),
        ({"by": "size"}, "prune-cost, capacity"),
        ({"merge": "all"}, "'sum'"),
        ({"core": ["4", "layr*"]}, r"core must be patterns of layers.*0, 4, 9.*got 'layr\*'.*hope\.inspect"),
        ({"core": "layr"}, "core must be patterns of layers.*got 'layr'"),
    ],
)
def test_what_is_no_partition_is_refused(options: dict[str, object], words: str) -> None:
    with pytest.raises(InvalidPartition, match=words):
        hope.deft.partition(made(chain()), images(2), **options)


def test_one_pattern_is_as_good_as_a_list() -> None:
    net = made(Residual())
    one, several = (hope.deft.partition(net, images(2), core=core) for core in ("first.*", ["first.*"]))
    assert one.core["first.conv1"].all()
    assert {name: mask.tolist() for name, mask in one.core.items()} == {
        name: mask.tolist() for name, mask in several.core.items()
    }


@pytest.mark.parametrize("name", ["4.weight", "10.bias", "5.running_var"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_by_name(name: str, value: float) -> None:
    net = made(chain())
    net.state_dict()[name].view(-1)[3] = value
    with pytest.raises(InvalidPartition, match=f"{name} must be finite, got NaN or infinite"):
        hope.deft.partition(net, images(2))


def test_other_buffers_may_be_infinite() -> None:
    net = made(chain())
    net.register_buffer("mask", torch.full((2, 2), float("-inf")))
    assert hope.deft.partition(net, images(2)).head == "12"


@pytest.mark.parametrize("head", ["4", "1", "9"])
def test_a_head_in_the_middle_of_the_network_is_refused(head: str) -> None:
    with pytest.raises(NotSeparable, match=f"^{head} cannot be the head.*weight reads its output.*head="):
        hope.deft.partition(made(chain()), images(2), head=head)


class _Scored(nn.Module):
    """A softmax behind the head."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU())
        self.last = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.log_softmax(self.last(self.body(x)), dim=1)


def test_a_head_behind_which_something_stands_must_be_named() -> None:
    net = made(_Scored())
    with pytest.raises(NotSeparable, match=r"a layer of _Scored must write its outputs.*softmax.*head="):
        hope.deft.partition(net, torch.zeros(2, 6))
    part = hope.deft.partition(net, torch.zeros(2, 6), head="last")
    assert hope.deft.prepare(net, part, head=2).model(torch.zeros(2, 6)).shape == (2, 2)


@pytest.mark.parametrize("other", [chain(16), Residual()])
def test_the_anatomy_of_another_model_is_refused(other: nn.Module) -> None:
    anatomy = hope.inspect(made(other), images(2))
    with pytest.raises(hope.CheckpointMismatch, match=r"must be this model's.*hope\.inspect"):
        hope.deft.partition(made(chain()), anatomy=anatomy)


def test_a_baseline_refuses_the_partition_of_another_model() -> None:
    part = hope.deft.partition(made(chain()), images(2))
    for method in (baselines.full, baselines.head_only, baselines.bn_tuning, baselines.l2_sp):
        with pytest.raises(hope.CheckpointMismatch, match=r"hope\.deft\.partition"):
            method(made(chain(), seed=1), part)


def _importance(net: nn.Module, **changes: Tensor | None) -> dict[str, Tensor]:
    found = {name: torch.ones_like(parameter) for name, parameter in net.named_parameters()}
    found.update({name.replace("_", "."): tensor for name, tensor in changes.items()})
    return {name: tensor for name, tensor in found.items() if tensor is not None}


PENALTIES: dict[str, tuple[Callable[[nn.Module], object], str]] = {
    "no batches": (lambda net: hope.deft.fisher(net, []), "at least one example.*batches"),
    "EWC without batches": (
        lambda net: baselines.ewc(net, "12", batches=[]),
        "at least one example.*batches",
    ),
    "no importance": (lambda net: baselines.ewc(net, "12", importance={}), "0.weight.*hope.deft.fisher"),
    "one is missing": (
        lambda net: baselines.ewc(net, "12", importance=_importance(net, **{"4_weight": None})),
        "at 4.weight: ",
    ),
    "one too many": (
        lambda net: baselines.ewc(net, "12", importance=_importance(net, x_y=torch.ones(1))),
        "at x.y: ",
    ),
    "wrong shape": (
        lambda net: baselines.ewc(net, "12", importance=_importance(net, **{"4_bias": torch.ones(1)})),
        "at 4.bias: ",
    ),
    "EWC": (lambda net: baselines.ewc(net, "12", importance={}, strength=-1), "strength must be .*got -1"),
    "L2-SP": (lambda net: baselines.l2_sp(net, "12", strength=-0.1), "strength must be .*got -0.1"),
    "L2-SP's head": (
        lambda net: baselines.l2_sp(net, "12", head_strength=-1),
        "head_strength must be .*got -1",
    ),
    "NaN": (lambda net: baselines.l2_sp(net, "12", strength=float("nan")), "strength must be .*got nan"),
}


@pytest.mark.parametrize("name", PENALTIES)
def test_what_is_no_penalty_is_refused(name: str) -> None:
    call, words = PENALTIES[name]
    with pytest.raises(InvalidPenalty, match=words):
        call(made(chain()))


def test_the_heads_importance_may_be_left_out() -> None:
    net = made(chain())
    some = _importance(net, **{"12_weight": None})
    assert baselines.ewc(net, "12", importance=some).penalty() == 0


@pytest.mark.parametrize("shape", [(4, 1, 8, 8), (4, 3, 1, 1), (4, 3)])
def test_inputs_that_the_network_cannot_run_on_are_refused_in_one_line(shape: tuple[int, ...]) -> None:
    _, tuning = prepared(made(chain()))
    model = tuning.model.train()
    statistics = snapshot(model)
    with pytest.raises(
        InvalidExample, match=rf"must have a size .* got {re.escape(str(shape))} .*: resize"
    ) as e:
        model(torch.zeros(shape))
    assert len(str(e.value).splitlines()) == 1
    assert model.training
    for size in (8, 12):  # the second was never seen
        model(images(4, size=size))
    assert any(not torch.equal(value, snapshot(model)[name]) for name, value in statistics.items())
    merged = tuning.merge_and_unload()
    assert not merged._forward_pre_hooks


def test_trying_a_size_changes_nothing() -> None:
    net = made(chain())
    part = hope.deft.partition(net, images(2), free=0.3)
    tuning, other = (hope.deft.prepare(net, part) for _ in range(2))
    other.model._forward_pre_hooks.clear()
    other.model._forward_pre_hooks_with_kwargs.clear()
    outs = [one.model.train()(images()) for one in (tuning, other)]
    assert torch.equal(*outs)
    one, two = (snapshot(t.model) for t in (tuning, other))
    assert all(torch.equal(one[name], two[name]) for name in one)
