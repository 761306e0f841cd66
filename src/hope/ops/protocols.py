"""What operators call: a tracer of channels, and a propagation of moments. Later stages implement them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from torch import Tensor

from hope.reasons import Reason
from hope.trace.labels import Ids, Shape, Ties
from hope.trace.values import Link, Value

if TYPE_CHECKING:  # of this package
    from hope.ops.norm import Bn
    from hope.ops.reading import Reading
    from hope.ops.registry import Signal


class Tracer(Protocol):
    """Traces channels through a program (`hope.structure.channel_tracer`)."""

    streams: bool
    ties: Ties
    squares: Mapping[int, str]
    grids: list[tuple[Ids, Reason]]
    counted: list[tuple[Ids, Reason]]
    reads: dict[str, dict[str, tuple[Link, ...]]]
    positions: Counter[str]
    computed: dict[str, tuple[int, Reason]]

    def tensor_ids(self, tensor: str, dim: int) -> Ids:
        """The ids of one dimension of a parameter or buffer."""

    def mark(self, tensor: str, dim: int, role: str) -> Ids:
        """Record the role of a weight's dimension ("out", "in", "through") and return its ids."""

    def pin(self, ids: Ids, reason: Reason, *, mixes: bool = True) -> None:
        """Pin ids: they are not prunable, for this reason."""

    def pin_all(self, values: Iterable[Value], reason: Reason, *, mixes: bool = True) -> None:
        """Pin all ids in these values."""

    def normalise(self, label: Ids, reason: Reason, weight: str, bias: str | None = None) -> None:
        """Channels are normalised together."""

    def value(self, argument: Any) -> Value | None:
        """The value of an argument, None if it is not a tensor."""

    def raw(self, argument: Any) -> Any:
        """The value of an argument: a value, or a list of values."""

    def values(self, arguments: Any) -> list[Value]:
        """All tensor values among (nested) arguments."""

    def carry(self, value: Value, shape: Shape, touched: Iterable[int], reason: Reason) -> Value:
        """An operator that works along some dimensions: ids there are pinned, others pass."""

    def bundle(self, label: Ids, over: Iterable[int]) -> Ids:
        """Join channels that differ along some dimensions only."""

    def combine(self, values: Sequence[Value], shape: Shape, *, adds: bool, what: str) -> Value:
        """An element-wise operator with broadcasting: channels at the same position are joined."""


class Propagation(Protocol):
    """Propagates moments through a program (`hope.statistics.propagated`)."""

    tensors: Mapping[str, Tensor]
    decays: tuple[float, ...]
    isotropic: bool
    signals: list[Signal | None]
    readings: dict[str, Reading]
    fallbacks: list[str]
    following_bn: dict[int, Bn | None]
    read: set[int]
    by_operation: dict[int, Reading]
    known: dict[tuple[int, int], Tensor | None]

    def cross(self, a: int, b: int) -> Tensor | None:
        """The covariance of two signals; None if it is not known."""
