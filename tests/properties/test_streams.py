"""Channels of streams go like neurons: cutting them is the same as nobody reading them."""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis import assume, given

import hope
from hope.structure.anatomy import Anatomy
from hope.structure.sizes import sizes
from tests.properties.networks import Net, build, example, networks
from tests.properties.reference import random_evictions
from tests.support import assert_same, backward, masked, random_cut, run
from zoo.silence import silenced

TOLERANCE = 1e-10
seeds = st.integers(0, 1000)


def opened(net: Net) -> tuple[object, Anatomy]:
    model = build(net)
    anatomy = hope.inspect(model, example(net), streams=True)
    assume(any(unit.open for unit in anatomy.streams))
    return model, anatomy


@given(networks(residual=True), seeds)
def test_cutting_neurons_and_channels_equals_masking_them(net: Net, seed: int) -> None:
    (model, anatomy), x = opened(net), example(net)
    for fraction in (0.3, 1.0):
        actions = random_cut(anatomy, fraction, seed)
        small = hope.cut(model, anatomy, actions)
        assert_same(run(small, x), run(masked(model, anatomy, actions), x), TOLERANCE)
        backward(small, x)


@given(networks(residual=True), seeds)
def test_one_channel_alone_releases_what_it_says(net: Net, seed: int) -> None:
    (model, anatomy), x = opened(net), example(net)
    before = sum(parameter.numel() for parameter in model.parameters())
    for unit in anatomy.streams:
        if unit.open:
            action = hope.Prune(unit.name, random.Random(seed).randrange(unit.neurons))
            small = hope.cut(model, anatomy, [action])
            assert_same(run(small, x), run(masked(model, anatomy, [action]), x), TOLERANCE)
            assert before - sum(parameter.numel() for parameter in small.parameters()) == unit.release


@given(networks(residual=True), seeds)
def test_sizes_and_answers_are_right_as_neurons_channels_and_blocks_go(net: Net, seed: int) -> None:
    (model, anatomy), x, rng = opened(net), example(net), random.Random(seed)
    cut = random_cut(anatomy, 0.4, seed)
    prunes = [hope.Prune(action.name, neuron) for action in cut for neuron in action.removed]
    evictions = random_evictions(anatomy, rng, cut)
    steps = rng.sample([*prunes, *evictions], len(prunes) + len(evictions))
    table = sizes(anatomy, steps)
    for count in {len(steps) // 2, len(steps)}:
        small = hope.cut(model, anatomy, steps[:count])
        assert table[count, 1] == sum(parameter.numel() for parameter in small.parameters())
        if "Tokens" not in str(net):  # channels as places of a weight: its MACs are counted as of all of them
            assert table[count, 2] == hope.inspect(small, x).size().macs
    wanted = silenced(model, x, anatomy, evictions, cut)
    if all(tensor.abs().max() > 0 for tensor in wanted):
        assert_same(
            run(small if count == len(steps) else hope.cut(model, anatomy, steps), x), wanted, TOLERANCE
        )
