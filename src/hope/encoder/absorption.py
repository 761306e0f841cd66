"""One layer's path under absorption: which neuron goes next, and what its leaving costs.

Everything follows from C⁻¹ and H (see `geometry.absorb`): neuron i costs tr(S_i H_ii) with S_i the inverse of
its block of C⁻¹ (1/[C⁻¹]_ii for a neuron of one channel), and removing it is a rank-one downdate of both.
The losses of one path add up exactly, each being orthogonal to the next. Fractions multiply along a network,
so the cost is in their logarithm: −log of what is left of what was left, times the share of its stream that
the layer's branch writes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from hope.encoder.path import TIE, Move
from hope.encoder.state import AbsorbState

Array = NDArray[np.float64]
LEFT = 1e-6  # the least fraction of signal that a logarithm is taken of


class _Side:
    """One consumer's C⁻¹ and H over the neurons that are left."""

    def __init__(self, moments: Array, outer: Array, channels: int) -> None:
        self.inverse: Array = np.asarray(np.linalg.inv(moments), dtype=np.float64)
        self.outer: Array = outer.copy()
        self.channels = channels
        self.left = 1.0

    def losses(self) -> Array:
        """What each neuron's leaving would lose, as a fraction of the outputs' variance."""
        p = self.channels
        if p == 1:
            return np.asarray(self.outer.diagonal() / self.inverse.diagonal())
        n = len(self.inverse) // p
        blocks = self.inverse.reshape(n, p, n, p)[np.arange(n), :, np.arange(n)]
        weights = self.outer.reshape(n, p, n, p)[np.arange(n), :, np.arange(n)]
        return np.asarray(np.einsum("nij,nji->n", np.linalg.inv(blocks), weights))

    def remove(self, i: int) -> None:
        """Downdate C⁻¹ and H: neuron i is projected on the others and its row and column go."""
        own = slice(i * self.channels, (i + 1) * self.channels)
        rest = np.r_[0 : own.start, own.stop : len(self.inverse)]
        column = self.inverse[rest, own]
        block = np.linalg.inv(self.inverse[own, own])
        share = -column @ block  # d
        self.inverse = self.inverse[np.ix_(rest, rest)] + share @ column.T
        toward = self.outer[rest, own]
        cross = share @ toward.T
        self.outer = self.outer[np.ix_(rest, rest)] + cross + cross.T + share @ self.outer[own, own] @ share.T


class AbsorbPath:
    """A layer on its way down to one neuron."""

    def __init__(self, state: AbsorbState) -> None:
        self.state = state
        self.alive = list(range(state.neurons))
        pairs = zip(state.moments, state.outer, strict=True)
        self._sides = [_Side(c.numpy(), h.numpy(), len(c) // state.neurons) for c, h in pairs]

    def moves(self) -> Iterator[Move]:
        """All moves down to one neuron."""
        while len(self.alive) > 1:
            yield self.step()

    def follow(self, neuron: int, other: int) -> None:
        """Do what an earlier run has found to be the cheapest move, without looking for it."""
        self._remove(self.alive.index(neuron), [side.losses() for side in self._sides])

    def step(self) -> Move:
        """Remove the neuron that costs least."""
        lost = [side.losses().clip(min=0) for side in self._sides]
        cost = np.zeros(len(self.alive))
        for side, loss in zip(self._sides, lost, strict=True):
            cost -= np.log((side.left - loss).clip(min=LEFT) / max(side.left, LEFT))
        cost *= self.state.share
        position = int(np.flatnonzero(cost <= cost.min() * (1 + TIE))[0])
        neuron = self._remove(position, lost)
        return Move(float(cost[position]), neuron, -1, len(self.alive), self.capacity, None)

    def _remove(self, position: int, lost: list[Array]) -> int:
        for side, loss in zip(self._sides, lost, strict=True):
            side.left = max(side.left - max(0.0, float(loss[position])), LEFT)
            side.remove(position)
        return self.alive.pop(position)

    @property
    def count(self) -> int:
        """Neurons that are left."""
        return len(self.alive)

    @property
    def capacity(self) -> float:
        """The least fraction of signal that is left in front of a consumer."""
        return min(side.left for side in self._sides)
