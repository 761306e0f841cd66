"""How long encoding takes, against the Gram products that it cannot do without."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hope.api import encode, inspect
from hope.structure.anatomy import Anatomy


def seconds(work: Callable[[], Any], repeats: int = 1) -> float:
    """The least time that a call takes."""
    found = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        found.append(time.perf_counter() - start)
    return min(found)


def resident_megabytes() -> float:
    """Memory of this process now; what it needs beyond is counted from here on (where Linux permits)."""
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the imports
    return _status("VmRSS")


def peak_megabytes() -> float:
    """The most memory this process has had since then."""
    return _status("VmHWM")


def _status(name: str) -> float:
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def gram_products(model: nn.Module, anatomy: Anatomy) -> None:
    """The float64 Gram products of every layer, and nothing else."""
    tensors = dict(model.named_parameters())
    for layer in anatomy.layers:
        for part in layer.places:
            if part.role in ("out", "in"):
                weight = tensors[part.tensor].detach().double().movedim(part.dim, 0)
                rows = weight[torch.from_numpy(part.index[:, 0])].flatten(1)
                torch.mm(rows, rows.T)


def whole_network(model: nn.Module, example: Tensor, *, density: float = 0.3) -> dict[str, float]:
    """A network from 1.0 to a density by the paper's method, against its Gram products, and by absorption."""
    anatomy = inspect(model, example, progress=False)
    run = partial(encode, model, example, density=density, anatomy=anatomy, progress=False)
    gram_products(model, anatomy)  # warm up
    grams = seconds(partial(gram_products, model, anatomy), 3)
    before = resident_megabytes()
    paper = seconds(partial(run, method="paper"), 2)
    memory = peak_megabytes() - before
    absorb = seconds(partial(run, method="absorb", evict=False), 2)
    return {
        "steps": run(method="paper").steps,
        "gram seconds": grams,
        "encode seconds": paper,
        "encode / grams": paper / grams,
        "megabytes beyond the model": memory,
        "absorb / paper": absorb / paper,
        "absorb, with / without evictions": seconds(partial(run, method="absorb")) / absorb,
    }
