"""Shared by all tests: one thread per worker, and what torchvision needs to be importable."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from hope._util.operators import declare_missing_operators

declare_missing_operators()
if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """Real checkpoints and images, where they are at hand."""
    folder = Path(os.environ.get("HOPE_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no real checkpoints: set HOPE_DATA to a folder that has them ({folder} does not exist)")
    return folder
