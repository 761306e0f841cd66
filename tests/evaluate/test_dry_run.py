"""Networks whose forward reads a number out of a tensor run on tensors without data, as they are captured."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hope


class Anchored(nn.Module):
    """Scales its output, as detectors do, by numbers that it holds in a tensor."""

    def __init__(self, scale: Callable[[Tensor, Tensor], Tensor | float], *, buffer: bool) -> None:
        super().__init__()
        self.conv, self.bn, self.head = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Conv2d(8, 4, 3)
        strides = torch.tensor([8.0, 16.0, 32.0])
        self.scale = scale
        self.register_buffer("strides", strides) if buffer else setattr(self, "strides", strides)

    def forward(self, x: Tensor) -> Tensor:
        z = self.head(self.bn(self.conv(x)).relu())
        return z * self.scale(z, self.strides)


@pytest.mark.parametrize("buffer", [False, True])
@pytest.mark.parametrize(
    "scale",
    [
        lambda z, strides: z.new_full((4, 1, 1), strides[0]),
        lambda z, strides: torch.full((4, 1, 1), strides[0]),
        lambda z, strides: strides[0].item(),
        lambda z, strides: z.abs().max().item(),
    ],
)
def test_a_number_is_read_out_of_a_tensor(scale: Callable, buffer: bool) -> None:
    x = torch.randn(1, 3, 8, 8)
    encoding = hope.encode(Anchored(scale, buffer=buffer).eval(), x, density=0.5)
    assert [layer.name for layer in encoding.anatomy.layers] == ["conv"]
    assert encoding.model(x).shape == (1, 4, 4, 4)


def test_a_size_that_is_read_out_of_a_tensor_after_a_branch_that_reads_another() -> None:
    class Branch(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 4)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.down(torch.relu(self.up(x)))
            return y * y.argmax().item()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch, self.head = Branch(), nn.Linear(4, 3)
            self.register_buffer("times", torch.tensor([2, 1]))

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.head(x + self.branch(x))
            return y.repeat(self.times[0].item(), 1)  # type: ignore[arg-type]

    assert len(hope.inspect(Net(), torch.zeros(2, 4)).blocks) == 1


def test_a_width_that_is_written_into_a_tensor_is_still_found() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = torch.relu(self.up(x))
            return self.down(y) * y.new_full((3,), y.shape[1])

    anatomy = hope.inspect(Net(), torch.zeros(2, 4))
    reasons = {one.name: str(one.reason) for one in anatomy.skipped}
    assert "it computes with its width as a number" in reasons["up"]


def test_outputs_whose_number_depends_on_data_are_refused() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.down(torch.relu(self.up(x)))
            return y[y > 0]

    with pytest.raises(hope.UnsupportedModel, match="Net must run on tensors without data"):
        hope.inspect(Net(), torch.zeros(2, 4))
