"""A model that cannot be captured is refused in one line that names the part that can be."""

from __future__ import annotations

import linecache
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import hope
from hope.trace.capture import _line


class Detector(nn.Module):
    """A backbone, and boxes whose number depends on the image."""

    def __init__(self) -> None:
        super().__init__()
        first, second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.backbone = nn.Sequential(first, nn.BatchNorm2d(8), nn.ReLU(), second)
        self.head = nn.Conv2d(8, 1, 1)

    def forward(self, images: list[Tensor]) -> Tensor:
        scores = self.head(self.backbone(torch.stack(images))).flatten()
        found = scores[scores > 0]
        if found.numel() > 3:
            return found[:3]
        return found


class LargeHead(Detector):
    """The head has most of the parameters, and no batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Conv2d(8, 64, 3), nn.ReLU(), nn.Conv2d(64, 1, 1))  # type: ignore[assignment]


class Everywhere(nn.Module):
    """No part of it can be captured."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        x = x @ self.weight
        return x if x.sum() > 0 else -x


IMAGES = [torch.randn(3, 16, 16, generator=torch.Generator().manual_seed(0))]


def test_a_detector_is_refused_with_the_line_and_the_part(capfd: pytest.CaptureFixture[str]) -> None:
    model = Detector().eval()
    with pytest.raises(hope.UnsupportedModel) as failure:
        hope.inspect(model, (IMAGES,))
    words = str(failure.value)
    assert len(words.splitlines()) == 1
    assert "(in test_parts.py, line " in words
    assert "if found.numel() > 3:)" in words
    assert "model.backbone = hope.encode(model.backbone, x, ...).model, where x is what it receives" in words
    assert "(1x3x16x16)" in words
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")
    assert not model.backbone._forward_pre_hooks


def test_the_part_with_batch_norm_is_named_even_if_another_is_larger() -> None:
    model = LargeHead().eval()
    assert sum(p.numel() for p in model.head.parameters()) > sum(
        p.numel() for p in model.backbone.parameters()
    )
    with pytest.raises(hope.UnsupportedModel, match=r"model\.backbone = hope\.encode"):
        hope.inspect(model, (IMAGES,))


@pytest.mark.parametrize(("package", "quoted"), [("torch", False), ("torchvision", True)])
def test_the_line_is_quoted_where_it_is_not_torchs(package: str, quoted: bool) -> None:
    file = str(Path(torch.__file__).parents[1] / package / "made_up.py")
    code = "def forward():\n    raise ValueError\n"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    made: dict[str, Callable[[], None]] = {}
    exec(compile(code, file, "exec"), made)
    with pytest.raises(ValueError) as failure:  # noqa: PT011
        made["forward"]()
    assert ("in made_up.py, line 2: raise ValueError" in _line(failure.value)) == quoted


def test_the_part_is_compressed_in_place_as_the_message_says() -> None:
    model = Detector().eval()
    before = sum(p.numel() for p in model.parameters())
    model.backbone = hope.encode(model.backbone, torch.stack(IMAGES), params=0.6).model
    assert sum(p.numel() for p in model.parameters()) < before
    assert len(model(IMAGES)) <= 3


def test_without_such_a_part_the_message_names_none() -> None:
    with pytest.raises(hope.UnsupportedModel, match=r"if x.sum\(\) > 0.*; replace data-dependent Python"):
        hope.inspect(Everywhere(), torch.randn(2, 4))
