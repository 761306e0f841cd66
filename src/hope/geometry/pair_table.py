"""What merging each two neurons of a layer comes to: the alignment b and the distance D of all pairs.

By the zero-bias kernel all pairs are worked out at once. The exact kernel takes integrals, and a walk does
not ask for all pairs: of the others it is known that b is at most so much and D at least so much (`bracket`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hope.geometry.bracket import bracket
from hope.geometry.hermite import KinkedFunction, bend
from hope.geometry.parent import Side, alignments, exact_pairs

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
TILE = 1 << 15  # pairs that are evaluated together
# Integrals are worked out for whole vectors of a processor: there sums are added up in the same order
# whatever the neighbours of a pair are, so it does not matter when and with which others it is computed.
BATCH = 16
TOGETHER = 4096  # pairs whose integrals are worked out at a time


@contextmanager
def _one_thread() -> Iterator[None]:
    """Tiles fit a core's cache; handing them to several threads costs more than it brings."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Layer(NamedTuple):
    """All neurons of a layer, and their Gram matrices (N, N)."""

    neurons: Side
    inner: Tensor
    outer: Tensor


class PairTable:
    """b and D of all pairs of a layer's neurons.

    Args:
        layer: the neurons.
        capacities: ‖f_i‖; the table reads this array, which the caller updates.
        merge: "pair" or "sum".
        kernel: as for `parents`.

    Attributes:
        alignment: (N, N) b; where a pair is open, no less than it.
        distance: (N, N) D; where a pair is open, no more than it. Infinite where there is no parent.
        open: (N, N) where a pair has not been worked out.
    """

    def __init__(self, layer: Layer, capacities: Array, *, merge: str, kernel: str) -> None:
        n = len(capacities)
        self._layer, self._capacities, self._merge, self._kernel = layer, capacities, merge, kernel
        self.alignment: Array = np.zeros((n, n))
        self.distance: Array = np.full((n, n), np.inf)
        self.open = np.full((n, n), kernel == "exact")
        self._age = -np.arange(n)
        self._evaluated = -1.0
        some = layer.neurons
        self._bent = bend(some.mean, some.spread, some.slope) if kernel == "exact" else None
        rows = max(1, TILE // n)
        with _one_thread():
            for start in range(0, n, rows):
                block = slice(start, min(start + rows, n))
                columns = slice(start, n)  # pairs are undirected
                alignment, distance = self._block(block, columns)
                self.alignment[block, columns], self.distance[block, columns] = alignment, distance
                self.alignment[columns, block], self.distance[columns, block] = alignment.T, distance.T
        np.fill_diagonal(self.distance, np.inf)
        np.fill_diagonal(self.open, False)

    def replace(self, i: int, layer: Layer, among: NDArray[np.bool_]) -> None:
        """A new neuron is at i; its pairs with some are needed as far as the others are computed."""
        one = slice(i, i + 1)
        self._layer, some = layer, layer.neurons
        self._age[i] = self._age.min() - 1
        if self._bent is not None:
            new = bend(some.mean[one], some.spread[one], some.slope[one])
            for name, value in vars(new).items():
                getattr(self._bent, name)[..., one] = value
            self.open[i] = self.open[:, i] = True
            self.open[i, i] = False
        alignment, distance = self._block(one, slice(0, len(self._capacities)))
        distance[0, i] = np.inf
        self.alignment[i], self.alignment[:, i] = alignment[0], alignment[0]
        self.distance[i], self.distance[:, i] = distance[0], distance[0]
        near = np.flatnonzero(self.open[i] & (distance[0] <= self._evaluated) & among)
        self.evaluate(np.full_like(near, i), near)

    def evaluate(self, i: Indices, j: Indices) -> None:
        """Work out some pairs."""
        for first in range(0, len(i), TOGETHER):
            some = slice(first, first + TOGETHER)
            one, other = i[some], j[some]
            full = -len(one) % BATCH + len(one)
            young = self._age[other] < self._age[one]  # comes first, so that (i, j) is (j, i)
            one, other = np.where(young, other, one), np.where(young, one, other)
            alignment, distance = self._worked_out(np.resize(one, full), np.resize(other, full))
            for table, values in ((self.alignment, alignment), (self.distance, distance)):
                table[one, other] = table[other, one] = values[: len(one)]
            self.open[one, other] = self.open[other, one] = False

    def evaluate_below(self, distance: float, among: NDArray[np.bool_] | None = None) -> None:
        """Work out all pairs whose distance may be below this one, of some neurons or all."""
        self._evaluated = distance
        wanted = np.triu(self.open & (self.distance <= distance))
        if among is not None:
            wanted &= among & among[:, None]
        self.evaluate(*np.nonzero(wanted))

    def _worked_out(self, i: Indices, j: Indices) -> tuple[Array, Array]:
        at, to = torch.from_numpy(i), torch.from_numpy(j)
        one, other = (Side(*(t[which] for t in self._layer.neurons)) for which in (at, to))
        inner, outer = self._layer.inner[at, to], self._layer.outer[at, to]
        alignment, overlap = (t.numpy() for t in exact_pairs(one, other, inner, outer))
        squares = self._capacities[i] ** 2 + self._capacities[j] ** 2
        whole = squares + 2 * overlap if self._merge == "sum" else squares
        return alignment, self._distance(alignment, squares, whole)

    def _block(self, rows: slice, columns: slice) -> tuple[Array, Array]:
        some = self._layer.neurons
        i, j = Side(*(t[rows, None] for t in some)), Side(*(t[None, columns] for t in some))
        inner, outer = self._layer.inner[rows, columns], self._layer.outer[rows, columns]
        square = self._capacities**2
        squares = square[rows, None] + square[None, columns]
        if self._bent is None:
            alignment = alignments(i, j, inner, outer, kernel=self._kernel).numpy()
            return alignment, self._distance(alignment, squares, squares)
        left, right = (
            KinkedFunction(*(t[..., w] for t in vars(self._bent).values())) for w in (rows, columns)
        )
        first, second = (t.numpy() for t in bracket(i, j, inner, outer, left, right))
        below = second if self._merge == "sum" else np.maximum(squares - first / 2, 0)
        return np.sqrt(first), np.sqrt(below)

    def _distance(self, alignment: Array, squares: Array, whole: Array) -> Array:
        """D² = ‖f_i‖² + ‖f_j‖² − b²/2 of a pair, ‖f_i + f_j‖² − b² of a sum."""
        below = whole - (alignment**2 if self._merge == "sum" else alignment**2 / 2)
        # what rounding leaves of a lossless merge is lossless
        distance: Array = np.sqrt(np.where(below > 1e-12 * squares, below, 0))
        distance[alignment <= 0] = np.inf
        return distance
