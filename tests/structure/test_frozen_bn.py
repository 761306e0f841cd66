"""Frozen batch norm is batch norm, whoever wrote the class."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hope
from hope._util.operators import declare_missing_operators

declare_missing_operators()
from torchvision.ops import FrozenBatchNorm2d  # noqa: E402


class Detr(nn.Module):
    """A frozen BN with its ε in the code."""

    def __init__(self, width: int) -> None:
        super().__init__()
        for name, value in (("weight", 1.0), ("bias", 0.0), ("running_mean", 0.0), ("running_var", 1.0)):
            self.register_buffer(name, torch.full((width,), value))

    def forward(self, x: Tensor) -> Tensor:
        scale = self.weight * (self.running_var + 1e-5).rsqrt()
        bias = self.bias - self.running_mean * scale
        return x * scale.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)


class Doubled(Detr):
    """What holds the same numbers and computes something else."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Buffers(nn.BatchNorm2d):
    """Torch's own, with scale and shift that are no parameters, as in frozen ones."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        for name in ("weight", "bias"):
            value = getattr(self, name).detach()
            delattr(self, name)
            self.register_buffer(name, value)
        self.register_buffer("num_batches_tracked", None)  # frozen ones count none


class Net(nn.Module):
    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.stem, self.n0 = nn.Conv2d(3, 8, 3, padding=1, bias=False), norm(8)
        self.a, self.n1 = nn.Conv2d(8, 12, 3, padding=1, bias=False), norm(12)
        self.b, self.n2 = nn.Conv2d(12, 8, 3, padding=1, bias=False), norm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.n0(self.stem(x)))
        x = torch.relu(x + self.n2(self.b(torch.relu(self.n1(self.a(x))))))
        return self.head(x.mean(dim=(2, 3)))


def made(norm: Any) -> Net:
    net = Net(norm).eval()
    generator = torch.Generator().manual_seed(0)
    numbers = {name: one for name, one in net.state_dict().items() if one.is_floating_point()}
    for name, one in sorted(numbers.items()):
        noise = torch.randn(one.shape, generator=generator)
        one.copy_(0.5 + noise.abs() if name.endswith("var") else noise / max(1, one[0].numel()) ** 0.5)
    return net


X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("method", ["absorb", "hope"])
@pytest.mark.parametrize("norm", [FrozenBatchNorm2d, Detr])
def test_frozen_bn_gives_the_trajectory_of_bn_in_evaluation(norm: Any, method: str) -> None:
    options: Any = {"params": 0.5, "method": method, "streams": True, "evict": False}
    want, got = (hope.encode(made(kind), X, **options) for kind in (Buffers, norm))
    assert got.trajectory.steps == want.trajectory.steps
    assert len(got.trajectory) > 10
    assert got.notes == want.notes
    assert type(got.model.n1) is norm
    torch.testing.assert_close(got.model(X), want.model(X), atol=1e-4, rtol=1e-3)
    assert got.fidelity == pytest.approx(want.fidelity, abs=0.01)


def test_frozen_bn_has_capacities_and_dreams() -> None:
    net = made(FrozenBatchNorm2d)
    assert {"a", "b"} & hope.capacities(net, X).keys()
    near, far = (hope.dream(net, X, count=16, steps=steps)[0][0] for steps in (8, 0))
    assert not torch.equal(near, far)


def test_a_module_that_computes_something_else_is_no_bn() -> None:
    assert hope.inspect(made(Detr), X).eps.keys() == {"n0", "n1", "n2"}
    assert hope.inspect(made(Doubled), X).eps == {}
    assert torch.equal(made(Doubled)(X), made(Doubled)(X))


def test_capturing_leaves_the_module_as_it_was() -> None:
    net = made(FrozenBatchNorm2d)
    before = net(X)
    hope.inspect(net, X)
    assert "forward" not in vars(net.n1)
    assert torch.equal(net(X), before)
