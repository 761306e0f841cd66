"""The baselines: what each lets move, and EWC's Fisher information against a loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import hope
from hope.deft import Tuning, baselines
from tests.deft.nets import Residual, chain, images, made, train


def _labels(count: int) -> torch.Tensor:
    return torch.arange(count) % 5


def test_fisher_is_a_loop_of_squared_gradients_of_single_examples() -> None:
    net = made(Residual()).train()
    x, y = images(13), _labels(13)
    found = hope.deft.fisher(net, [(x[:8], y[:8]), (x[8:], y[8:])], at_once=3)
    assert net.training
    net.eval()
    want = {name: torch.zeros_like(parameter) for name, parameter in net.named_parameters()}
    for one, label in zip(x, y, strict=True):
        net.zero_grad()
        nn.functional.cross_entropy(net(one[None]), label[None]).backward()
        for name, parameter in net.named_parameters():
            assert parameter.grad is not None
            want[name] += parameter.grad.square() / 13
    for name, value in want.items():
        torch.testing.assert_close(found[name], value, rtol=1e-3, atol=1e-9)
    net.zero_grad()
    nn.functional.cross_entropy(net(x), y).backward()
    batch = net.get_parameter("head.weight").grad
    assert batch is not None
    assert not torch.allclose(found["head.weight"], batch.square(), rtol=0.1)


def test_ewc_adds_half_lambda_fisher_times_the_squared_way(tmp_path: Path) -> None:
    net = made(chain())
    data = [(images(10), _labels(10))]
    importance = hope.deft.fisher(net, data)
    tuning = baselines.ewc(net, "12", batches=data, strength=3.0, head=4)
    assert tuning.penalty() == 0
    with torch.no_grad():
        for parameter in tuning.model.parameters():
            parameter += 0.1
    want = sum(1.5 * (f * 0.01).sum() for name, f in importance.items() if not name.startswith("12."))
    torch.testing.assert_close(tuning.penalty(), torch.as_tensor(want), rtol=1e-3, atol=0)
    tuning.penalty().backward()
    assert tuning.model.get_parameter("12.weight").grad is None  # the new head is not held
    tuning.save_pretrained(tmp_path)
    again = hope.deft.load(tmp_path, net)
    torch.testing.assert_close(again.penalty(), tuning.penalty())


def test_l2_sp_draws_the_backbone_to_the_source_and_the_head_to_zero() -> None:
    net = made(chain())
    tuning = baselines.l2_sp(net, "12", strength=2.0, head_strength=0.5, head=4)
    head = tuning.model.get_submodule("12")
    zero = 0.25 * sum(parameter.detach().square().sum() for parameter in head.parameters())
    torch.testing.assert_close(tuning.penalty().detach(), torch.as_tensor(zero))
    with torch.no_grad():
        tuning.model.get_parameter("0.weight").add_(0.1)
    more = 0.01 * tuning.model.get_parameter("0.weight").numel()
    torch.testing.assert_close(tuning.penalty().detach(), zero + more, rtol=1e-4, atol=0)


METHODS: dict[str, tuple[Callable[..., Tuning], Callable[[str, nn.Parameter], bool]]] = {
    "full": (baselines.full, lambda name, p: True),
    "head-only": (baselines.head_only, lambda name, p: name.startswith("12.")),
    "bn-tuning": (baselines.bn_tuning, lambda name, p: name.startswith("12.") or p.ndim == 1),
    "l2-sp": (baselines.l2_sp, lambda name, p: True),
}


@pytest.mark.parametrize("name", METHODS)
def test_a_baseline_moves_what_it_should_and_nothing_else(name: str, tmp_path: Path) -> None:
    net = made(chain())
    method, moves = METHODS[name]
    part = hope.deft.partition(net, images(2), merge=False)
    tuning = method(net, part, head=4)
    assert tuning.method == name
    before = {key: p.detach().clone() for key, p in tuning.model.named_parameters()}
    optimizer = torch.optim.AdamW(tuning.model.parameters(), lr=0.01, weight_decay=0.1)
    train(tuning.model, optimizer, loss=lambda z, y: nn.functional.cross_entropy(z, y) + tuning.penalty())
    for key, parameter in tuning.model.named_parameters():
        assert moves(key, parameter) != torch.equal(parameter.detach(), before[key]), key
    stays = torch.equal(tuning.model.get_buffer("1.running_mean"), net.get_buffer("1.running_mean"))
    assert stays == (name == "head-only")
    with tuning.source() as model, torch.no_grad():
        assert model(images()).shape == (8, 5)
        if name == "head-only":
            assert torch.equal(model(images()), net(images()))
        assert torch.equal(model.get_parameter("12.weight"), net.get_parameter("12.weight"))
    with tuning.source(masked=True) as model:
        assert not model.get_parameter("12.weight")[:, ~part.core["9"]].any()
    tuning.save_pretrained(tmp_path)
    again = hope.deft.load(tmp_path, net)
    assert all(torch.equal(v, again.model.state_dict()[k]) for k, v in tuning.model.state_dict().items())


def test_a_head_that_is_not_there_is_refused() -> None:
    with pytest.raises(hope.deft.InvalidHead, match="head must be a module of this Sequential, got 'fc'"):
        baselines.full(made(chain()), "fc")
    with pytest.raises(hope.deft.InvalidPenalty, match="batches="):
        baselines.ewc(made(chain()), "12")
