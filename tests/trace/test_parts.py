"""A model that cannot be captured is refused in one line that names the part that can be."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import hope


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


def test_the_part_is_compressed_in_place_as_the_message_says() -> None:
    model = Detector().eval()
    before = sum(p.numel() for p in model.parameters())
    model.backbone = hope.encode(model.backbone, torch.stack(IMAGES), params=0.6).model
    assert sum(p.numel() for p in model.parameters()) < before
    assert len(model(IMAGES)) <= 3


def test_without_such_a_part_the_message_names_none() -> None:
    with pytest.raises(hope.UnsupportedModel, match=r"if x.sum\(\) > 0.*; replace data-dependent Python"):
        hope.inspect(Everywhere(), torch.randn(2, 4))
