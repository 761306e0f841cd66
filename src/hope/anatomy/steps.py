"""What can be done to a network. Neurons and blocks go by their numbers and names in the original, whatever
happened before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from hope.errors import InvalidAction


@dataclass(frozen=True)
class Prune:
    """Remove neurons of a layer.

    >>> Prune("layer1.0.conv1", [3, 1])
    Prune(layer='layer1.0.conv1', neurons=(3, 1))
    """

    layer: str
    neurons: tuple[int, ...]

    def __init__(self, layer: str, neurons: Sequence[int] | int) -> None:
        some = neurons if isinstance(neurons, Iterable) else (neurons,)
        object.__setattr__(self, "layer", layer)
        object.__setattr__(self, "neurons", tuple(int(neuron) for neuron in some))


@dataclass(frozen=True, init=False)
class Absorb(Prune):
    """Remove neurons of a layer and let the survivors and a constant take over what they did.

    How much each survivor takes over follows from the moments of the layer's signals (`View`), which go with
    the trajectory.

    >>> Absorb("layer1.0.conv1", 3)
    Absorb(layer='layer1.0.conv1', neurons=(3,))
    """


@dataclass(frozen=True)
class Merge:
    """Replace two neurons of a layer by one parent, a linear recipe over both as they are at that moment.

    In effective coordinates (BN folded into the filter, `y = w·x + b`) the parent's input side is
    `rows[0]·(w, b)_keep + rows[1]·(w, b)_drop`, and its outgoing weights are `outs[0]·out_keep +
    outs[1]·out_drop`. With a BN, the mean of the parent's signal follows by the same recipe, and `spread` is
    its deviation; the parent's BN numbers are then σ² = spread², γ = √(spread² + ε), so that any spread ≥ 0
    gives exactly the signal asked for.

    Attributes:
        layer: the layer's name.
        keep: the neuron whose place the parent takes.
        drop: the neuron that goes.
        rows: how the parent's input side is made of both.
        outs: how the parent's outgoing weights are made of both.
        spread: deviation of the parent's signal before the activation; needed with a BN, ignored without.

    >>> Merge("layer1.0.conv1", keep=1, drop=3, rows=(0.5, 0.5), outs=(1.0, 1.0), spread=0.9).drop
    3
    """

    layer: str
    keep: int
    drop: int
    rows: tuple[float, float]
    outs: tuple[float, float]
    spread: float | None = None


@dataclass(frozen=True)
class Evict:
    """Remove the branch of a residual block, leaving its skip and, if given, a bias per channel.

    Attributes:
        block: the block's name.
        bias: what stays behind in place of the branch, one number per channel.

    >>> Evict("layer1.0", [0, 0.5])
    Evict(block='layer1.0', bias=(0.0, 0.5))
    """

    block: str
    bias: tuple[float, ...] | None = None

    def __init__(self, block: str, bias: Sequence[float] | None = None) -> None:
        object.__setattr__(self, "block", block)
        object.__setattr__(self, "bias", None if bias is None else tuple(float(b) for b in bias))


Action: TypeAlias = Prune | Merge | Evict


def to_json(action: Action) -> dict[str, Any]:
    """An action as plain data."""
    if isinstance(action, Prune):
        return {"kind": type(action).__name__.lower(), "layer": action.layer, "neurons": list(action.neurons)}
    if isinstance(action, Evict):
        return {
            "kind": "evict",
            "block": action.block,
            "bias": None if action.bias is None else list(action.bias),
        }
    return {
        "kind": "merge", "layer": action.layer, "keep": action.keep, "drop": action.drop,
        "rows": list(action.rows), "outs": list(action.outs), "spread": action.spread,
    }  # fmt: skip


def from_json(data: dict[str, Any]) -> Action:
    """The reverse of `to_json`."""
    match data.get("kind"):
        case "prune":
            return Prune(data["layer"], data["neurons"])
        case "absorb":
            return Absorb(data["layer"], data["neurons"])
        case "evict":
            return Evict(data["block"], data["bias"])
        case "merge":
            (a, b), (c, d) = data["rows"], data["outs"]
            return Merge(data["layer"], data["keep"], data["drop"], (a, b), (c, d), data["spread"])
    raise InvalidAction(f"unknown kind of action: {data.get('kind')!r}")
