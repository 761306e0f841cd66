"""Label arithmetic against references that do it the long way."""

from __future__ import annotations

from math import prod

import hypothesis.strategies as st
import numpy as np
from hypothesis import given, settings

from hope.trace.labels import FIXED, Ids, Ties, along, dims, reshape

steady = settings(derandomize=True, database=None, deadline=None, max_examples=300)


def factorised(draw: st.DrawFn, total: int) -> tuple[int, ...]:
    """Some shape with that many elements."""
    shape: list[int] = []
    while total > 1 and len(shape) < 4:
        shape.append(draw(st.sampled_from([d for d in range(1, total + 1) if total % d == 0])))
        total //= shape[-1]
    return (*shape, total) if total > 1 or not shape else tuple(shape)


@st.composite
def views(draw: st.DrawFn) -> tuple[Ids, tuple[int, ...], tuple[int, ...]]:
    """A label, the shape of its tensor, and a shape to view it in."""
    total = draw(st.sampled_from([1, 2, 3, 4, 6, 8, 12, 24, 30, 36]))
    old, new = factorised(draw, total), factorised(draw, total)
    sizes = [size if draw(st.booleans()) else 1 for size in old]
    ids = draw(st.lists(st.integers(FIXED, 3), min_size=prod(sizes), max_size=prod(sizes)))
    return np.array(ids, dtype=np.int64).reshape(sizes), old, new


@steady
@given(views())
def test_a_viewed_label_says_the_same_at_every_place(
    case: tuple[Ids, tuple[int, ...], tuple[int, ...]],
) -> None:
    label, old, new = case
    moved = reshape(label, old, new)
    assert np.array_equal(np.broadcast_to(moved, new), np.broadcast_to(label, old).reshape(new))


@steady
@given(views())
def test_a_viewed_label_depends_on_no_more_dimensions_than_it_must(
    case: tuple[Ids, tuple[int, ...], tuple[int, ...]],
) -> None:
    label, old, new = case
    full = np.broadcast_to(label, old).reshape(new)
    changing = tuple(d for d in range(len(new)) if (full != full.take([0], axis=d)).any())
    assert dims(reshape(label, old, new)) == changing


def components(count: int, pairs: list[tuple[int, int]]) -> list[int]:
    """For every number the smallest it is connected to, one pair at a time."""
    root = list(range(count))
    for a, b in pairs:
        low, high = sorted((root[a], root[b]))
        root = [low if r == high else r for r in root]
    return root


@st.composite
def ties(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    count = draw(st.integers(1, 40))
    ids = st.integers(0, count - 1)
    return count, draw(st.lists(st.tuples(ids, ids), max_size=60))


@steady
@given(ties(), st.integers(1, 7))
def test_ties_resolve_to_connected_components(case: tuple[int, list[tuple[int, int]]], batch: int) -> None:
    count, pairs = case
    collected = Ties()
    ids = collected.fresh(count)
    for start in range(0, len(pairs), batch):
        some = np.array(pairs[start : start + batch])
        collected.tie(ids[some[:, 0]], ids[some[:, 1]])
    assert collected.resolve().tolist() == components(count, pairs)


def test_a_long_chain_of_ties_resolves_to_its_end() -> None:
    collected = Ties()
    ids = collected.fresh(1000)
    order = np.random.default_rng(0).permutation(1000)
    collected.tie(ids[order[:-1]], ids[order[1:]])
    assert not collected.resolve().any()


def test_fresh_ids_continue_where_the_last_ended() -> None:
    collected = Ties()
    assert collected.fresh(2).tolist() == [0, 1]
    assert collected.fresh(3).tolist() == [2, 3, 4]
    assert collected.resolve().tolist() == [0, 1, 2, 3, 4]


def test_a_label_along_a_dimension_depends_on_that_one_only() -> None:
    label = along(np.array([5, 6]), 2, 4)
    assert label.shape == (1, 1, 2, 1)
    assert dims(label) == (2,)
