"""Running a captured network operation by operation."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hope
from hope.trace import interpreter
from hope.trace.interpreter import Interpreter
from hope.trace.trace import Trace
from tests.support import randomise


class Crooked(nn.Module):
    """Writes in place, on what others still have to read, and returns a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.bn = nn.BatchNorm2d(4)
        self.register_buffer("offset", torch.tensor(0.5))

    def forward(self, x: Tensor, *, scale: Tensor) -> dict[str, Tensor]:
        y = self.bn(self.a(x)) + self.offset
        late = self.b(y)
        y += 1
        functional.relu_(y)
        low, high = (late * scale + y).split(2, dim=1)
        return {"low": low, "high": high.mean(dim=(2, 3)) + torch.tensor([1.0, 2.0])}


def batches(*sizes: int) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(0)
    return [
        {"x": torch.randn(n, 3, 5, 5, generator=generator), "scale": torch.randn((), generator=generator)}
        for n in sizes
    ]


def outputs(run: Interpreter) -> list[dict[str, Tensor]]:
    end = len(run.program) - 1
    run.keep([end])
    return run.get(end)


@pytest.mark.parametrize("held", [interpreter.HELD, 0])
def test_it_gives_the_models_answers(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "HELD", held)
    net = randomise(Crooked()).eval()
    some = batches(4, 4, 2)
    run = Trace().interpreter(net, some)
    found = [value[0] for value in outputs(run)]
    with torch.no_grad():
        for got, batch in zip(found, some, strict=True):
            flat = dict(zip(("low", "high"), got, strict=False)) if not isinstance(got, dict) else got
            for name, want in net(**batch).items():
                assert torch.equal(flat[name], want)
    assert not run._values  # nothing is kept that nobody reads
    assert run._held == 0


def test_parameters_are_read_when_they_are_used() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)).eval()
    x = torch.randn(5, 3)
    seen: list[str] = []

    def after(position: int) -> bool:
        operation = run.program[position]
        if operation.operator != "linear" or operation.tensors["weight"] in seen:
            return False
        seen.append(operation.tensors["weight"])
        with torch.no_grad():
            dict(net.named_parameters())[operation.tensors["weight"]].mul_(2)
        return True

    run = Trace().interpreter(net, [x], after=after)
    (((got,),),) = outputs(run)
    assert seen == ["0.weight", "1.weight"]
    assert torch.allclose(got, net(x))  # by now twice the weights


def test_batches_that_take_different_ways_are_refused() -> None:
    class Odd(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.relu() if len(x) > 3 else x.tanh()

    with pytest.raises(hope.InvalidExample, match="give equal shapes"):
        Trace().interpreter(Odd(), [torch.zeros(4, 2), torch.zeros(2, 2)])
