"""A healed encoding: saved, loaded, exported and reported as what it is."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import hope
from hope.cli.main import main
from hope.encoding import Encoding
from hope.errors import CannotWrite
from hope.storage.run import read_run
from tests.healing.test_heal import EXAMPLE, Residual, images, networks, one_thread, same

__all__ = ["one_thread"]


def encoded(**budget: Any) -> tuple[nn.Module, Encoding]:
    net, _ = networks()
    return net, hope.encode(net, EXAMPLE, calibration=[images()], **budget)


def test_a_healed_encoding_equals_itself_after_save_and_load(tmp_path: Path) -> None:
    net, encoding = encoded(density=0.3)
    healed = encoding.heal(steps=30)
    assert healed.healed is not None
    assert healed.healed.after > healed.healed.before
    assert healed.model is healed.healed.model
    assert not same(healed.model, encoding.model)
    folder = healed.save(tmp_path / "healed")
    assert same(hope.load(folder, net), healed.model)
    assert read_run(folder).details.fidelities == []
    assert same(hope.load(hope.save_finetuned(tmp_path / "other", encoding, healed.model), net), healed.model)
    encoding.save(tmp_path / "run")
    with pytest.raises(CannotWrite):  # the run's other budgets would be lost
        healed.save(tmp_path / "run")


def test_the_report_has_the_fidelity_of_the_healed_network(tmp_path: Path) -> None:
    _, encoding = encoded(density=0.3)
    healed = encoding.heal(steps=30)
    assert [k for k, _ in healed.fidelities()] == [0, healed.steps]
    assert healed.fidelity > encoding.fidelity
    assert f"held-out fidelity {healed.healed.before:.3f} -> " in str(healed)
    assert f"{healed.fidelity:.3f}" in str(healed)
    assert healed.report(tmp_path / "page.html").exists()


def test_a_pruned_and_rounded_network_is_healed_on_its_grid(tmp_path: Path) -> None:
    net, encoding = encoded(size=0.2)
    assert encoding.grids
    healed = encoding.heal(steps=40)
    assert healed.healed.after > healed.healed.before
    assert healed.grids.keys() == encoding.grids.keys()
    folder = healed.save(tmp_path / "healed")
    assert same(hope.load(folder, net), healed.model)  # from packed integers
    stored = {key for key in _keys(folder) if key.endswith("#whole")}
    assert len(stored) == len(healed.grids)


def _keys(folder: Path) -> list[str]:
    from safetensors import safe_open

    (file,) = folder.glob("weights-*.safetensors")
    with safe_open(str(file), framework="pt") as tensors:
        return list(tensors.keys())


def test_streams_that_are_pruned_are_compared_by_their_kept_channels() -> None:
    from hope.healing.heal import stream_rows

    class Blocks(Residual):
        def __init__(self) -> None:
            super().__init__()
            self.block = Inner()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.block(self.stem(x))
            return self.head(x.mean(dim=(2, 3)))

    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(8, 16, 3, padding=1), nn.Conv2d(16, 8, 3, padding=1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu(x + self.second(torch.relu(self.first(x))))

    torch.manual_seed(0)
    net = Blocks().eval()
    anatomy = hope.inspect(net, EXAMPLE, streams=True)
    (stream,) = (unit for unit in anatomy.streams if unit.open)
    steps = [hope.Prune(stream.name, [0, 5])]
    rows = stream_rows(anatomy, steps)
    assert rows["block"].tolist() == [1, 2, 3, 4, 6, 7]
    from hope.healing.distillation import Distillation

    found = Distillation(net, hope.cut(net, anatomy, steps), (images(2),), rows)
    assert "block" in found.features


MODEL = """
import torch
from tests.healing.test_heal import networks

def model():
    return networks()[0]
"""


def test_hope_encode_heals_and_resumes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = tmp_path / "net.py", tmp_path / "run"
    source.write_text(MODEL)
    np.save(tmp_path / "x.npy", images().numpy())
    words = ["encode", f"{source}:model", "--input", "1x3x8x8", "--density", "0.3", "--out", str(out)]
    words += ["--calibration", str(tmp_path / "x.npy"), "--heal", "20steps"]
    assert main([*words, "--report"]) == 0
    told = capsys.readouterr().out
    assert "healed: held-out fidelity" in told
    net = networks()[0]
    run, healed = read_run(out), read_run(out / "healed")
    assert not run.record.trained
    assert healed.record.trained
    assert len(healed.details.fidelities) == 2
    assert not same(hope.load(out, net), hope.load(out / "healed", net))
    assert (out / "report.html").read_text().count('"fidelity":[[') == 2
    assert main([*words, "--resume"]) == 0
    assert "already has the healed network" in capsys.readouterr().out
    assert main([*words[:-2], "--force"]) == 0  # another run has no healed network
    assert not (out / "healed").exists()


@pytest.mark.parametrize("time", ["0min", "10", "-3s", "2.5steps", "soon"])
def test_a_time_that_is_none_is_refused(time: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["encode", "torchvision:resnet18", "--params", "0.5", "--out", "x", f"--heal={time}"]
    assert main(words) == 2
    assert "give 10min or 300steps" in capsys.readouterr().err


HEAL = """
import os, sys, torch
from torch import distributed
torch.set_num_threads(1)
rank = os.environ.get("RANK", sys.argv[-1])
if "RANK" not in os.environ:
    where = {"init_method": "file://" + sys.argv[1], "rank": int(rank), "world_size": 2}
    distributed.init_process_group("gloo", **where)
import hope
from tests.healing.test_heal import images, networks
net, small = networks()
healed = hope.heal(net, small, [images(80)], steps=12, progress=False)
assert distributed.get_world_size() == 2
torch.save(healed.model.state_dict(), f"{sys.argv[1]}-{rank}")
"""


@pytest.mark.parametrize("launcher", ["torchrun", "own"])
def test_two_processes_heal_as_one_does(launcher: str, tmp_path: Path) -> None:
    place, script = tmp_path / "store", tmp_path / "heal.py"
    script.write_text(HEAL)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    own = [[sys.executable, str(script), str(place), str(rank)] for rank in range(2)]
    calls = [[*torchrun, str(script), str(place)]] if launcher == "torchrun" else own
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    every = [subprocess.Popen(call, stderr=subprocess.PIPE, env=paths) for call in calls]
    for process in every:
        _, error = process.communicate()
        assert process.returncode == 0, error.decode()[-2000:]
    one, other = (torch.load(f"{place}-{rank}") for rank in range(2))
    net, small = networks()
    alone = hope.heal(net, small, [images(80)], steps=12).model.state_dict()
    for name, value in alone.items():
        assert torch.equal(one[name], other[name])
        assert torch.allclose(one[name], value, rtol=1e-3, atol=1e-5), name
    assert any(not torch.equal(value, small.state_dict()[name]) for name, value in alone.items())
