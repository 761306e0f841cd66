"""Equal parts of a split lose the same positions, so that the model's own `chunk` splits them again."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import hope
from tests.support import check_cut


class Conv(nn.Sequential):
    def __init__(self, inputs: int, outputs: int, size: int = 1) -> None:
        conv = nn.Conv2d(inputs, outputs, size, padding=size // 2, bias=False)
        super().__init__(conv, nn.BatchNorm2d(outputs), nn.SiLU())


class Bottleneck(nn.Module):
    def __init__(self, width: int, add: bool) -> None:
        super().__init__()
        self.cv1, self.cv2, self.add = Conv(width, width, 3), Conv(width, width, 3), add

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.cv2(self.cv1(x))
        return x + out if self.add else out


class C2f(nn.Module):
    """YOLOv8's, after a stem and before a head."""

    def __init__(self, *, add: bool = False, fixed: bool = False, width: int = 8) -> None:
        super().__init__()
        self.width, self.fixed, self.stem = width, fixed, Conv(3, 6, 3)
        self.cv1, self.cv2 = Conv(6, 2 * width), Conv(4 * width, 10)
        self.m = nn.ModuleList(Bottleneck(width, add) for _ in range(2))
        self.head = nn.Linear(10, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cv1(self.stem(x))
        y = list(x.split((self.width, self.width), 1) if self.fixed else x.chunk(2, 1))
        y.extend(m(y[-1]) for m in self.m)
        return self.head(self.cv2(torch.cat(y, 1)).mean((2, 3)))


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_both_halves_of_a_chunk_are_pruned_together() -> None:
    anatomy, _ = check_cut(C2f(), X, tolerance=1e-4)
    unit = anatomy.unit("cv1.0")
    assert (unit.neurons, unit.channels) == (8, 2)
    assert [one.name for one in anatomy.skipped] == ["head"]
    small = hope.cut(C2f(), anatomy, [hope.Prune("cv1.0", [1, 5])])
    assert small.cv1[0].out_channels == 12
    assert small.m[0].cv1[0].in_channels == 6
    assert small.cv2[0].in_channels == 28


def test_halves_with_a_residual_are_one_stream() -> None:
    anatomy, _ = check_cut(C2f(add=True), X, tolerance=1e-4, streams=True)
    assert [one.name for one in anatomy.skipped] == ["head"]
    reasons = {one.name: str(one.reason) for one in hope.inspect(C2f(add=True), X).skipped}
    assert "prunable with streams=True" in reasons["cv1.0"]


def test_halves_of_a_written_width_are_kept_with_that_reason() -> None:
    reasons = {one.name: str(one.reason) for one in hope.inspect(C2f(fixed=True), X).skipped}
    assert reasons.keys() == {"cv1.0", "head"}
    assert "the model's code does not accept another width" in reasons["cv1.0"]


def test_a_network_of_chunks_is_encoded() -> None:
    torch.manual_seed(0)
    model = C2f()
    model(2 * torch.randn(64, 3, 8, 8))
    encoding = hope.encode(model.eval(), X, params=0.5)
    assert "cv1.0" not in encoding.left_alone
    assert encoding.model(X).shape == (2, 3)
    assert encoding.size.parameters <= 0.5 * sum(p.numel() for p in model.parameters())
