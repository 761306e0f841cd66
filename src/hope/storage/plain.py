"""An anatomy as plain data (JSON types) and back, so that a saved run can be replayed without reading the
network again.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import numpy as np

from hope.anatomy.anatomy import Anatomy
from hope.anatomy.labels import Ids
from hope.anatomy.reasons import Cause
from hope.anatomy.units import Consumer, NeuronLayer, Skipped, Slice, Stream
from hope.anatomy.values import Link
from hope.graph.blocks import Block, Replace, Silence


def to_plain(anatomy: Anatomy) -> dict[str, Any]:
    """JSON types only."""
    return {
        "model": anatomy.model,
        "layers": [_layer(layer) for layer in anatomy.layers],
        "blocks": [
            {**asdict(block), "way": {"kind": type(block.way).__name__.lower(), **asdict(block.way)}}
            for block in anatomy.blocks
        ],
        "streams": [
            {
                **_fields(stream),
                "mixed": str(stream.mixed or ""),
                "slices": [_slice(s) for s in stream.slices],
                "owners": [_pack(owner.reshape(-1, 1)) for owner in stream.owners],
            }
            for stream in anatomy.streams
        ],
        "skipped": [{**vars(one), "reason": str(one.reason)} for one in anatomy.skipped],
        "shapes": {name: list(shape) for name, shape in anatomy.shapes.items()},
        "parameters": sorted(anatomy.parameters),
        "positions": dict(anatomy.positions),
        "aliases": {name: list(names) for name, names in anatomy.aliases.items()},
    }


def from_plain(data: dict[str, Any]) -> Anatomy:
    """The reverse of `to_plain`."""
    return Anatomy(
        model=data["model"],
        layers=tuple(_read_layer(layer) for layer in data["layers"]),
        blocks=tuple(_read_block(block) for block in data["blocks"]),
        streams=tuple(
            Stream(
                s["name"],
                s["channels"],
                tuple(s["writers"]),
                tuple(s["readers"]),
                tuple(_read_slice(p) for p in s["slices"]),
                tuple(_unpack(owner)[:, 0] for owner in s.get("owners", ())),
                Cause.TOLD.at(detail=s["mixed"]) if s.get("mixed") else None,
            )
            for s in data["streams"]
        ),
        skipped=tuple(
            Skipped(one["name"], one["outputs"], Cause.TOLD.at(detail=one["reason"]), one["kind"])
            for one in data["skipped"]
        ),
        shapes={name: tuple(shape) for name, shape in data["shapes"].items()},
        parameters=frozenset(data["parameters"]),
        positions=data["positions"],
        aliases={name: tuple(names) for name, names in data["aliases"].items()},
    )


def _fields(value: Any) -> dict[str, Any]:
    return {
        name: list(v) if isinstance(v, tuple) else v
        for name, v in vars(value).items()
        if name not in ("slices", "consumers", "bn", "activation")
    }


def _layer(layer: NeuronLayer) -> dict[str, Any]:
    consumers = [
        {
            "weight": c.weight,
            "path": [[step.kind, step.name, list(step.values), step.tensor] for step in c.path],
        }
        for c in layer.consumers
    ]
    return {**_fields(layer), "consumers": consumers, "slices": [_slice(s) for s in layer.slices]}


def _read_layer(data: dict[str, Any]) -> NeuronLayer:
    consumers = tuple(
        Consumer(
            c["weight"],
            tuple(Link(kind, name, tuple(values), tensor) for kind, name, values, tensor in c["path"]),
        )
        for c in data["consumers"]
    )
    rest = {
        **data,
        "also": tuple(data["also"]),
        "consumers": consumers,
        "slices": tuple(_read_slice(s) for s in data["slices"]),
    }
    return NeuronLayer(**rest)


def _read_block(data: dict[str, Any]) -> Block:
    way = dict(data["way"])
    kind = {"replace": Replace, "silence": Silence}[way.pop("kind")]
    way = {name: tuple(value) if isinstance(value, list) else value for name, value in way.items()}
    return Block(
        **{**data, "layers": tuple(data["layers"]), "tensors": tuple(data["tensors"]), "way": kind(**way)}
    )


def _slice(part: Slice) -> dict[str, Any]:
    return {"tensor": part.tensor, "dim": part.dim, "role": part.role, "index": _pack(part.index)}


def _read_slice(data: dict[str, Any]) -> Slice:
    return Slice(data["tensor"], data["dim"], data["role"], _unpack(data["index"]))


def _pack(index: Ids) -> list[Any]:
    """An index as [neurons, places, start, step per neuron, step per place], or in full if irregular.

    >>> _pack(np.array([[4, 5], [6, 7]]))
    [2, 2, 4, 2, 1]
    """
    rows, places = index.shape
    start = int(index[0, 0])
    down = int(index[1, 0]) - start if rows > 1 else 0
    across = int(index[0, 1]) - start if places > 1 else 0
    packed = [rows, places, start, down, across]
    return packed if (_unpack(packed) == index).all() else index.tolist()


def _unpack(packed: list[Any]) -> Ids:
    if packed and isinstance(packed[0], list):
        return np.array(packed, dtype=np.int64)
    rows, places, start, down, across = packed
    return np.asarray(
        start + down * np.arange(rows)[:, None] + across * np.arange(places)[None, :], dtype=np.int64
    )
