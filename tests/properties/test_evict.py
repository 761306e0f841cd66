"""Evicting a block is the same as its branch giving zeros, a bias, nothing, or what it is given."""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis import assume, given

import hope
from hope.rewrite.apply import outcome
from tests.properties.networks import Net, build, example, networks, skipless
from tests.properties.reference import random_evictions
from tests.support import assert_same, backward, random_cut, run
from zoo.silence import silenced

TOLERANCE = 1e-10
seeds = st.integers(0, 1000)
any_network = networks(residual=True) | skipless()


@given(any_network, seeds)
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


@given(any_network)
def test_evicting_one_block_releases_what_it_says(net: Net) -> None:
    model, x = build(net), example(net)
    anatomy = hope.inspect(model, x)
    assume(anatomy.blocks)
    total = sum(p.numel() for p in model.parameters())
    for block in anatomy.blocks:
        small = hope.cut(model, anatomy, [hope.Evict(block.name)])
        assert total - sum(p.numel() for p in small.parameters()) == block.release


@given(any_network, seeds)
def test_pruning_and_evicting_together_equals_both_masks_together(net: Net, seed: int) -> None:
    model, x = build(net), example(net)
    anatomy = hope.inspect(model, x)
    assume(anatomy.blocks)
    rng = random.Random(seed)
    prunes = random_cut(anatomy, 0.4, seed)
    evictions = random_evictions(anatomy, rng, prunes)
    actions = rng.sample([*prunes, *evictions], len(prunes) + len(evictions))
    small = hope.cut(model, anatomy, actions)
    assert_same(run(small, x), silenced(model, x, anatomy, evictions, prunes), TOLERANCE)
    assert sum(p.numel() for p in small.parameters()) == outcome(anatomy, actions).size(anatomy).parameters
    backward(small, x)
