"""Text and HTML tables of a network's structure."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.table import Table

from hope._util.numbers import plural
from hope._util.tables import grid, text
from hope.reasons import Cause
from hope.structure.needs import Need, counts, needs

if TYPE_CHECKING:
    from hope.structure.anatomy import Anatomy


def render(anatomy: Anatomy) -> str:
    """The tables as text."""
    return text(*parts_of(anatomy))


def parts_of(anatomy: Anatomy) -> list[object]:
    """Tables of layers, blocks and streams, and of what is kept, with the reasons."""
    size, floor = anatomy.size(), anatomy.floor()
    share = 1 - floor.parameters / size.parameters if size.parameters else 0.0
    head = (
        f"{anatomy.model}: {plural(size.neurons, 'compressible neuron')} in "
        f"{plural(len(anatomy.layers), 'layer')}\n"
        f"{plural(len(anatomy.blocks), 'evictable block')}, {plural(len(anatomy.streams), 'stream')}\n"
        f"{size.parameters:,} parameters, of which {share:.1%} are prunable\n"
        f"{size.macs:,} MACs on the example"
    )
    parts: list[object] = [head, "", _needs(anatomy)]
    if any(layer.channels > 1 for layer in anatomy.layers):
        parts.append("(a neuron with several channels counts once for each channel)")
    parts.append("")
    if anatomy.layers:
        parts += [_layers(anatomy), ""]
    else:
        parts += ["No neuron can be removed on its own; the reasons are below.", ""]
    if anatomy.blocks:
        table = grid("Evictable blocks", " block", " skip", "channels", "saves", " layers?")
        for block in anatomy.blocks:
            layers = ", ".join(block.layers)
            table.add_row(block.name, block.skip, str(block.channels), str(block.release), layers)
        parts += [table, ""]
    if anatomy.streams:
        table = grid("Streams (joined by adds)", " stream", "channels", "writers", "readers", " prunable")
        waiting = {one.name for one in anatomy.skipped if one.reason.cause is Cause.STREAM}
        for one in anatomy.streams:
            prunable = "yes" if one.open else "with streams=True" if waiting & set(one.writers) else "no"
            table.add_row(one.name, str(one.neurons), str(len(one.writers)), str(len(one.readers)), prunable)
        parts += [table, ""]
    if anatomy.skipped:
        parts += [_left_alone(anatomy), ""]
    if anatomy.roundable:
        parts.append(_roundable(anatomy))
    return parts


def _needs(anatomy: Anatomy) -> Table:
    table = grid("Prunable neurons", " ", "without data", "only with calibration", "not at all")
    found, paper = counts(anatomy), counts(anatomy, "paper")
    table.add_row("by absorption, the default", *(f"{found[need]:,}" for need in Need))
    if paper != found:
        table.add_row("by the paper's method", *(f"{paper[need]:,}" for need in Need))
    return table


def _layers(anatomy: Anatomy) -> Table:
    first = (" layer", "neurons", "fan-in?", "fan-out?", " activation", " BN?", " needs")
    table = grid("Neuron layers", *first, "saves?", " removed with it?")
    need = needs(anatomy)
    for layer in anatomy.layers:
        neurons = f"{layer.neurons}×{layer.channels}" if layer.channels > 1 else str(layer.neurons)
        bn = layer.bn or ("several" if any(reader.last("bn") for reader in layer.readers) else "none")
        numbers = (neurons, str(layer.fan_in), str(layer.fan_out))
        along = ", ".join(layer.along)
        table.add_row(
            layer.name, *numbers, layer.activation, bn, need[layer.name].value, str(layer.release), along
        )
    return table


def _left_alone(anatomy: Anatomy) -> Table:
    table = grid("Kept", " what", "outputs", " why")
    reasons = Counter((one.kind, one.reason) for one in anatomy.skipped)
    for (kind, reason), count in reasons.items():
        same = [one for one in anatomy.skipped if (one.kind, one.reason) == (kind, reason)]
        name = same[0].name if count == 1 else f"{same[0].name} and {count - 1} more"
        what = name if kind == "layer" else f"{kind} {name}"
        table.add_row(what, str(sum(one.outputs for one in same)), str(reason))
    return table


def _roundable(anatomy: Anatomy) -> Table:
    """How many weights bits can round, and why the others cannot be."""
    table = grid("Weights that can be rounded (bits=8)", " what", "weights", "entries", " why not")

    def entries(names: Sequence[str]) -> str:
        return f"{sum(math.prod(anatomy.shapes[name]) for name in names):,}"

    yes = [name for name, reason in anatomy.roundable.items() if reason is None]
    table.add_row("can be rounded", str(len(yes)), entries(yes), "")
    for reason in dict.fromkeys(filter(None, anatomy.roundable.values())):
        same = [name for name, one in anatomy.roundable.items() if one == reason]
        what = same[0] if len(same) == 1 else f"{same[0]} and {len(same) - 1} more"
        table.add_row(what, str(len(same)), entries(same), str(reason))
    short = [name for name in anatomy.parameters if name not in anatomy.roundable]
    if short:
        table.add_row("biases, norms", str(len(short)), entries(short), "one dimension")
    return table
