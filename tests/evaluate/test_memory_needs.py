"""A run that cannot fit is refused before it starts, with the least that it needs; one that fits is not."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import hope
from hope._util.allocation import allocations
from hope._util.memory import allowed, limited
from hope.cli.main import main
from hope.errors import NotEnoughMemory
from hope.evaluate.memory_needs import BASE, _Signals, memory_needed
from hope.statistics.checkpoint import Checkpoint
from hope.statistics.propagated import Propagated
from tests.support import randomise

WIDE = """
import re, resource, torch, hope
from pathlib import Path
from hope.evaluate.memory_needs import memory_needed
net = torch.nn.Sequential(
    torch.nn.Linear(16, 1536), torch.nn.BatchNorm1d(1536), torch.nn.ReLU(), torch.nn.Linear(1536, 4)
).eval()
x = torch.zeros(2, 16)
anatomy, method = hope.inspect(net, x), hope.named(METHOD)
hope.encode(net, x, steps=4, method=method, anatomy=anatomy).model
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
status = Path("/proc/self/status")
if status.is_file():  # there the peak above may be that of the process that started this one
    peak = int(re.search(r"VmHWM:\\s+(\\d+)", status.read_text())[1]) * 1024
print(peak / memory_needed(net, anatomy, method, 256, 2))
"""


class Residual(nn.Module):
    """A stem, two blocks with a skip, and a head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.blocks = nn.ModuleList(
            nn.Sequential(
                nn.Conv2d(width, width, 1), nn.BatchNorm2d(width), nn.ReLU(),
                nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width),
            )
            for _ in range(2)
        )  # fmt: skip
        self.head = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.stem(x)).relu()
        for block in self.blocks:
            x = (x + block(x)).relu()
        return self.head(x.mean(dim=(2, 3)))  # type: ignore[no-any-return]


def chain(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(4, width), nn.BatchNorm1d(width), nn.ReLU(), nn.Linear(width, 3)).eval()


def test_a_run_is_refused_with_the_least_it_needs_and_runs_with_that() -> None:
    net, x = chain(1024), torch.zeros(2, 4)
    with pytest.raises(NotEnoughMemory, match=r"at least 0\.\d GB of memory, got 0\.2 GB") as error:
        hope.encode(net, x, steps=1, memory="200MB")
    found = re.search(r"at least (\S+ GB)", str(error.value))
    assert found is not None
    assert hope.encode(net, x, steps=1, memory=found[1]).steps == 1


def test_the_argument_comes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOPE_MEMORY", "0.1")
    net, x = chain(8), torch.zeros(2, 4)
    with pytest.raises(NotEnoughMemory, match=r"got 0\.1 GB"):
        hope.encode(net, x, steps=1)
    assert hope.encode(net, x, steps=1, memory=64).steps == 1
    with limited("1GiB"):
        assert allowed() == 2**29
    assert allowed() == 50_000_000


@pytest.mark.parametrize(
    ("method", "matrices"),
    [
        (hope.Paper(), 6),
        (hope.Paper(merge=None), 0),
        (hope.Score("l1-in"), 0),
        # three signals, a covariance, two matrices and their copies, two for the inverse
        (hope.Absorb(calibration=None), 10),
    ],
    ids=str,
)
def test_matrices_of_a_layers_width_are_counted(method: hope.Method, matrices: int) -> None:
    net, width = chain(512), 512
    anatomy = hope.inspect(net, torch.zeros(2, 4))
    needed = memory_needed(net, anatomy, method, 0, refits=False) - BASE
    assert needed == pytest.approx(matrices * 8 * width**2, abs=8 * width**2 * 0.45)


def test_what_is_propagated_is_counted_as_it_is() -> None:
    net = randomise(Residual(32)).eval()
    anatomy = hope.inspect(net, torch.zeros(1, 3, 8, 8))
    found = Propagated(anatomy.program, Checkpoint.of(net, anatomy).tensors)
    signals = {one.covariance.data_ptr(): one.covariance for one in found.signals if one is not None}
    weights = [reading.weight for reading in found.by_operation.values()]
    assert _Signals(anatomy).held == pytest.approx(
        sum(t.nbytes for t in (*signals.values(), *weights)), rel=0.1
    )
    assert _Signals(anatomy).peak > 1.5 * _Signals(anatomy).held
    assert not found.known


@pytest.mark.parametrize("method", ["absorb", "paper"])
def test_the_count_is_within_a_factor_of_what_a_process_has(method: str) -> None:
    code = WIDE.replace("hope.named(METHOD)", f"hope.methods.named({method!r})")
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert 1 / 1.5 < float(ran.stdout) < 1.5


@pytest.mark.parametrize(
    "attempt", [lambda: torch.empty(2**50), lambda: [0] * 2**60], ids=["torch", "python"]
)
def test_an_allocation_that_fails_is_one_line(attempt: Any) -> None:
    with pytest.raises(NotEnoughMemory, match="more memory than there is") as error, allocations():
        attempt()
    assert "\n" not in str(error.value)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shape") as error, allocations():
        torch.zeros(2).reshape(3)
    assert not isinstance(error.value, hope.HopeError)


def test_the_command_line_refuses_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "net.py").write_text("from tests.evaluate.test_memory_needs import chain\n\n\ndef build():\n"
                                     "    return chain(8)\n")  # fmt: skip
    call = ["encode", f"{tmp_path / 'net.py'}:build", "--input", "2x4", "--steps", "1", "--out"]
    assert main([*call, str(tmp_path / "run"), "--memory", "1MB"]) == 2
    assert re.search(
        r"hope: this run must have at least 0\.\d GB of memory, got 0\.0 GB", capsys.readouterr().err
    )
    assert not list((tmp_path / "run").glob("*.json"))
    assert main([*call, str(tmp_path / "run"), "--memory", "64GB"]) == 0
