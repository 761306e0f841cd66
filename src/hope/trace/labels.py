"""Which channel stands where in a tensor: label arrays, and how views move them.

A *label* is an integer array with as many dimensions as the tensor it describes. Along each dimension it has
either the tensor's size or 1 (the label does not depend on that dimension). An entry is the id of a channel,
or `FIXED` for a place that no removable channel owns (the model's input, padding). A convolution's output has
the label `(1, C, 1, 1)`; flattened over 7×7 maps, `(1, 49·C)` with every id 49 times.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Ids: TypeAlias = NDArray[np.int64]
Shape: TypeAlias = tuple[int, ...]

FIXED = -1


def along(ids: Ids, dim: int, ndim: int) -> Ids:
    """A label that varies along one dimension only.

    >>> along(np.arange(3), 1, 4).shape
    (1, 3, 1, 1)
    """
    shape = [1] * ndim
    shape[dim] = len(ids)
    return ids.reshape(shape)


def dims(label: Ids) -> tuple[int, ...]:
    """The dimensions that a label depends on."""
    return tuple(d for d, size in enumerate(label.shape) if size > 1)


def pad_left(label: Ids, ndim: int) -> Ids:
    """The label as broadcasting sees it in a tensor of `ndim` dimensions."""
    return label.reshape((1,) * (ndim - label.ndim) + label.shape)


def simplify(label: Ids) -> Ids:
    """Drop the dependence on dimensions along which nothing changes."""
    for d in dims(label):
        first = label.take([0], axis=d)
        if (label == first).all():
            label = first
    return label


def reshape(label: Ids, old: Shape, new: Shape) -> Ids:
    """The label after `view(old -> new)`.

    >>> reshape(along(np.arange(2), 1, 3), (5, 2, 3), (5, 6)).tolist()
    [[0, 0, 0, 1, 1, 1]]
    >>> reshape(along(np.arange(4), 1, 2), (5, 4), (5, 2, 2)).tolist()
    [[[0, 1], [2, 3]]]
    """
    pieces: list[int] = []
    for olds, news in _factors(old, new):
        if all(label.shape[d] == 1 for d in olds):
            pieces += [1] * len(news)
        else:
            full = list(label.shape)
            for d in olds:
                full[d] = old[d]
            label = np.broadcast_to(label, full)
            pieces += [new[d] for d in news]
    return simplify(np.ascontiguousarray(label).reshape(pieces))


def _factors(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """Split a view into independent groups of dimensions with equal products, as small as possible."""
    groups: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        olds, news = [], []
        left = right = 1
        if i < len(old):
            left, olds, i = old[i], [i], i + 1
        if j < len(new) and not (olds and left == 1 and new[j] != 1):
            right, news, j = new[j], [j], j + 1
        while left != right:
            if left < right:
                left, i = left * old[i], i + 1
                olds.append(i - 1)
            else:
                right, j = right * new[j], j + 1
                news.append(j - 1)
        groups.append((olds, news))
    return groups


class Ties:
    """Ids, and which of them must be kept or removed together. Ties are collected first and resolved once."""

    def __init__(self) -> None:
        self.count = 0
        self._pairs: list[tuple[Ids, Ids]] = []

    def fresh(self, n: int) -> Ids:
        """`n` new ids."""
        ids = np.arange(self.count, self.count + n, dtype=np.int64)
        self.count += n
        return ids

    def tie(self, a: Ids, b: Ids) -> None:
        """Tie the ids of two arrays place by place."""
        assert a.size == b.size, "ids are tied place by place"
        self._pairs.append((a.ravel(), b.ravel()))

    def resolve(self) -> Ids:
        """For every id the smallest id it is tied to, directly or through others.

        >>> ties = Ties(); a = ties.fresh(4); ties.tie(a[:2], a[2:]); ties.resolve().tolist()
        [0, 1, 0, 1]
        """
        root = np.arange(self.count, dtype=np.int64)
        if not self._pairs:
            return root
        a = np.concatenate([pair[0] for pair in self._pairs])
        b = np.concatenate([pair[1] for pair in self._pairs])
        while True:  # hook every root to the smallest root it meets, then halve the paths
            low = np.minimum(root[a], root[b])
            before = root.copy()
            np.minimum.at(root, root[a], low)
            np.minimum.at(root, root[b], low)
            np.minimum.at(root, a, low)
            np.minimum.at(root, b, low)
            while (root != root[root]).any():
                root = root[root]
            if (root == before).all():
                return root
