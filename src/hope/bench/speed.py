"""How long encoding takes, against the Gram products that it cannot do without and against rescanning
everything.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from hope.anatomy.anatomy import Anatomy
from hope.bench.networks import ResNet50V1
from hope.encoder.path import LayerPath
from hope.encoder.state import LayerState
from hope.encoding import encode
from hope.geometry import costs
from hope.inspection import inspect
from hope.surrogate import moments


def _seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def peak_megabytes() -> float:
    """The most memory this process has had so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def gram_products(model: torch.nn.Module, anatomy: Anatomy) -> None:
    """The float64 Gram products of every layer, and nothing else."""
    tensors = dict(model.named_parameters())
    for layer in anatomy.layers:
        for part in layer.slices:
            if part.role in ("out", "in"):
                weight = tensors[part.tensor].detach().double().movedim(part.dim, 0)
                rows = weight[torch.from_numpy(part.index[:, 0])].flatten(1)
                torch.mm(rows, rows.T)


def random_layer(neurons: int, fan_in: int, fan_out: int, seed: int = 0) -> LayerState:
    """A layer with random weights and BN numbers."""
    generator = torch.Generator().manual_seed(seed)
    filters = torch.randn(neurons, fan_in, generator=generator, dtype=torch.float64)
    outgoing = torch.randn(neurons, fan_out, generator=generator, dtype=torch.float64)
    mean = 0.5 * torch.randn(neurons, generator=generator, dtype=torch.float64)
    spread = 0.5 + torch.rand(neurons, generator=generator, dtype=torch.float64)
    filters *= (spread / filters.norm(dim=1))[:, None]
    slope = torch.zeros(neurons, dtype=torch.float64)
    energy = moments.energy(mean, spread, slope)
    inner, outer = filters @ filters.T + torch.outer(mean, mean), outgoing @ outgoing.T
    del filters, outgoing
    capacities = torch.sqrt(energy * outer.diagonal())
    return LayerState(
        "random", capacities, fan_in + fan_out + 4, mean, spread, slope, energy, mean.clone(), inner, outer
    )


def naive_seconds(state: LayerState, steps: int) -> float:
    """Time of a loop that looks at all pairs at each step, on geometry that is already there."""
    path = LayerPath(state, merge="pair", kernel="zero-bias")
    start = time.perf_counter()
    for _ in range(steps):
        alive = np.flatnonzero(path.alive)
        total = path.total
        squares = path.capacities[alive] ** 2
        sums = squares[:, None] + squares[None, :]
        rest = costs.remaining(total, path.capacities[alive][:, None], path.capacities[alive][None, :])
        grid = np.ix_(alive, alive)
        cost = costs.merge_pair(path.count, sums, path.alignment[grid], rest)
        np.fill_diagonal(cost, np.inf)
        cost.min()
        path.step()
    return time.perf_counter() - start


def whole_network() -> dict[str, float]:
    """ResNet-50 from 1.0 to density 0.3 (random weights), against its Gram products and a naive rescan."""
    torch.manual_seed(0)
    model = ResNet50V1().eval()
    anatomy = inspect(model, torch.zeros(1, 3, 64, 64))
    example = torch.zeros(1, 3, 64, 64)
    gram_products(model, anatomy)  # warm up
    grams = min(_seconds(lambda: gram_products(model, anatomy)) for _ in range(3))
    before = peak_megabytes()
    seconds = min(_seconds(lambda: encode(model, example, density=0.3, anatomy=anatomy)) for _ in range(2))
    return {
        "gram seconds": grams,
        "encode seconds": seconds,
        "encode / grams": seconds / grams,
        "megabytes beyond the model": peak_megabytes() - before,
    }


def one_layer(neurons: int, fan: int = 2048) -> dict[str, float]:
    """One layer's whole path, with its time, its memory, and the naive loop's time per step for
    comparison.
    """
    before = peak_megabytes()
    start = time.perf_counter()
    state = random_layer(neurons, fan, fan)
    path = LayerPath(state, merge="pair", kernel="zero-bias")
    geometry = time.perf_counter() - start
    for _ in path.moves():
        pass
    seconds = time.perf_counter() - start
    return {
        "neurons": neurons,
        "geometry seconds": geometry,
        "seconds": seconds,
        "megabytes": peak_megabytes() - before,
    }
