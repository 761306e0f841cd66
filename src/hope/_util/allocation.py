"""Allocations that fail, as one line; nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hope.errors import HopeError, NotEnoughMemory, first_line

SAID = ("DefaultCPUAllocator", "out of memory")  # in torch's messages


def is_allocation(error: BaseException) -> bool:
    """Whether memory could not be allocated: torch raises a RuntimeError then, numpy a MemoryError.

    >>> is_allocation(MemoryError()), is_allocation(RuntimeError("shapes differ"))
    (True, False)
    """
    torchs = isinstance(error, RuntimeError) and any(word in str(error) for word in SAID)
    return torchs or isinstance(error, MemoryError)


@contextmanager
def allocations() -> Iterator[None]:
    """An allocation that fails in here raises `NotEnoughMemory`."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if isinstance(error, HopeError) or not is_allocation(error):
            raise
        said = first_line(error).rpartition("DefaultCPUAllocator: ")[2]
        raise NotEnoughMemory(
            f"this must have more memory than there is, got: {said}: free some, or take a smaller model"
        ) from error
