"""What is known of a tensor while channels are followed: which stand where, and how they came there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hope.trace.labels import Ids, Shape


class Link(NamedTuple):
    """One channel-wise operation between a neuron's filter and the weights that read it."""

    # "bn", "activation", "pool", "depthwise", "gate", "scale", "add", "concat", "flatten", "resize", "pad" or
    # "norm"
    kind: str
    name: str  # the module (for what has parameters) or the operator
    values: tuple[float, ...] = ()  # its numbers, e.g. (eps,) of a BN or (slope,) of a leaky ReLU
    tensor: str = ""  # the parameter it uses, if the module does not determine it (the slopes of a PReLU)


@dataclass(frozen=True)
class Value:
    """What is known of one tensor."""

    shape: Shape
    labels: tuple[Ids, ...] = ()  # label arrays, no two over the same dimensions
    static: bool = False  # computed from parameters and constants alone
    tensor: str | None = None  # the name, if this is a parameter or buffer itself
    # weight that wrote a channel found here -> what was done to it since
    signals: Mapping[str, tuple[Link, ...]] = field(default_factory=dict)
    # the parameters and buffers that this is computed from, if from nothing else
    origins: tuple[str, ...] = ()

    def then(self, kind: str, name: str, values: tuple[float, ...] = (), tensor: str = "") -> Value:
        """The same value with one more link in every signal."""
        link = Link(kind, name, values, tensor)
        return replace(self, signals={writer: (*path, link) for writer, path in self.signals.items()})

    def moved(self, shape: Shape, labels: Iterable[Ids]) -> Value:
        """The same channels elsewhere, in a tensor that is no parameter itself."""
        return replace(self, shape=shape, labels=tuple(labels), tensor=None)


def origins_of(values: Iterable[Value]) -> tuple[str, ...]:
    """All parameters and buffers that these values are computed from."""
    return tuple(dict.fromkeys(name for value in values for name in value.origins))
