"""Compress, train, save, load: what a fresh process gets is what was trained."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F

import hope
from hope.demo import DigitsNet
from hope.storage.run import read_run
from tests.support import assert_same, randomise, run

EXAMPLE = torch.linspace(-1, 1, 4 * 64).reshape(4, 1, 8, 8)
LOAD = """
import sys, torch
from safetensors.torch import load_file, save_file
import hope
from hope.demo import DigitsNet
small = hope.load(sys.argv[1], DigitsNet()).eval()
save_file({"y": small(load_file(sys.argv[2])["x"]).detach()}, sys.argv[3])
"""


@pytest.fixture(scope="module")
def original() -> nn.Module:
    torch.manual_seed(0)
    return randomise(DigitsNet()).eval()


@pytest.fixture(scope="module")
def encoding(original: nn.Module) -> hope.Encoding:
    return hope.encode(original, EXAMPLE, params=0.5)


def trained(small: nn.Module) -> nn.Module:
    """After a few steps on noise, in which everything moves, the running statistics too."""
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.SGD(small.parameters(), lr=0.05)
    for _ in range(3):
        x, y = torch.randn(16, 1, 8, 8, generator=generator), torch.randint(10, (16,), generator=generator)
        optimizer.zero_grad()
        F.cross_entropy(small.train()(x), y).backward()
        optimizer.step()
    return small.eval()


def test_a_fresh_process_computes_what_was_trained(
    encoding: hope.Encoding, original: nn.Module, tmp_path: Path
) -> None:
    saved = encoding.save(tmp_path / "run")
    small = trained(hope.load(saved, original))
    assert (run(small, EXAMPLE)[0] - run(encoding.model, EXAMPLE)[0]).abs().max() > 0.01
    for n, source in enumerate((saved, encoding)):
        folder = hope.save_finetuned(tmp_path / str(n), source, small)
        assert read_run(folder).record.trained
        assert not read_run(saved).record.trained
        save_file({"x": EXAMPLE}, tmp_path / "x.safetensors")
        paths = [folder, tmp_path / "x.safetensors", tmp_path / "y.safetensors"]
        subprocess.run([sys.executable, "-c", LOAD, *map(str, paths)], check=True)
        assert_same([load_file(tmp_path / "y.safetensors")["y"]], run(small, EXAMPLE), 1e-6)


def test_what_was_trained_at_another_budget_is_saved_with_it(
    encoding: hope.Encoding, original: nn.Module, tmp_path: Path
) -> None:
    small = trained(encoding.at(params=0.8))
    with pytest.raises(hope.CheckpointMismatch, match="must be the run's small network") as refusal:
        hope.save_finetuned(tmp_path / "a", encoding, small)
    assert "name its budget" in str(refusal.value)
    assert not (tmp_path / "a").exists()
    folder = hope.save_finetuned(tmp_path / "a", encoding, small, params=0.8)
    assert_same(run(hope.load(folder, original).eval(), EXAMPLE), run(small, EXAMPLE), 0)


def test_evicted_blocks_and_their_biases_are_the_runs(original: nn.Module, tmp_path: Path) -> None:
    steps = [hope.Prune("blocks.0.conv1", [1, 2]), hope.Evict("blocks.1", [0.25] * 16)]
    run_folder = hope.save(tmp_path / "run", original, hope.inspect(original, EXAMPLE), steps)
    small = trained(hope.load(run_folder, original))
    folder = hope.save_finetuned(tmp_path / "small", run_folder, small)
    assert_same(run(hope.load(folder, original).eval(), EXAMPLE), run(small, EXAMPLE), 0)


def test_other_budgets_of_trained_weights_are_refused(
    encoding: hope.Encoding, original: nn.Module, tmp_path: Path
) -> None:
    small = trained(hope.load(encoding.save(tmp_path / "run"), original))
    folder = hope.save_finetuned(tmp_path / "small", encoding, small)
    with pytest.raises(hope.InfeasibleBudget, match="must be that of the trained weights in"):
        hope.load(folder, original, params=0.8)
    same = hope.load(folder, original, steps=encoding.steps).eval()
    assert_same(run(same, EXAMPLE), run(small, EXAMPLE), 0)


def test_a_run_is_not_lost_to_what_was_trained(encoding: hope.Encoding, tmp_path: Path) -> None:
    saved = encoding.save(tmp_path / "run")
    with pytest.raises(hope.CannotWrite, match="whose other budgets would be lost"):
        hope.save_finetuned(saved, encoding, encoding.model)
    assert not read_run(saved).record.trained
    folder = hope.save_finetuned(tmp_path / "small", encoding, encoding.model)
    assert hope.save_finetuned(folder, saved, encoding.model) == folder
    assert len(list(folder.iterdir())) == 2


def test_another_head_is_named(encoding: hope.Encoding, tmp_path: Path) -> None:
    small = encoding.at(steps=encoding.steps)
    old = small.get_submodule("head")
    assert isinstance(old, nn.Linear)
    small.set_submodule("head", nn.Linear(old.in_features, 3))
    with pytest.raises(hope.CheckpointMismatch, match=r"head\.weight \(3, .* instead of \(10, "):
        hope.save_finetuned(tmp_path / "small", encoding, small)
    small.set_submodule("head", nn.Identity())
    with pytest.raises(hope.CheckpointMismatch, match=r"head\.weight not there instead of"):
        hope.save_finetuned(tmp_path / "small", encoding, small)


def test_a_wrapped_network_is_saved_without_its_wrapper(
    encoding: hope.Encoding, original: nn.Module, tmp_path: Path
) -> None:
    folder = hope.save_finetuned(tmp_path / "small", encoding, nn.DataParallel(encoding.model))
    assert_same(run(hope.load(folder, original).eval(), EXAMPLE), run(encoding.model, EXAMPLE), 0)
