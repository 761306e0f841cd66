"""What was computed already."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Memo(dict[K, V]):
    """Values by their keys, each computed when it is first asked for. It is no part of the value of the
    result that holds it.

    >>> memo = Memo({1: "one"})
    >>> memo.of(1, lambda: "1"), memo.of(2, lambda: "two"), memo.of(2, lambda: "2")
    ('one', 'two', 'two')
    """

    def of(self, key: K, compute: Callable[[], V]) -> V:
        """The value of a key."""
        if key not in self:
            self[key] = compute()
        return self[key]
