"""What a captured graph says of modules."""

from __future__ import annotations

import copy
from collections import OrderedDict
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.trace.capture import capture
from hope.trace.program import read_program


class Step(nn.Module):
    """A layer and an activation that all steps have in common."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.linear, self.act = nn.Linear(4, 4), act

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.act(self.linear(x))
        return out


class Parts(nn.Module):
    """Runs parts of a list: some of them, the first, the last."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.ReLU()
        self.layers = nn.ModuleList(Step(act) for _ in range(5))

    def forward(self, x: Tensor) -> Tensor:
        for part in (self.layers[1:4:2], self.layers[:1], self.layers[2:3], self.layers[-1:]):
            for layer in part:
                x = x + layer(x)
        return x


def test_modules_of_a_part_of_a_list_go_by_the_names_that_the_model_has_for_them() -> None:
    net = Parts()
    program = read_program(capture(net, torch.zeros(1, 4)))
    ran = [one.module for one in program if one.operator == "linear"]
    assert ran == [f"layers.{k}.linear" for k in (1, 3, 0, 2, 4)]
    known = {name for name, _ in net.named_modules(remove_duplicate=False)}
    assert {path for one in program for path in one.modules} <= known
    assert len(hope.inspect(net, torch.zeros(1, 4)).blocks) == 5


class LazyMatrices(nn.Module):
    """Makes its buffer when it first runs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.register_buffer("table", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.table is None:
            self.table = torch.arange(6.0)
        out: Tensor = self.linear(x) + self.table
        return out


def test_buffers_that_a_forward_makes_are_left_to_it() -> None:
    net, x = LazyMatrices(), torch.zeros(1, 4)
    hope.inspect(net, x)
    assert net.table is None
    assert net(x).shape == (1, 6)
    table = net.table
    hope.inspect(net, x)
    assert net.table is table


class Keeps(nn.Module):
    """Keeps losses, and a layer that it makes when it first runs."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.late = nn.Linear(4, 6), None
        self.losses: dict[str, Tensor] = {}
        self.all: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        if self.late is None:
            self.late = nn.Linear(6, 3)
        self.loss = self.losses["loss"] = out.square().mean()
        self.all.append(self.loss)
        last: Tensor = self.late(out)
        return last


def test_what_a_forward_keeps_in_the_model_is_taken_out_again() -> None:
    net, x = Keeps(), torch.zeros(1, 4)
    before = set(vars(net))
    with suppress(hope.HopeError):
        hope.inspect(net, x)
    assert set(vars(net)) == before
    assert net.late is None
    assert not net.losses
    assert not net.all
    with torch.no_grad():
        assert type(net(x)) is Tensor
    assert hope.encode(net, x, params=1.0, progress=False).steps == 0
    assert type(net.loss) is Tensor
    copy.deepcopy(net)


class Counting(nn.Module):
    """Counts its calls in one buffer and replaces another."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.bn, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
        self.calls: torch.Tensor
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("mean", torch.full((4,), torch.nan))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.mean = x.mean(dim=0)
        y: torch.Tensor = self.last(torch.relu(self.bn(self.first(x))))
        return y


@pytest.mark.parametrize("method", ["absorb", "paper"])
def test_no_call_changes_the_buffers_of_the_model(method: str) -> None:
    net, example = Counting().eval(), torch.randn(3, 4)
    buffers = dict(net.named_buffers())
    before = {name: tensor.clone() for name, tensor in buffers.items()}
    encoding = hope.encode(net, example, density=0.5, method=method, progress=False)
    encoding.fidelities()
    hope.fidelity(net, encoding.model, example)
    hope.inspect(net, example)
    for name, tensor in net.named_buffers():
        assert tensor is buffers[name]
        assert torch.equal(tensor, before[name].to(tensor)) or bool(tensor.isnan().all())


class Inverting(nn.Module):
    """Its shapes fit, its numbers do not."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.last(torch.relu(self.first(x)))
        return torch.linalg.cholesky(-x.T @ x) @ y.T


def test_a_model_that_fails_on_its_example_is_refused() -> None:
    with pytest.raises(hope.InvalidExample, match=r"Inverting cannot run on this example .*not positive"):
        hope.encode(Inverting().eval(), torch.ones(4, 4), density=0.5, method="l1-in")


class Wrapper(nn.Module):
    """Has a `train` of its own, and a configuration that cannot be changed."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
        self.config = Frozen(width=8)

    def train(self, mode: bool = True) -> Wrapper:
        raise RuntimeError("a training run starts")

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


class Frozen(OrderedDict[str, int]):
    """A dict that cannot be changed once it is made."""

    def __init__(self, **values: int) -> None:
        super().__init__(values)
        self.made = True

    def update(self, *args: Any, **values: Any) -> None:
        raise TypeError("You cannot use update on a Frozen")

    def clear(self) -> None:
        raise TypeError("You cannot use clear on a Frozen")


def test_neither_a_train_of_its_own_nor_a_frozen_dict_gets_in_the_way() -> None:
    net = Wrapper()
    net.layers.train()
    encoding = hope.encode(net, torch.zeros(2, 4), density=0.5, method="l1-in", progress=False)
    assert encoding.size.neurons == 4
    assert all(module.training for module in net.modules())


def test_ultralytics_wrapper_is_told_from_its_network() -> None:
    kind = type("YOLO", (nn.Module,), {"__module__": "ultralytics.engine.model"})
    with pytest.raises(hope.UnsupportedModel, match=r"got ultralytics' YOLO: pass its \.model"):
        hope.inspect(kind(), torch.zeros(1, 3, 8, 8))
