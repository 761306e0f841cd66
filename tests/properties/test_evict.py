"""Evicting a block is the same as its branch giving zeros, or a bias."""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis import assume, given

import hope
from hope.surgery.apply import outcome
from tests.properties.networks import Net, build, example, networks
from tests.properties.reference import random_evictions, silenced
from tests.support import assert_same, backward, masked, random_cut, run

TOLERANCE = 1e-10
seeds = st.integers(0, 1000)


@given(networks(residual=True), seeds)
def test_evicting_blocks_equals_silencing_their_branches(net: Net, seed: int) -> None:
    model, x = build(net), example(net)
    anatomy = hope.inspect(model, x)
    assume(anatomy.blocks)
    evictions = random_evictions(anatomy, random.Random(seed))
    small = hope.cut(model, anatomy, evictions)
    assert_same(run(small, x), silenced(model, x, anatomy, evictions), TOLERANCE)
    counted = sum(p.numel() for p in small.parameters())
    assert counted == outcome(anatomy, evictions).size(anatomy).parameters
    backward(small, x)


@given(networks(residual=True))
def test_evicting_one_block_releases_what_it_says(net: Net) -> None:
    model, x = build(net), example(net)
    anatomy = hope.inspect(model, x)
    assume(anatomy.blocks)
    total = sum(p.numel() for p in model.parameters())
    for block in anatomy.blocks:
        small = hope.cut(model, anatomy, [hope.Evict(block.name)])
        assert total - sum(p.numel() for p in small.parameters()) == block.release


@given(networks(residual=True), seeds)
def test_pruning_and_evicting_together_equals_both_masks_together(net: Net, seed: int) -> None:
    model, x = build(net), example(net)
    anatomy = hope.inspect(model, x)
    assume(anatomy.blocks)
    rng = random.Random(seed)
    prunes, evictions = random_cut(anatomy, 0.4, seed), random_evictions(anatomy, rng)
    actions = rng.sample([*prunes, *evictions], len(prunes) + len(evictions))
    small = hope.cut(model, anatomy, actions)
    assert_same(run(small, x), silenced(masked(model, anatomy, prunes), x, anatomy, evictions), TOLERANCE)
    assert sum(p.numel() for p in small.parameters()) == outcome(anatomy, actions).size(anatomy).parameters
    backward(small, x)
