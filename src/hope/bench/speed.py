"""How long encoding takes, against the Gram products that it cannot do without and against rescanning
everything. `python -m hope.bench.speed NEURONS` measures one layer.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hope.api import encode, inspect
from hope.encoding import Encoding
from hope.geometry import costs, gaussian
from hope.methods.pairs import PairPath, PaperState
from hope.methods.paper import Paper
from hope.schedule.search_space import SearchSpace
from hope.structure.anatomy import Anatomy
from hope.structure.steps import Evict


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


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


def gram_products(model: torch.nn.Module, anatomy: Anatomy) -> None:
    """The float64 Gram products of every layer, and nothing else."""
    tensors = dict(model.named_parameters())
    for layer in anatomy.layers:
        for part in layer.places:
            if part.role in ("out", "in"):
                weight = tensors[part.tensor].detach().double().movedim(part.dim, 0)
                rows = weight[torch.from_numpy(part.index[:, 0])].flatten(1)
                torch.mm(rows, rows.T)


def random_layer(neurons: int, fan_in: int, fan_out: int, seed: int = 0) -> PaperState:
    """A layer with random weights and BN numbers."""
    generator = torch.Generator().manual_seed(seed)
    filters = torch.randn(neurons, fan_in, generator=generator, dtype=torch.float64)
    outgoing = torch.randn(neurons, fan_out, generator=generator, dtype=torch.float64)
    mean = 0.5 * torch.randn(neurons, generator=generator, dtype=torch.float64)
    spread = 0.5 + torch.rand(neurons, generator=generator, dtype=torch.float64)
    filters *= (spread / filters.norm(dim=1))[:, None]
    slope = torch.zeros(neurons, dtype=torch.float64)
    energy = gaussian.energy(mean, spread, slope)
    inner, outer = filters @ filters.T + torch.outer(mean, mean), outgoing @ outgoing.T
    del filters, outgoing
    capacities = torch.sqrt(energy * outer.diagonal())
    return PaperState(
        "random", capacities, fan_in + fan_out + 4, mean, spread, slope, energy, mean.clone(), inner, outer
    )


def scan(path: PairPath) -> float:
    """The least cost over all pairs of a layer, on geometry that is already there: a naive step."""
    squares = path.capacities**2
    rest = costs.remaining(path.left, path.capacities[:, None], path.capacities[None, :])
    sums = squares[:, None] + squares[None, :]
    cost = costs.merge_pair(path.neurons, path.distance, path.alignment, rest, sums)
    np.fill_diagonal(cost, np.inf)
    return float(cost.min())


def looks(paths: Sequence[PairPath], encoding: Encoding) -> float:
    """How many looks at all pairs of the whole network a naive loop takes, each step charged by the pairs
    that were still there.
    """
    left = {path.state.name: path.neurons for path in paths}
    inside = {block.name: block.layers for block in encoding.anatomy.blocks}
    at_first, looked_at = sum(n * n for n in left.values()), 0
    for step in encoding.trajectory.steps[: encoding.steps]:
        looked_at += sum(n * n for n in left.values())
        if isinstance(step, Evict):
            left.update((name, 0) for name in inside[step.name] if name in left)
        else:
            left[step.name] -= 1
    return looked_at / max(1, at_first)


def whole_network(model: nn.Module, example: Tensor, *, density: float = 0.3) -> dict[str, float]:
    """A network from 1.0 to a density, against its Gram products and a naive rescan."""
    anatomy = inspect(model, example, progress=False)

    def encoded(method: str = "hope", **options: Any) -> Encoding:
        return encode(
            model, example, density=density, anatomy=anatomy, method=method, progress=False, **options
        )

    gram_products(model, anatomy)  # warm up
    grams = min(_seconds(lambda: gram_products(model, anatomy)) for _ in range(3))
    before = resident_megabytes()
    seconds = min(_seconds(encoded) for _ in range(2))
    memory = peak_megabytes() - before
    encoding, grown = encoded(), encoded(evict=False)
    longer = _seconds(lambda: encoded(evict=False))
    plan = SearchSpace.of(model, example, anatomy, Paper(), evict=False)
    states = [state for state in plan.states if isinstance(state, PaperState)]
    paths: list[PairPath] = []
    anew = _seconds(lambda: paths.extend(map(Paper().path, states)))
    kept = min(_seconds(lambda: [scan(path) for path in paths]) for _ in range(3))
    with_evictions, without = looks(paths, encoding), looks(paths, grown)
    absorb = min(_seconds(lambda: encoded("absorb", evict=False)) for _ in range(2))
    deciding = _seconds(lambda: encoded("absorb"))
    return {
        "steps": encoding.steps,
        "gram seconds": grams,
        "encode seconds": seconds,
        "encode / grams": seconds / grams,
        "naive rescan / encode": anew * with_evictions / seconds,
        "the same, pairs kept": kept * with_evictions / seconds,
        "megabytes beyond the model": memory,
        "steps without evictions": grown.steps,
        "naive rescan / encode, no evictions": anew * without / longer,
        "the same, pairs kept, no evictions": kept * without / longer,
        "absorb / hope": absorb / seconds,
        "absorb / hope, both without evictions": absorb / longer,
        "absorb, with / without evictions": deciding / absorb,
    }


def one_layer(neurons: int, fan: int = 2048) -> dict[str, float]:
    """One layer's whole path: its time and its memory."""
    before = resident_megabytes()
    start = time.perf_counter()
    state = random_layer(neurons, fan, fan)
    path = PairPath(state, merge="pair", kernel="zero-bias")
    geometry = time.perf_counter() - start
    for _ in path.steps():
        pass
    seconds = time.perf_counter() - start
    return {
        "neurons": neurons,
        "geometry seconds": geometry,
        "seconds": seconds,
        "megabytes": peak_megabytes() - before,
    }


def layers(widths: Sequence[int]) -> list[dict[str, float]]:
    """Layers of these widths, each in a process of its own, so that its peak memory is its own."""
    found = []
    for width in widths:
        command = [sys.executable, "-m", "hope.bench.speed", str(width)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        found.append(json.loads(done.stdout))
    return found


if __name__ == "__main__":
    print(json.dumps(one_layer(int(sys.argv[1]))))
