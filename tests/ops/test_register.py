"""Operators that the package does not know: left alone before they are registered, followed after it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hope
from hope import ops
from hope.ops.elementwise import per_channel
from hope.ops.registry import Form, Inputs, MomentPreserving, Signal
from hope.reasons import Cause
from hope.statistics.propagated import Propagated
from hope.structure.channel_tracer import ChannelTracer
from hope.trace.program import Operation
from hope.trace.values import Value
from tests.support import check_cut, randomise


@torch.library.custom_op("hopetests::shrink", mutates_args=())
def shrink(x: Tensor) -> Tensor:
    return functional.softshrink(x, 0.2)


@torch.library.custom_op("hopetests::scale", mutates_args=())
def scale(x: Tensor, weight: Tensor) -> Tensor:
    return x * weight[:, None, None]


shrink.register_fake(torch.empty_like)
scale.register_fake(lambda x, weight: torch.empty_like(x))
EXAMPLE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Two operators of one's own between two convolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.bn, self.b = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3)
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.b(scale(shrink(self.bn(self.a(x))), self.scale))  # type: ignore[no-any-return]


class Scale(MomentPreserving):
    """One factor per channel."""

    def channels(self, flow: ChannelTracer, operation: Operation) -> Value | None:
        found = per_channel(flow, operation)
        return None if found is None else found[0].then("shift", "scale")

    def moments(self, at: Propagated, form: Form, inputs: Inputs) -> Signal | None:
        x, factor = inputs[0], at.tensors[form.operation.tensors["weight"]].double()
        if x is None:
            return None
        return Signal(x.mean * factor, x.covariance * torch.outer(factor, factor), gain=factor)


@pytest.fixture
def net() -> nn.Module:
    return randomise(Net()).eval()


def left_alone(net: nn.Module) -> dict[str, Cause]:
    return {one.name: one.reason.cause for one in hope.inspect(net, EXAMPLE).skipped}


def test_an_unknown_operator_holds_channels_fast_until_it_is_registered(net: nn.Module) -> None:
    assert left_alone(net)["a"] is Cause.UNKNOWN_OPERATOR
    with ops.register("hopetests::shrink", operator=ops.Elementwise()):
        assert left_alone(net)["a"] is Cause.UNKNOWN_OPERATOR  # there is the other one
        with ops.register("hopetests::scale", operator=Scale()):
            anatomy, _ = check_cut(net, EXAMPLE, tolerance=1e-5, train=False)
            assert anatomy.unit("a").neurons == 8
            assert {part.tensor for part in anatomy.unit("a").places} >= {"bn.weight", "scale", "b.weight"}
    assert left_alone(net)["a"] is Cause.UNKNOWN_OPERATOR


def test_absorption_needs_the_moments_of_a_registered_operator(net: nn.Module) -> None:
    with ops.register("hopetests::scale", operator=Scale()):
        with ops.register("hopetests::shrink", operator=ops.Elementwise()):
            closed = hope.Absorb(calibration=None)
            left = hope.encode(net, EXAMPLE, steps=0, method=closed).left_alone
            assert left["a"].cause is Cause.UNKNOWN_MOMENTS
            assert not hope.encode(net, EXAMPLE, steps=3).left_alone  # patterns show what is not followed
        with ops.register("hopetests::shrink", operator=ops.Activation(shrink_by)):
            encoding = hope.encode(net, EXAMPLE, steps=3, method=closed)
            assert [step.name for step in encoding.trajectory][:3] == ["a"] * 3


def shrink_by(y: Tensor) -> Tensor:
    return functional.softshrink(y, 0.2)


def test_moments_behind_a_registered_activation_are_those_of_its_function(net: nn.Module) -> None:
    entries = {"hopetests::shrink": ops.Activation(shrink_by), "hopetests::scale": Scale()}
    registered = [ops.register(name, operator=entry) for name, entry in entries.items()]
    tensors = {n: t.detach() for n, t in [*net.named_parameters(), *net.named_buffers()]}
    signal = Propagated(hope.inspect(net, EXAMPLE).program, tensors).readings["b.weight"].signal
    for one in registered:
        one.undo()
    bn = net.bn
    assert isinstance(bn, nn.BatchNorm2d)
    assert bn.running_var is not None
    spread = bn.weight.abs() * (bn.running_var / (bn.running_var + bn.eps)).sqrt()
    y = bn.bias + spread * torch.randn(200_000, 8, generator=torch.Generator().manual_seed(1))
    real = (shrink_by(y) * tensors["scale"]).double()
    assert torch.allclose(signal.mean, real.mean(dim=0), atol=0.01)
    assert torch.allclose(signal.covariance.diagonal(), real.var(dim=0), rtol=0.02)


def test_what_was_registered_before_comes_back() -> None:
    before = ops.registry.TABLE["relu"]
    with ops.register("relu", "hopetests::new", operator=ops.Identity()):
        assert ops.registry.TABLE["relu"] is ops.registry.TABLE["hopetests::new"]
    assert ops.registry.TABLE["relu"] is before
    assert "hopetests::new" not in ops.registry.TABLE
