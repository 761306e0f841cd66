"""An operator's time as a function of its widths: measured at a few, interpolated linearly in between.

onnxruntime processes convolutions in blocks of channels: widths count up to the next block, and a convolution
whose input width is not a multiple of 4 uses a slower kernel. Both cases are distinguished here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from hope.latency.timed_operators import Key, Site, TimedOperator

FRACTIONS = (1.0, 0.75, 0.5, 0.25, 0.125)  # shares of a width at which it is measured
ALIGNED = 4  # channels that a convolution may read without leaving the blocks
Width = tuple[int, int]
Times = NDArray[np.float64]
Lookup = Callable[[TimedOperator, Width], float]


@dataclass(frozen=True)
class LatencySurface:
    """Times at widths: (rows, columns), bilinear in between, extrapolated linearly below, to a quarter of the
    smallest.
    """

    rows: tuple[int, ...]
    columns: tuple[int, ...]
    values: Times

    def __call__(self, reads: Times, writes: Times) -> Times:
        """Times at any widths.

        >>> surface = LatencySurface((2, 4), (1, 3), np.array([[1.0, 3.0], [2.0, 6.0]]))
        >>> surface(np.array([3.0]), np.array([2.0])).tolist()
        [3.0]
        """
        i, u = _between(self.rows, reads)
        j, v = _between(self.columns, writes)
        at = self.values
        low = at[i[0], j[0]] * (1 - v) + at[i[0], j[1]] * v
        high = at[i[1], j[0]] * (1 - v) + at[i[1], j[1]] * v
        found: Times = np.maximum(low * (1 - u) + high * u, at.min() / 4)
        return found


def _between(
    grid: tuple[int, ...], widths: Times
) -> tuple[tuple[NDArray[np.int64], NDArray[np.int64]], Times]:
    """The two grid points around each width, and the relative position between them."""
    zero = np.zeros(np.shape(widths), dtype=np.int64)
    if len(grid) == 1:
        return (zero, zero), zero.astype(float)
    points = np.array(grid)
    above = np.clip(np.searchsorted(points, widths), 1, len(grid) - 1)
    share = (widths - points[above - 1]) / (points[above] - points[above - 1])
    return (above - 1, above), np.minimum(share, 1.0)


class LatencyCurve:
    """The time of an operator in a network.

    Args:
        moves: the dimensions of weights that become narrower; others are measured as they are.
        block: the widths that the engine works in (see `runtime.block_of`).
    """

    def __init__(self, site: Site, moves: Collection[Key], block: int) -> None:
        self.site = site
        group = site.operator.group
        blocked = site.operator.kind == "conv" and (not group or group == (1, 1))
        self._block = block if blocked else 1
        self._in_blocks = self._block > 1
        full, both = site.full, bool(group)
        rows = _fractions(full[0], (site.weight, site.reads) in moves)
        columns = _fractions(full[1], (site.weight, site.writes) in moves)
        self._even_grid = self._even(rows), tuple(sorted({self._up(w, full[1]) for w in columns}))
        self._odd_grid = self._odd(rows), columns
        if both:
            self._even_grid = self._even_grid[1], ()
            self._odd_grid = tuple(sorted({_uneven(w) for w in columns if w > 1})), ()
        self._surfaces: tuple[LatencySurface | None, LatencySurface | None] = (None, None)

    def _even(self, widths: tuple[int, ...]) -> tuple[int, ...]:
        """Widths to measure that stay in blocks."""
        full = self.site.full[0]
        if not self._in_blocks:
            return widths
        fits = [w if w < self._block else self._up(w, full) for w in widths]
        return tuple(sorted({w for w in fits if not self._strays(w)}))

    def _odd(self, widths: tuple[int, ...]) -> tuple[int, ...]:
        """Widths to measure that do not."""
        if not self._in_blocks:
            return ()
        some = widths if len(widths) == 1 else tuple(_uneven(w) for w in widths)
        return tuple(sorted({w for w in some if self._strays(w)}))

    def _strays(self, width: int) -> bool:
        return bool(width >= self._block and width % ALIGNED)

    def _up(self, width: int, full: int) -> int:
        return min(ceil(width / self._block) * self._block, full)

    def points(self) -> list[Width]:
        """The widths to measure."""
        found = []
        for rows, columns in (self._even_grid, self._odd_grid if self._in_blocks else ((), ())):
            found += [(a, b) for a in rows for b in columns or (a,)]
        return found

    def set_times(self, lookup: Lookup) -> None:
        """Set the measured times."""
        self._surfaces = self._surface(self._even_grid, lookup), self._surface(self._odd_grid, lookup)

    def _surface(
        self, grid: tuple[tuple[int, ...], tuple[int, ...]], lookup: Lookup
    ) -> LatencySurface | None:
        rows, columns = grid
        if not rows or (grid is self._odd_grid and not self._in_blocks):
            return None
        values = [[lookup(self.site.operator, (a, b)) for b in columns or (a,)] for a in rows]
        return LatencySurface(rows, columns or (1,), np.array(values))

    @property
    def multiples(self) -> tuple[int, ...]:
        """What widths must be multiples of for the operator to stay in the engine's blocks, and to
        fill them.
        """
        return (ALIGNED, self._block) if self._in_blocks else (1,)

    def strays(self, reads: Times) -> NDArray[np.bool_]:
        """Where the engine leaves its blocks."""
        if not self._in_blocks:
            return np.zeros(np.shape(reads), dtype=bool)
        wide = (reads >= self._block) | bool(self.site.operator.group)
        found: NDArray[np.bool_] = wide & (reads % ALIGNED != 0)
        return found

    def __call__(self, reads: Times, writes: Times) -> Times:
        """Times at widths; 0 where one of them is."""
        even, odd = self._surfaces
        astray = self.strays(reads)
        blocked = reads
        if self._in_blocks:
            full, block = self.site.full, self._block
            blocked = np.where(reads < block, reads, np.minimum(np.ceil(reads / block) * block, full[0]))
            if self.site.operator.group:
                blocked = np.minimum(np.ceil(reads / block) * block, full[0])
            padded = np.minimum(np.ceil(writes / block) * block, full[1])
        else:
            padded = writes
        first, second = even or odd, odd or even
        assert first is not None
        assert second is not None
        found = np.where(astray, second(reads, writes), first(blocked, padded))
        return np.where((reads > 0) & (writes > 0), found, 0.0)

    def smooth(self, reads: Times, writes: Times) -> Times:
        """The same without steps: the average saving of smaller widths."""
        surface = self._surfaces[0] or self._surfaces[1]
        assert surface is not None
        return np.where((reads > 0) & (writes > 0), surface(reads, writes), 0.0)


def _fractions(full: int, moves: bool) -> tuple[int, ...]:
    """Widths to measure, in order.

    >>> _fractions(64, True), _fractions(64, False)
    ((8, 16, 32, 48, 64), (64,))
    """
    return tuple(sorted({max(1, ceil(full * share)) for share in FRACTIONS})) if moves else (full,)


def _uneven(width: int) -> int:
    """The width, or one less if it is a multiple."""
    return width - (width % ALIGNED == 0)
