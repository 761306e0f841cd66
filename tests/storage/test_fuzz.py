"""Folders from strangers: whatever is changed in them, loading gives a network or a `HopeError`.

Records are changed at random places and their hashes put right, as somebody would who forges them. A case may
take `SECONDS` of processor time, and as much memory as `MEMORY` more. `make stress` runs $HOPE_STRESS cases.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import random
import resource
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load, save

import hope
from hope._util.digest import digest_of
from hope.latency.cache import Table
from hope.latency.runtime import Runtime
from hope.report.page import write_page
from hope.storage.run import read_run
from tests.golden.record import digits
from tests.storage.record import OLD

CASES = int(os.environ.get("HOPE_STRESS", "60"))
SECONDS, MEMORY = 20, 4 << 30
FOLDERS = ["run-v3-hope", "run-v3-latency", "run-v3-trained", "run-v2-absorb", "adapter-v2-mask"]
NUMBERS = [0, 1, -1, 2, 7, 31, 10**6, 2**31, 2**63, 10**30, 0.5, -0.0, 1e308, math.inf, math.nan]
WORDS = ["", "x", "stem.0", "head", "..", "absorb"]
NESTED: list[Any] = [[], [[]], [0], [[0, 1]], [1, 2, 3, 4, 5, 6], {}, {"name": "x"}]
VALUES: list[Any] = [None, True, *NUMBERS, *WORDS, *NESTED]
TYPES = [torch.int8, torch.bool, torch.float16, torch.complex64, torch.float64]
Place = tuple[Any, Any]  # a list or dict, and an index or key in it


class Slow(BaseException):
    """A case takes too long."""


@contextmanager
def limits() -> Iterator[None]:
    """An end of time and memory."""

    def stop(number: int, frame: object) -> None:
        raise Slow

    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, before[1]))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)


def places(value: Any) -> list[Place]:
    """All entries inside a JSON value."""
    entries: Iterable[tuple[Any, Any]] = ()
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list):
        entries = enumerate(value)
    return [place for key, inner in entries for place in ((value, key), *places(inner))]


def mutate(plan: Any, draw: random.Random) -> None:
    """Change, remove, exchange or repeat one entry."""
    inside, key = draw.choice(places(plan))
    other, at = draw.choice(places(plan))
    kind = draw.randrange(6)
    if kind == 0:
        del inside[key]
    elif kind == 1:
        inside[key] = copy.deepcopy(other[at])
    elif kind == 2 and isinstance(inside, list):
        inside.insert(key, copy.deepcopy(inside[key]))
    elif kind == 3 and isinstance(inside[key], (int, float)):
        inside[key] += draw.choice([-1, 1, 1000])
    else:
        inside[key] = copy.deepcopy(draw.choice(VALUES))


def mutated_tensors(data: bytes, draw: random.Random) -> bytes:
    """One tensor of other numbers, of another type or shape, missing or under another name."""
    tensors = load(data)
    name = draw.choice(sorted(tensors))
    tensor = tensors.pop(name)
    changes: list[Callable[[], torch.Tensor]] = [
        lambda: tensor.flatten()[1:],
        lambda: tensor[None],
        lambda: tensor.new_zeros(0),
        lambda: torch.full_like(tensor, math.nan) if tensor.is_floating_point() else tensor,
        lambda: (tensor.float() * math.inf).to(tensor.dtype) if tensor.is_floating_point() else tensor,
        lambda: tensor.to(draw.choice(TYPES)),
        lambda: torch.zeros(draw.choice([(), (1,), (3, 5), (2, 0), (7, 7, 7)])),
    ]
    kind = draw.randrange(len(changes) + 2)
    if kind < len(changes):
        tensors[name] = changes[kind]().contiguous().clone()
    elif kind == len(changes):
        tensors[f"{name}.x"] = tensor
    return save(tensors)


def forge(folder: Path, draw: random.Random) -> None:
    """Change a saved folder, and put the hashes right."""
    path = folder / ("adapter.json" if (folder / "adapter.json").exists() else "trajectory.json")
    plan = json.loads(path.read_text())
    if draw.random() < 0.4:
        owners = [inside for inside, key in places(plan) if key == "file" and "sha256" in inside]
        arrays = draw.choice(owners)
        file = folder / arrays["file"]
        file.write_bytes(mutated_tensors(file.read_bytes(), draw))
        arrays["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    else:
        for _ in range(draw.choice([1, 1, 1, 2, 5])):
            mutate(plan, draw)
    path.write_text(json.dumps({**plan, "sha256": digest_of(plan)}))


def uses(folder: Path) -> list[Callable[[], object]]:
    """What is done with a folder."""
    net = digits()
    if folder.name.startswith("adapter"):
        return [lambda: hope.deft.load(folder, net).model]
    return [
        lambda: hope.load(folder, net),
        lambda: hope.load(folder, net, params=0.75),
        lambda: write_page([read_run(folder)], folder / "page.html"),
        lambda: read_run(folder).inputs(),
    ]


def attempt(use: Callable[[], object], case: str) -> bool:
    """Whether it was refused; every other error fails."""
    found, refusal = None, None
    try:
        with limits():
            found = use()
    except hope.HopeError as error:
        refusal = str(error)
    except (Exception, Slow) as error:
        raise AssertionError(f"{case}: {type(error).__name__}: {error}") from error
    assert refusal is None or "\n" not in refusal, case
    if isinstance(found, torch.nn.Module):
        assert all(bool(one.isfinite().all()) for one in found.state_dict().values()), case
    return refusal is not None


@pytest.mark.parametrize("name", FOLDERS)
def test_forged_folders(name: str, tmp_path: Path) -> None:
    refused, wrong = list[bool](), list[str]()
    for seed in range(CASES // len(FOLDERS)):
        folder = tmp_path / f"{name}-{seed}"
        shutil.copytree(OLD / name, folder)
        forge(folder, random.Random(f"{name} {seed}"))
        for number, use in enumerate(uses(folder)):
            try:
                refused.append(attempt(use, f"{name} {seed}, use {number}"))
            except AssertionError as error:
                wrong.append(str(error))
        shutil.rmtree(folder)
    assert not wrong, "\n".join(wrong)
    assert any(refused)
    assert not all(refused)


def test_cut_and_flipped_folders(tmp_path: Path) -> None:
    for seed in range(CASES // 4):
        draw = random.Random(seed)
        name = draw.choice(FOLDERS)
        folder = tmp_path / f"{name}-{seed}"
        shutil.copytree(OLD / name, folder)
        file = draw.choice(sorted(path for path in folder.iterdir() if "moments" not in path.name))
        data = bytearray(file.read_bytes())
        at = draw.randrange(len(data))
        if draw.random() < 0.3:
            del data[at:]
        else:
            data[at] ^= 1 << draw.randrange(8)
        file.write_bytes(data)
        with pytest.raises(hope.HopeError):
            uses(folder)[0]()
        shutil.rmtree(folder)


def test_forged_latencies(tmp_path: Path) -> None:
    runtime = Runtime("torch", 1, 1)
    table = Table(runtime, tmp_path)
    table.kept.operators["relu"] = {"8x8": 100.0}
    table.kept.networks["0" * 8] = [1.0, 2.0]
    table.write()
    plan = json.loads(table.path.read_text())
    for seed in range(CASES):
        draw, changed = random.Random(seed), copy.deepcopy(plan)
        mutate(changed, draw)
        table.path.write_text(json.dumps({**changed, "sha256": digest_of(changed)}))
        with limits():
            read = Table(runtime, tmp_path).kept
        every = [*(known.values() for known in read.operators.values()), *read.networks.values()]
        assert all(value > 0 for some in every for value in some)
