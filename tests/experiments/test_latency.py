"""The latency experiment: `hope bench latency` by the names of public checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from experiments.latency import main
from tests.support import randomise
from zoo import networks


def test_networks_with_a_public_checkpoint_are_known_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "weights").mkdir()
    path = tmp_path / networks.CHECKPOINTS["cifar10-resnet20"]
    save_file(randomise(networks.untrained("cifar10-resnet20")).state_dict(), path)
    arguments = ["--methods", "paper", "--budgets", "params=0.5", "--batches", "1", "--repeats", "2"]
    engine = ["--engines", "torch"]
    assert main(["cifar10-resnet20", "--data", str(tmp_path), *arguments, *engine]) == 0
    assert "cifar10-resnet20, torch, batch 1" in capsys.readouterr().out
    save_file({"x": torch.zeros(1)}, path)
    assert main(["cifar10-resnet20", "--data", str(tmp_path), *arguments]) == 2
    assert "does not fit cifar10-resnet20" in capsys.readouterr().err
