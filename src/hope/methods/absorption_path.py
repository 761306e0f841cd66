"""One layer under absorption: which neuron is removed next, and at what cost.

Everything follows from C⁻¹ and H (see `geometry.projection`): neuron i costs tr(S_i H_ii) with S_i the
inverse of its block of C⁻¹ (1/[C⁻¹]_ii for a neuron of one channel); removing it is a rank-one downdate of
both. The losses of one path add up exactly, each being orthogonal to the next. Fractions multiply along a
network, so the cost is in their logarithm: −log of the share that remains of the present signal, times the
share of its stream that the layer's branch writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hope.actions import Absorption, Action

Array = NDArray[np.float64]
LEFT = 1e-6  # the smallest fraction of signal whose logarithm is taken
TIE = 1e-12
WIDE = 1536  # from this number of channels on, removals are batched: five times as fast, with other rounding
GATHERED = 64  # removals applied to the whole matrices at once


class LazyMatrices(Sequence[Tensor]):
    """Matrices that are created on request and not kept."""

    def __init__(self, make: Sequence[Callable[[], Tensor]]) -> None:
        self._make = make

    def __getitem__(self, place: int) -> Tensor:  # type: ignore[override]
        return self._make[place]()

    def __len__(self) -> int:
        return len(self._make)

    def __reduce__(self) -> tuple[type[list[Tensor]], tuple[list[Tensor]]]:
        return list, (list(self),)  # a worker process receives them evaluated


@dataclass(frozen=True, eq=False)
class AbsorbState:
    """A layer before its first absorption."""

    name: str  # the layer's name
    neurons: int  # their number
    release: int  # ΔP of one neuron
    share: float  # the branch's share of the stream's variance; 1 in a plain chain
    moments: Sequence[Tensor]  # per reader, (neurons·channels)² ridged covariances of its inputs
    outer: Sequence[Tensor]  # per reader, Gram matrices of its weights, in units of its output's variance
    # per reader, the weight of its losses: in a stream, by the share that it writes back into it
    parts: list[float] = field(default_factory=list)

    @property
    def capacity(self) -> float:
        """The fraction of signal before the first step: 1."""
        return 1.0


class _Side:
    """One reader's C⁻¹ and H. Rows of removed neurons are zero, and dropped when half of all rows are."""

    def __init__(self, moments: Tensor, outer: Tensor, channels: int) -> None:
        self._inverse = self._inverted(moments)
        self._outer = outer.clone()
        self._at = np.arange(len(outer) // channels)  # positions of the remaining neurons
        self.channels = channels
        self.left = 1.0

    def _inverted(self, moments: Tensor) -> Any:
        return torch.linalg.inv(moments)

    def losses(self) -> Array:
        """The loss of removing each neuron, as a fraction of the outputs' variance."""
        p, at = self.channels, torch.from_numpy(self._at)
        if p == 1:
            found = self._outer.diagonal()[at] / self._inverse.diagonal()[at]
        else:
            inverse, outer = (
                t.unflatten(0, (-1, p)).unflatten(2, (-1, p)) for t in (self._inverse, self._outer)
            )
            found = torch.einsum("nij,nji->n", torch.linalg.inv(inverse[at, :, at]), outer[at, :, at])
        return np.asarray(found.numpy(), dtype=np.float64)

    def remove(self, i: int) -> None:
        """Downdate C⁻¹ and H: the neuron at position i is projected onto the others."""
        own = slice(int(self._at[i]) * self.channels, (int(self._at[i]) + 1) * self.channels)
        column, toward = self._inverse[:, own].clone(), self._outer[:, own].clone()
        share = -column @ torch.linalg.inv(column[own])  # d
        share[own] = 0
        self._inverse.addmm_(share, column.T)
        half = toward + share @ toward[own] / 2
        self._outer.addmm_(share, half.T).addmm_(half, share.T)
        for tensor in (self._inverse, self._outer):
            tensor[own] = 0
            tensor[:, own] = 0
        self._at = np.delete(self._at, i)
        if 2 * len(self._at) * self.channels <= len(self._outer):
            self._inverse, self._outer = self._dense(self._inverse), self._dense(self._outer)
            self._at = np.arange(len(self._at))

    def _dense(self, matrix: Tensor) -> Tensor:
        """A matrix without the rows of removed neurons."""
        places = torch.from_numpy(self._at)[:, None] * self.channels + torch.arange(self.channels)
        return matrix[places.flatten()][:, places.flatten()]

    @property
    def inverse(self) -> Tensor:
        """C⁻¹ of the remaining neurons."""
        return self._dense(self._inverse)


class _WideSide(_Side):
    """The same for a wide layer with one channel per neuron. Only diagonals are updated at every removal; the
    matrices are updated for several removals at once, as one matrix product.
    """

    def __init__(self, moments: Tensor, outer: Tensor) -> None:
        super().__init__(moments, outer, 1)
        self._begin()

    def _inverted(self, moments: Tensor) -> Any:
        factor, failed = torch.linalg.cholesky_ex(moments)
        return super()._inverted(moments) if failed else torch.cholesky_inverse(factor)

    def _begin(self) -> None:
        self._there = torch.ones(len(self._outer), dtype=torch.float64)
        self._scales = self._inverse.diagonal().clone(), self._outer.diagonal().clone()
        self._shares, self._columns, self._halves = (
            self._outer.new_zeros(GATHERED, len(self._outer)) for _ in range(3)
        )
        self._waiting = 0

    def losses(self) -> Array:
        inverse, outer = self._scales
        at = torch.from_numpy(self._at)
        return np.asarray((outer[at] / inverse[at]).numpy(), dtype=np.float64)

    def remove(self, i: int) -> None:
        own, k = int(self._at[i]), self._waiting
        d, c, f = self._shares[:k], self._columns[:k], self._halves[:k]
        column = (self._inverse[own] + c[:, own] @ d) * self._there
        toward = (self._outer[own] + f[:, own] @ d + d[:, own] @ f) * self._there
        self._there[own] = 0
        share = -column / column[own] * self._there
        half = toward + share * (toward[own] / 2)
        self._shares[k], self._columns[k], self._halves[k] = share, column, half
        self._scales[0].addcmul_(share, column)
        self._scales[1].addcmul_(share, half, value=2)
        self._waiting += 1
        self._at = np.delete(self._at, i)
        dense = 2 * len(self._at) <= len(self._outer)
        if dense or self._waiting == GATHERED:
            self._carry_out()
        if dense:
            self._inverse, self._outer = self._dense(self._inverse), self._dense(self._outer)
            self._at = np.arange(len(self._at))
            self._begin()

    def _carry_out(self) -> None:
        """Downdate the matrices by all pending removals."""
        d, c, f = (rows[: self._waiting] for rows in (self._shares, self._columns, self._halves))
        self._inverse.addmm_(d.T, c)
        self._outer.addmm_(d.T, f).addmm_(f.T, d)
        removed = self._there == 0
        for tensor in (self._inverse, self._outer):
            tensor[removed] = 0
            tensor[:, removed] = 0
        self._waiting = 0

    @property
    def inverse(self) -> Tensor:
        self._carry_out()
        return super().inverse


def _side(moments: Tensor, outer: Tensor, neurons: int) -> _Side:
    if neurons == len(outer) >= WIDE:
        return _WideSide(moments, outer)
    return _Side(moments, outer, len(moments) // neurons)


class AbsorbPath:
    """A layer's path down to one neuron."""

    def __init__(self, state: AbsorbState) -> None:
        self.state = state
        self.alive = list(range(state.neurons))
        self._parts = state.parts or [1.0] * len(state.outer)
        pairs = zip(state.moments, state.outer, strict=True)
        self._sides = [_side(c, h, state.neurons) for c, h in pairs]

    def steps(self) -> Iterator[Action]:
        """All steps down to one neuron."""
        while len(self.alive) > 1:
            yield self.step()

    def follow(self, step: Action) -> None:
        """Apply a step that an earlier run found to be the cheapest, without searching."""
        (neuron,) = step.removed
        self._remove(self.alive.index(neuron), [side.losses() for side in self._sides])

    def step(self) -> Action:
        """Remove the cheapest neuron."""
        lost = [side.losses().clip(min=0) for side in self._sides]
        cost = self._costs(lost)
        position = int(np.flatnonzero(cost <= cost.min() * (1 + TIE))[0])
        neuron = self._remove(position, lost)
        state = self.state
        return Absorption(
            state.name, (neuron,), cost=float(cost[position]), release=state.release, left=self.left
        )

    def _costs(self, lost: list[Array]) -> Array:
        """J of removing each neuron."""
        cost = np.zeros(len(self.alive))
        for side, loss, part in zip(self._sides, lost, self._parts, strict=True):
            cost -= part * np.log((side.left - loss).clip(min=LEFT) / max(side.left, LEFT))
        cost *= self.state.share
        return cost

    def _remove(self, position: int, lost: list[Array]) -> int:
        for side, loss in zip(self._sides, lost, strict=True):
            side.left = max(side.left - max(0.0, float(loss[position])), LEFT)
            side.remove(position)
        return self.alive.pop(position)

    @property
    def neurons(self) -> int:
        """The remaining neurons."""
        return len(self.alive)

    @property
    def left(self) -> float:
        """The smallest fraction of signal that remains at a reader."""
        return min(side.left for side in self._sides)
