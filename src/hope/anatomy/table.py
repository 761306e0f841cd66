"""An anatomy as text."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from hope._util.tables import grid, text

if TYPE_CHECKING:
    from hope.anatomy.anatomy import Anatomy


def render(anatomy: Anatomy) -> str:
    """The whole anatomy: layers, blocks, streams, and what is left alone with its reasons."""
    size, floor = anatomy.size(), anatomy.floor()
    share = 1 - floor.parameters / size.parameters if size.parameters else 0.0
    head = (
        f"{anatomy.model}: {size.neurons:,} compressible neurons in {len(anatomy.layers)} layers, "
        f"{len(anatomy.blocks)} blocks that can be evicted, {len(anatomy.streams)} streams\n"
        f"{size.parameters:,} parameters, of which {share:.1%} can go; {size.macs:,} MACs on the example"
    )
    parts: list[object] = [head, ""]
    if anatomy.layers:
        table = grid(
            "Neuron layers",
            " layer",
            "neurons",
            "fan-in",
            "fan-out",
            " activation",
            " BN",
            "releases",
            " goes with it",
        )
        for layer in anatomy.layers:
            neurons = f"{layer.neurons}×{layer.channels}" if layer.channels > 1 else str(layer.neurons)
            bn = layer.bn or ("several" if any(c.last("bn") for c in layer.readers) else "none")
            table.add_row(
                layer.name,
                neurons,
                str(layer.fan_in),
                str(layer.fan_out),
                layer.activation,
                bn,
                str(layer.release),
                ", ".join(layer.along),
            )
        parts += [table, ""]
    else:
        parts += ["No neuron can be removed on its own; the reasons are below.", ""]
    if anatomy.blocks:
        table = grid("Blocks that can be evicted", " block", " skip", "channels", "releases", " layers")
        for block in anatomy.blocks:
            table.add_row(
                block.name, block.skip, str(block.channels), str(block.release), ", ".join(block.layers)
            )
        parts += [table, ""]
    if anatomy.streams:
        table = grid(
            "Streams (tied by adds, not compressed yet)", " stream", "channels", "writers", "readers"
        )
        for stream in anatomy.streams:
            table.add_row(
                stream.name, str(stream.neurons), str(len(stream.writers)), str(len(stream.readers))
            )
        parts += [table, ""]
    if anatomy.skipped:
        table = grid("Left alone", " what", "outputs", " why")
        reasons = Counter((one.kind, one.reason) for one in anatomy.skipped)
        for (kind, reason), count in reasons.items():
            same = [one for one in anatomy.skipped if (one.kind, one.reason) == (kind, reason)]
            name = same[0].name if count == 1 else f"{same[0].name} and {count - 1} more"
            what = name if kind == "layer" else f"{kind} {name}"
            table.add_row(what, str(sum(one.outputs for one in same)), str(reason))
        parts += [table]
    return text(*parts)
