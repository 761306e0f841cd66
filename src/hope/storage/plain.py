"""An anatomy as plain data (JSON types) and back, so that a saved run can be replayed without reading the
network again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from hope.anatomy.anatomy import Anatomy
from hope.anatomy.flow import Step
from hope.anatomy.labels import Ids, Shape
from hope.anatomy.reasons import Cause
from hope.anatomy.units import Places, Reader, Skipped, Unit
from hope.graph.blocks import Block, Replace, Silence


def to_plain(anatomy: Anatomy) -> dict[str, Any]:
    """JSON types only."""
    return {
        "model": anatomy.model,
        "units": [_unit(unit) for unit in anatomy.units],
        "blocks": [
            {**asdict(block), "way": {"kind": type(block.way).__name__.lower(), **asdict(block.way)}}
            for block in anatomy.blocks
        ],
        "skipped": [{**vars(one), "reason": str(one.reason)} for one in anatomy.skipped],
        "shapes": {name: list(shape) for name, shape in anatomy.shapes.items()},
        "parameters": sorted(anatomy.parameters),
        "positions": dict(anatomy.positions),
        "aliases": {name: list(names) for name, names in anatomy.aliases.items()},
        "eps": dict(anatomy.eps),
    }


def from_plain(data: dict[str, Any]) -> Anatomy:
    """The reverse of `to_plain`."""
    shapes = {name: tuple(shape) for name, shape in data["shapes"].items()}
    return Anatomy(
        model=data["model"],
        units=tuple(_read_unit(unit, shapes) for unit in data["units"]),
        blocks=tuple(_read_block(block) for block in data["blocks"]),
        skipped=tuple(
            Skipped(one["name"], one["outputs"], Cause.TOLD.at(detail=one["reason"]), one["kind"])
            for one in data["skipped"]
        ),
        shapes=shapes,
        parameters=frozenset(data["parameters"]),
        positions=data["positions"],
        aliases={name: tuple(names) for name, names in data["aliases"].items()},
        eps=data["eps"],
    )


_PLAIN = ("name", "kind", "weight", "neurons", "channels", "fan_in", "fan_out", "release", "block")


def _unit(unit: Unit) -> dict[str, Any]:
    return {
        **{name: getattr(unit, name) for name in _PLAIN},
        "writers": list(unit.writers),
        "along": list(unit.along),
        "mixed": str(unit.mixed or ""),
        "fixed": str(unit.fixed or ""),
        "readers": [
            {"weight": r.weight, "path": [[s.kind, s.name, list(s.values), s.tensor] for s in r.path]}
            for r in unit.readers
        ],
        "places": [
            {"tensor": p.tensor, "dim": p.dim, "role": p.role, "index": _pack(p)} for p in unit.places
        ],
    }


def _read_unit(data: dict[str, Any], shapes: Mapping[str, Shape]) -> Unit:
    readers = tuple(
        Reader(
            r["weight"],
            tuple(Step(kind, name, tuple(values), tensor) for kind, name, values, tensor in r["path"]),
        )
        for r in data["readers"]
    )
    places = tuple(
        Places(p["tensor"], p["dim"], p["role"], _unpack(p["index"], shapes[p["tensor"]][p["dim"]]))
        for p in data["places"]
    )
    return Unit(
        **{name: data[name] for name in _PLAIN},
        writers=tuple(data["writers"]),
        along=tuple(data["along"]),
        mixed=Cause.TOLD.at(detail=data["mixed"]) if data["mixed"] else None,
        fixed=Cause.TOLD.at(detail=data["fixed"]) if data["fixed"] else None,
        readers=readers,
        places=places,
    )


def _read_block(data: dict[str, Any]) -> Block:
    way = dict(data["way"])
    kind = {"replace": Replace, "silence": Silence}[way.pop("kind")]
    way = {name: tuple(value) if isinstance(value, list) else value for name, value in way.items()}
    return Block(
        **{**data, "layers": tuple(data["layers"]), "tensors": tuple(data["tensors"]), "way": kind(**way)}
    )


def _pack(places: Places) -> list[Any]:
    """Places as [neurons, places, start, step per neuron, step per place], or every owner if irregular.

    >>> _pack(Places("w", 0, "out", np.array([-1, -1, -1, -1, 0, 0, 1, 1])))
    [2, 2, 4, 2, 1]
    """
    if places.even:
        index = places.index
        start = int(index[0, 0])
        down = int(index[1, 0]) - start if len(index) > 1 else 0
        across = int(index[0, 1]) - start if index.shape[1] > 1 else 0
        packed = [*index.shape, start, down, across]
        if (_unpack(packed, len(places.owner)) == places.owner).all():
            return packed
    return [places.owner.tolist()]


def _unpack(packed: list[Any], size: int) -> Ids:
    if isinstance(packed[0], list):
        return np.array(packed[0], dtype=np.int64)
    rows, columns, start, down, across = packed
    owner = np.full(size, -1, dtype=np.int64)
    index = start + down * np.arange(rows)[:, None] + across * np.arange(columns)[None, :]
    if index.min() >= 0 and index.max() < size:
        owner[index] = np.arange(rows)[:, None]
    return owner
