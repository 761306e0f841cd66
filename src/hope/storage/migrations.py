"""From older versions of files to newer ones: plain data in, plain data out, one function per version.

A migration is written once and stays as it is: what it makes is the version after it, whatever the package
has come to since. So it uses nothing of the package but plain data.
"""

from __future__ import annotations

from math import prod
from typing import Any

Plain = dict[str, Any]  # a JSON object
MOST = 1 << 26  # places that all units of a network may have together, whatever a file says


# ---- runs --------------------------------------------------------------------------------------------------


def run_to_2(plan: Plain) -> Plain:
    """Layers and streams become units, parallel lists of actions and costs become steps, sentences become
    reasons, and a method is told with its options.
    """
    moments = plan.get("moments")
    if moments is not None:
        moments = {**moments, "intakes": moments["views"]}
        del moments["views"]
    method = _method(plan["method"], plan.get("settings", {}))
    return {
        "format": plan["format"],
        "original": plan["original"],
        "weights": plan["weights"],
        "method": method,
        "steps": plan["steps"],
        "trajectory": _trajectory(plan),
        "anatomy": _anatomy(plan["anatomy"]),
        "stops": plan.get("stops", []),
        "moments": moments,
        "details": {
            "measures": plan.get("capacities", {}),
            "left_alone": {name: _reason(words) for name, words in plan.get("left_alone", {}).items()},
            "source": plan.get("source", {}),
            "fidelities": plan.get("fidelities", []),
            "settings": _settings(method, plan.get("settings", {})),
        },
    }


def run_to_3(plan: Plain) -> Plain:
    """Bytes of entries are told, and times; a run without them was made for no latency. Only the counters of
    BNs were not of 4 bytes in models as they usually are.
    """
    anatomy = plan["anatomy"]
    counters = {name: 8 for name in anatomy["shapes"] if name.rpartition(".")[2] == "num_batches_tracked"}
    return {**plan, "anatomy": {**anatomy, "itemsize": counters}, "times": [], "timing": None}


def _method(name: str, settings: Plain) -> Plain:
    """A method's name and the options it was made with; the name alone where nothing else was told."""
    told: Plain = {"name": name}
    if name == "hope" and settings:
        release = "static" if settings.get("static_release", True) else "live"
        told |= {"merge": settings["merge"], "kernel": settings["kernel"], "release": release}
    if name == "absorb" and settings:
        told |= {
            "calibration": settings.get("calibration"), "takeover": True, "constants": True, "repair": True,
            "surrogate": "propagated", "crosses": True, "decay": None, "share": True, "cost": "log",
            "per_parameter": True, "margin": 0.85,
        }  # fmt: skip
    return told


def _settings(method: Plain, settings: Plain) -> Plain:
    """What is left beside the method's own options."""
    own = ("method", "merge", "kernel", "static_release", "calibration")
    return {"method": method, **{k: v for k, v in settings.items() if k not in own}} if settings else {}


def _trajectory(plan: Plain) -> list[list[Any]]:
    """An action and what it cost in one: [kind, name, what it does, J, ΔP, left]."""
    left = plan.get("left") or [0.0] * len(plan["actions"])
    numbers = zip(plan["costs"], plan["releases"], left, strict=True)
    return [[*_action(one), *some] for one, some in zip(plan["actions"], numbers, strict=True)]


def _action(data: Plain) -> list[Any]:
    kind = data["kind"]
    if kind in ("prune", "absorb"):
        return [kind, data["layer"], data["neurons"]]
    if kind == "evict":
        return [kind, data["block"], data["bias"]]
    if kind == "merge":
        recipe = [data["keep"], data["drop"], data["rows"], data["outs"], data["spread"]]
        return [kind, data["layer"], *recipe, 0.0]  # how far the parent is from both was not told
    raise ValueError(f"unknown kind of action: {kind!r}")


def _anatomy(data: Plain) -> Plain:
    shapes = data["shapes"]
    streams = [one for one in data["streams"] if one.get("owners")]  # nothing could be done with others
    parts = [part for one in (*data["layers"], *streams) for part in one["slices"]]
    total = sum(shapes[part["tensor"]][part["dim"]] for part in parts)
    if total > MOST:
        raise ValueError(f"units must have at most {MOST:,} places, got {total:,}")
    kept = ("model", "blocks", "shapes", "parameters", "positions", "aliases")
    return {
        **{name: data[name] for name in kept},
        "units": [*(_layer(one, shapes) for one in data["layers"]), *(_stream(s, shapes) for s in streams)],
        "skipped": [{**one, "reason": _reason(one["reason"])} for one in data["skipped"]],
        "eps": _eps(data),
    }


def _reason(words: str) -> Plain:
    """A sentence of an earlier version."""
    return {"cause": "told", "place": "", "detail": words}


def _eps(data: Plain) -> dict[str, float]:
    """BN -> its ε, as the program and the ways to the readers have them."""
    paths = [reader["path"] for layer in data["layers"] for reader in layer["consumers"]]
    found = {name: values[0] for path in paths for kind, name, values, *_ in path if kind == "bn"}
    program = data.get("program", [])
    found |= {tensors[0]: values[0] for kind, _, tensors, values, *_ in program if kind == "bn"}
    return found


def _layer(data: Plain, shapes: Plain) -> Plain:
    kept = ("name", "weight", "neurons", "channels", "fan_in", "fan_out", "release")
    return {
        **{name: data[name] for name in kept},
        "kind": "layer",
        "writers": [data["name"]],
        "readers": data["consumers"],
        "places": [_places(part, part["index"], None, shapes) for part in data["slices"]],
        "along": data["also"],
        "block": data.get("block"),
        "mixed": None,
    }


def _stream(data: Plain, shapes: Plain) -> Plain:
    """A stream as a unit. What happens on the way to its readers was not told."""
    parts = data["slices"]
    own = next(p for p in parts if p["role"] == "out" and _module(p["tensor"]) == data["name"])
    reading = [p["tensor"] for p in parts if p["role"] == "in"]
    ordered = [tensor for module in data["readers"] for tensor in reading if _module(tensor) == module]
    entries = {
        id(p): len(_index(p["index"], MOST)) * prod(shapes[p["tensor"]]) // shapes[p["tensor"]][p["dim"]]
        for p in parts
    }
    return {
        "name": data["name"],
        "kind": "stream",
        "weight": own["tensor"],
        "neurons": data["channels"],
        "channels": 1,
        "fan_in": entries[id(own)] // data["channels"],
        "fan_out": sum(entries[id(p)] for p in parts if p["role"] == "in") // data["channels"],
        "release": 0,
        "writers": data["writers"],
        "readers": [{"weight": tensor, "path": []} for tensor in ordered],
        "places": [
            _places(part, part["index"], owner, shapes)
            for part, owner in zip(parts, data["owners"], strict=True)
        ],
        "along": data["writers"][1:],
        "block": None,
        "mixed": _reason(data["mixed"]) if data.get("mixed") else None,
    }


def _module(tensor: str) -> str:
    """The module that holds a parameter; the parameter's own name if it is no plain weight or bias."""
    owner, _, attribute = tensor.rpartition(".")
    return owner if owner and attribute in ("weight", "bias", "running_mean", "running_var") else tensor


def _places(part: Plain, index: list[Any], owners: list[Any] | None, shapes: Plain) -> Plain:
    """Where neurons stand: positions per neuron (and for streams an owner per position) become an owner per
    place of the dimension, regular patterns the same in six numbers.
    """
    size = shapes[part["tensor"]][part["dim"]]
    packed: list[Any] = [size, *index]
    if owners is not None or isinstance(index[0], list):
        owner = [-1] * size
        rows = _index(index, size)
        names = [row[0] for row in _index(owners, size)] if owners is not None else range(len(rows))
        for neuron, row in zip(names, rows, strict=True):
            for position in row:
                owner[position] = neuron
        packed = [owner]
    return {"tensor": part["tensor"], "dim": part["dim"], "role": part["role"], "owner": packed}


def _index(packed: list[Any], most: int) -> list[list[int]]:
    """Rows of so many positions at most, from [rows, columns, start, step per row, step per column] or as
    they are.
    """
    if isinstance(packed[0], list):
        return packed
    rows, columns, start, down, across = packed
    if max(rows, 1) * max(columns, 1) > most:
        raise ValueError(f"{rows} rows of {columns} positions must be at most {most} positions")
    return [[start + down * row + across * column for column in range(columns)] for row in range(rows)]


# ---- adapters ----------------------------------------------------------------------------------------------


def adapter_to_2(plan: Plain) -> Plain:
    """Version 1 came in two forms: the first tells a head by its number of outputs alone."""
    head = dict(plan["head"])
    if "outputs" in head:
        outputs = head.pop("outputs")
        name = "out_features" if head["kind"] == "Linear" else "out_channels"
        head["recipe"] = None if outputs is None else {"kind": head["kind"], name: outputs}
        head["shapes"] = None
    rest = {key: value for key, value in plan.items() if key != "sha256"}
    return {**rest, "notes": plan.get("notes", []), "head": head}
