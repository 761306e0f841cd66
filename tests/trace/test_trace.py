"""A network's captured graphs: exported once, and resized for other widths and batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.trace.trace import Trace
from tests.latency.fake import faked
from tests.support import randomise


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """The classes of the models that are exported."""
    seen: list[type] = []
    export: Callable[..., Any] = torch.export.export

    def counted(model: nn.Module, *args: Any, **kwargs: Any) -> Any:
        seen.append(type(model))
        return export(model, *args, **kwargs)

    monkeypatch.setattr(torch.export, "export", counted)
    return seen


class Heads(nn.Module):
    """Splits its width into heads of four channels, by numbers that an export writes down."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(6, 3 * width), nn.Linear(width, 6), nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, dim=-1)
        q, k, v = (one.unflatten(-1, (-1, 4)).transpose(1, 2) for one in (q, k, v))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)
        found: Tensor = self.norm(x + self.out(mixed.reshape(*x.shape[:-1], -1)))
        return found


class Sizes(nn.Module):
    """Does something else with a single input."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.a(x)) if len(x) > 1 else torch.relu(self.a(x))


class Block(nn.Module):
    """A residual block, whose skip is a convolution where the width changes."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs)
        wider = nn.Sequential(nn.Conv2d(inputs, outputs, 1), nn.BatchNorm2d(outputs))
        self.skip = wider if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(torch.relu(self.bn1(self.conv1(x)))))
        return torch.relu(self.skip(x) + y)


class Auxiliary(nn.Module):
    """Has a head that only training uses."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.bn, self.b = nn.Linear(6, 16), nn.BatchNorm1d(16), nn.Linear(16, 16)
        self.bn2, self.c, self.aux = nn.BatchNorm1d(16), nn.Linear(16, 4), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        x = torch.relu(self.bn(self.a(x)))
        y: Tensor = self.c(torch.relu(self.bn2(self.b(x))))
        return (y, self.aux(x)) if self.training else y


def residual() -> nn.Sequential:
    return randomise(
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            Block(8, 8), Block(8, 16), Block(16, 16),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
        )
    )  # fmt: skip


def network() -> nn.Sequential:
    net = nn.Sequential(
        nn.Conv2d(3, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(),
        nn.Conv2d(12, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5),
    )  # fmt: skip
    return randomise(net)


def answer(trace: Trace, model: nn.Module, x: Tensor) -> Tensor:
    run = trace.interpreter(model, [x])
    end = len(run.program) - 1
    run.keep([end])
    ((found,),) = run.get(end)[0]
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize("method", [hope.Absorb(), hope.Absorb(calibration="dream"), hope.Paper()])
def test_a_run_exports_its_network_once(exports: list[type], method: hope.Method) -> None:
    encoding = hope.encode(network(), torch.zeros(1, 3, 12, 12), density=0.5, method=method, progress=False)
    assert encoding.model[0].out_channels < 12  # type: ignore[index, union-attr, operator]
    assert exports == [nn.Sequential]


def test_a_run_with_streams_exports_its_network_once(exports: list[type]) -> None:
    encoding = hope.encode(
        residual(), torch.zeros(1, 3, 12, 12), density=0.3, streams=True, evict=False, progress=False
    )
    cut = {step.name for step in encoding.trajectory.steps[: encoding.steps]}
    assert cut & {unit.name for unit in encoding.anatomy.streams}
    assert encoding.model[0].out_channels  # type: ignore[index, union-attr]
    assert exports == [nn.Sequential]


def test_a_network_without_a_block_is_another_one_and_is_exported_too(exports: list[type]) -> None:
    encoding = hope.encode(residual(), torch.zeros(1, 3, 12, 12), params=0.2, streams=True, progress=False)
    assert encoding.trajectory.mix(encoding.steps)["evict"]
    assert encoding.model[0].out_channels  # type: ignore[index, union-attr]
    assert exports == [nn.Sequential, nn.Sequential]


@pytest.mark.parametrize("runtime", ["torch", "onnxruntime"])
def test_a_run_to_a_latency_exports_its_network_once(exports: list[type], runtime: str) -> None:
    how: dict[str, Any] = {"latency": 0.7, "runtime": runtime, "method": hope.Absorb(calibration="patterns")}
    with faked():
        encoding = hope.encode(network(), torch.zeros(1, 3, 12, 12), progress=False, **how)
    assert encoding.inputs
    assert sum(p.numel() for p in encoding.model.parameters()) < encoding.anatomy.size().parameters
    assert exports == [nn.Sequential]


def test_a_network_with_parts_for_training_is_exported_once_in_either_mode(exports: list[type]) -> None:
    net = Auxiliary().eval()
    encoding = hope.encode(net, torch.zeros(2, 6), params=0.6, progress=False)
    assert encoding.model.b.out_features < 16  # type: ignore[union-attr, operator]
    assert exports == [Auxiliary, Auxiliary]


@pytest.mark.parametrize(("width", "count"), [(12, 7), (8, 2), (4, 7)])
def test_other_widths_and_batches_need_no_other_export(exports: list[type], width: int, count: int) -> None:
    trace = Trace()
    trace.captured(Heads().eval(), torch.randn(2, 5, 6))
    other, x = randomise(Heads(width)).eval(), torch.randn(count, 5, 6)
    assert torch.equal(answer(trace, other, x), other(x))
    assert exports == [Heads]


def test_a_network_that_computes_something_else_on_other_sizes_is_exported_for_them(
    exports: list[type],
) -> None:
    trace, net = Trace(), Sizes().eval()
    for x in (torch.randn(1, 3), torch.randn(2, 3), torch.randn(5, 3)):
        assert torch.equal(answer(trace, net, x), net(x))
    assert exports == [Sizes, Sizes]


def test_inputs_that_are_all_alike_do_not_tell_whether_a_resized_graph_is_right(
    exports: list[type],
) -> None:
    trace, net = Trace(), Sizes().eval()
    nn.init.zeros_(net.a.bias)  # then both answers are 0
    for x in (torch.zeros(1, 3), torch.zeros(2, 3)):
        answer(trace, net, x)
    assert exports == [Sizes, Sizes]
    x = torch.randn(2, 3)
    assert torch.equal(answer(trace, net, x), net(x))
