"""Moments are stored without loss, and of a symmetric matrix one half."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from hope.errors import DamagedFolder
from hope.statistics.input_statistics import InputStatistics
from hope.storage.moments import _whole, read_moments, write_moments


def statistics(covariance: Tensor) -> InputStatistics:
    side = len(covariance)
    return InputStatistics(
        "a.weight", 1, torch.randn(side), covariance, torch.eye(2), torch.ones(3), 1, "", ""
    )


@pytest.mark.parametrize("side", [0, 1, 2, 7])
def test_a_covariance_is_read_as_it_was_and_takes_half_the_room(side: int, tmp_path: Path) -> None:
    torch.manual_seed(side)
    rows = torch.randn(20, side, dtype=torch.float64)
    known = statistics((rows.T @ rows).float().double())
    saved = write_moments(tmp_path, {"a.weight": known})
    assert saved is not None
    found = read_moments(tmp_path, saved)["a.weight"]
    assert torch.equal(found.covariance, known.covariance)
    assert torch.equal(found.taps, known.taps.double())
    held = load_file(saved.inside(tmp_path))
    assert held["a.weight/covariance"].numel() == side * (side + 1) // 2


def test_a_matrix_that_is_not_symmetric_is_stored_whole(tmp_path: Path) -> None:
    known = statistics(torch.arange(9.0).reshape(3, 3))
    saved = write_moments(tmp_path, {"a.weight": replace(known)})
    assert torch.equal(read_moments(tmp_path, saved)["a.weight"].covariance, known.covariance.double())


def test_a_triangle_of_another_size_is_refused() -> None:
    with pytest.raises(DamagedFolder, match="a covariance of 3 channels must have 6 entries, got 5"):
        _whole(torch.zeros(5), 3)
