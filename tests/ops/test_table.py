"""What the table of operators says, read from the table itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import hope
from hope import ops
from hope.ops.activation import Activation
from hope.ops.registry import TABLE
from hope.trace.capture import capture
from hope.trace.program import read_program
from tests.support import randomise

EXAMPLE = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
PLAIN = sorted(
    {entry.module: name for name, entry in TABLE.items() if isinstance(entry, Activation) and entry.module}
)


class Native(nn.BatchNorm2d):
    """A BN in the form that decomposed graphs have."""

    def forward(self, x: Tensor) -> Tensor:
        numbers = (self.weight, self.bias, self.running_mean, self.running_var, 0.1, self.eps)
        return torch.ops.aten._native_batch_norm_legit_no_training(x, *numbers)[0]  # type: ignore[no-any-return]


class Normalised(nn.Module):
    """A block whose BNs are called in one form or the other."""

    def __init__(self, bn: type[nn.BatchNorm2d]) -> None:
        super().__init__()
        self.stem, self.bn0 = nn.Conv2d(3, 6, 3, padding=1), bn(6, eps=1e-3)
        self.a, self.bn1 = nn.Conv2d(6, 8, 3, padding=1), bn(8)
        self.b, self.bn2 = nn.Conv2d(8, 6, 3, padding=1), bn(6)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.bn0(self.stem(x)))
        y = torch.relu(self.bn1(self.a(x)))
        return torch.relu(self.bn2(self.b(y)) + x)


def test_both_forms_of_bn_are_treated_alike() -> None:
    runs = []
    for bn in (nn.BatchNorm2d, Native):
        torch.manual_seed(0)
        net = randomise(Normalised(bn)).eval()
        anatomy = hope.inspect(net, EXAMPLE)
        assert [layer.name for layer in anatomy.layers] == ["a"]
        assert anatomy.unit("a").bn == "bn1"
        assert ops.epsilons(anatomy.program) == {"bn0": 1e-3, "bn1": 1e-5, "bn2": 1e-5}
        assert [(block.last_bn, block.skip_bn) for block in anatomy.blocks] == [("bn2", "bn0")]
        runs.append(
            [(s.name, s.cost) for s in hope.encode(net, EXAMPLE, steps=3, method="absorb").trajectory]
        )
    assert runs[0] == runs[1]


@pytest.mark.parametrize("module", PLAIN)
def test_an_activation_is_told_by_its_class_where_it_has_no_numbers_of_its_own(module: str) -> None:
    operations = read_program(capture(getattr(nn, module)().eval(), torch.zeros(1, 4)))
    entries = [(ops.find(operation), operation) for operation in operations]
    found = [entry.plain(operation) for entry, operation in entries if isinstance(entry, Activation)]
    assert found in ([module], [""])  # "" where the class itself passes its numbers on
    functional = getattr(nn, module)()
    name = next(op for op, entry in TABLE.items() if isinstance(entry, Activation) and entry.module == module)
    y = torch.linspace(-3, 3, 20)
    smooth = ops.activation.function(hope.trace.values.Link("activation", name))
    if smooth is not None:
        assert torch.equal(smooth(y), functional(y))


def test_the_program_refers_to_what_was_written_in_place() -> None:
    class Writes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            y = self.a(x)
            y.relu_()
            return y + x

    program = read_program(capture(Writes(), torch.zeros(1, 4)))
    written = next(op for op in program if op.operator == "relu")
    add = next(op for op in program if op.operator == "add")
    assert written.in_place
    assert add.inputs[0] == written.position
