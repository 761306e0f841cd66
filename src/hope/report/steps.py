"""The steps of a run as data of the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from hope.actions import Action
from hope.report.absorbers import absorbers
from hope.storage.run import Run
from hope.structure.anatomy import Anatomy
from hope.structure.removed import Removed
from hope.structure.sizes import USUAL, Counts, stored


def steps_data(run: Run) -> dict[str, Any]:
    """Every step, and its differences of sizes."""
    trajectory = run.trajectory
    layers, blocks = numbers(run.anatomy)
    left = [short(step.left) for step in trajectory]  # all 0 if not recorded
    sizes = [_differences(column) for column in trajectory.sizes.T]
    return {
        "kinds": "".join(step.letter for step in trajectory),
        "targets": [
            layers.get(step.name, -1) if step.evicts is None else blocks[step.evicts] for step in trajectory
        ],
        "described": {
            str(t): step.describe() for t, step in enumerate(trajectory) if step.weight_grid is not None
        },
        "evictions": [t for t, step in enumerate(trajectory) if step.evicts is not None],
        **_neurons(trajectory.steps),
        "along": _along(run.anatomy, trajectory.steps),
        "absorbers": _absorbers(run),
        "costs": [short(step.cost) for step in trajectory],
        "releases": _changes(trajectory.steps),
        "left": left if any(left) else [],
        "neurons": sizes[0],
        "parameters": sizes[1],
        "macs": sizes[2],
        "bytes": _differences(stored(run.anatomy, trajectory.steps)),
    }


def _differences(column: Counts) -> list[int]:
    return [int(column[0]), *(int(d) for d in column[1:] - column[:-1])]


def numbers(anatomy: Anatomy) -> tuple[dict[str, int], dict[str, int]]:
    """Layers and blocks by index, as steps refer to them."""
    layers = {layer.name: n for n, layer in enumerate(anatomy.layers)}
    return layers, {block.name: n for n, block in enumerate(anatomy.blocks)}


def evictions(
    anatomy: Anatomy, steps: Sequence[Action]
) -> tuple[dict[str, int | None], dict[str, int | None]]:
    """After how many steps each layer and each block is evicted; None if it is kept."""
    evicted = {step.evicts: t for t, step in enumerate(steps, start=1) if step.evicts is not None}
    times = [(anatomy.block(name), t) for name, t in evicted.items()]

    def first(name: str) -> float:
        return min((t for block, t in times if block.removes(name)), default=math.inf)

    def known(time: float) -> int | None:
        return None if math.isinf(time) else int(time)

    layers = {
        layer.name: known(max(first(name) for weight in layer.written for name in anatomy.names(weight)))
        for layer in anatomy.layers
    }
    inside = {block.name: block.inside for block in anatomy.blocks}
    blocks: dict[str, int | None] = {}
    for block in anatomy.blocks:
        found, name = math.inf, block.name
        while name in inside:
            found = min(found, evicted.get(name, math.inf))
            name = inside[name] or ""
        blocks[block.name] = known(found)
    return layers, blocks


def layer_bits(anatomy: Anatomy, steps: Sequence[Action]) -> dict[str, list[tuple[int, str]]]:
    """Layer -> (steps, bits of the weights that write it from then on), "4–8" if they differ; empty if
    nothing is rounded.
    """
    grids = [(t, step.entry_bits(anatomy)) for t, step in enumerate(steps, 1) if step.weight_grid is not None]
    found: dict[str, list[tuple[int, str]]] = {}
    for layer in anatomy.layers if grids else ():
        outputs = {*layer.written, *(part.tensor for part in layer.places if part.role == "out")}
        weights = [name for name in outputs if len(anatomy.shapes[name]) > 1]
        now = {name: 8.0 * anatomy.itemsize.get(name, USUAL) for name in weights}
        found[layer.name] = [(0, _span(now))]
        for t, bits in grids:
            now |= {name: value for name, value in bits.items() if name in now}
            if _span(now) != found[layer.name][-1][1]:
                found[layer.name].append((t, _span(now)))
    return found


def _span(bits: Mapping[str, float]) -> str:
    """The least and the most, in words."""
    return "–".join(f"{value:g}" for value in sorted({min(bits.values()), max(bits.values())}))


def _neurons(steps: Sequence[Action]) -> dict[str, Any]:
    """Per step: the removed neuron, its parent (-1 for none), and the whole list if several are removed at
    once.
    """
    who, into = [], []
    several: dict[str, list[int]] = {}
    for t, step in enumerate(steps):
        who.append(step.removed[0] if step.removed else -1)
        into.append(-1 if step.parent is None else step.parent)
        if len(step.removed) != 1 and step.evicts is None:
            several[str(t)] = list(step.removed)
    return {"who": who, "into": into, "several": several}


def _along(anatomy: Anatomy, steps: Sequence[Action]) -> dict[str, dict[int, list[int]]]:
    """Eviction of a segment of a chain -> layer -> its neurons without a counterpart, which are also
    removed.
    """
    layers, _ = numbers(anatomy)
    account = Removed(anatomy)
    found: dict[str, dict[int, list[int]]] = {}
    for t, step in enumerate(steps):
        lost = account.take(step)
        if step.evicts is not None and anatomy.block(step.evicts).before is not None:
            some = {layers[name]: sorted(neurons) for name, neurons in lost.items() if neurons}
            found |= {str(t): some} if some else {}
    return found


def _absorbers(run: Run) -> dict[str, list[list[float]]]:
    """Absorbing step -> [absorber, share, absorber, share …], if moments are known."""
    times: dict[str, list[int]] = {}
    for t, step in enumerate(run.trajectory):
        if step.compensates and len(step.removed) == 1:
            times.setdefault(step.name, []).append(t)
    found: dict[str, list[list[float]]] = {}
    input_statistics = run.input_statistics() if times else {}
    for name, some in times.items():
        order = [run.trajectory[t].removed[0] for t in some]
        shares = absorbers(run.anatomy.unit(name), input_statistics, order)
        for t, taken in zip(some, shares or (), strict=False):
            found[str(t)] = [[neuron, round(share, 3)] for neuron, share in taken]
    return found


def _changes(steps: Sequence[Action]) -> list[int]:
    """ΔP of each step less that of the step before in the same unit or block: mostly zeros."""
    last: dict[tuple[bool, str], int] = {}
    found = []
    for step in steps:
        key = (step.evicts is not None, step.name)
        found.append(step.release - last.get(key, 0))
        last[key] = step.release
    return found


def short(value: float) -> float | None:
    """Five digits; None if not finite."""
    return float(f"{value:.5g}") if math.isfinite(value) else None
