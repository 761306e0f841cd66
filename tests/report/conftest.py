"""Saved runs to report on: one by the paper's method with all kinds of actions, one by absorption."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

import hope
from hope.bench.networks import DigitsNet
from tests.support import randomise

EXAMPLE = torch.linspace(-1, 1, 2 * 64).reshape(2, 1, 8, 8)


@pytest.fixture(scope="session")
def original() -> nn.Module:
    """The network that was compressed, with twins in it so that merges pay."""
    torch.manual_seed(0)
    model = randomise(DigitsNet()).eval()
    tensors = model.state_dict()
    for name in ("squeeze.weight", "bn.weight", "bn.bias", "bn.running_mean", "bn.running_var"):
        tensors[name][1:6:2] = tensors[name][0:6:2] * 1.01
    readers = tensors["head.weight"].unflatten(1, (24, 16))
    readers[:, 1:6:2] = readers[:, 0:6:2]
    return model


@pytest.fixture(scope="session")
def folder(original: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run by the paper's method."""
    encoding = hope.encode(original, EXAMPLE, density=0.2, progress=False)
    assert all(encoding.trajectory.mix().values())  # prunes, merges and evictions
    path = tmp_path_factory.mktemp("runs")
    save_file(original.state_dict(), path / "weights.safetensors")
    encoding.fidelities(4)
    source = {"model": "net.py:build", "weights": "the weights.pt", "input": "1x1x8x8"}
    return encoding.save(path / "hope", source=source)


@pytest.fixture(scope="session")
def stepped(original: nn.Module, folder: Path) -> Path:
    """A run whose widths are multiples of eight, beside the others."""
    encoding = hope.encode(original, EXAMPLE, density=0.4, multiple_of=8, progress=False)
    assert len(encoding.trajectory.stops) < len(encoding.trajectory)
    return encoding.save(folder.with_name("stepped"), source={"model": "net.py:build", "input": "1x1x8x8"})


@pytest.fixture(scope="session")
def absorbed(original: nn.Module, folder: Path) -> Path:
    """A run by absorption, beside the other."""
    encoding = hope.encode(original, EXAMPLE, method="absorb", density=0.4, progress=False)
    return encoding.save(folder.with_name("absorb"))
