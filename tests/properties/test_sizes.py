"""The arithmetic of sizes is that of the physical cut, at every moment."""

from __future__ import annotations

import random

import hypothesis.strategies as st
from hypothesis import given

import hope
from hope.actions import Evict
from hope.rewrite.apply import outcome
from hope.structure.sizes import sizes
from tests.properties.networks import Net, build, example, networks, skipless
from tests.properties.reference import random_evictions
from tests.support import random_cut

seeds = st.integers(0, 1000)


@given(networks(residual=True) | skipless(), seeds)
def test_sizes_are_those_of_the_networks_that_are_cut(net: Net, seed: int) -> None:
    model, rng = build(net), random.Random(seed)
    anatomy = hope.inspect(model, example(net))
    prunes = [hope.Prune(a.name, n) for a in random_cut(anatomy, 0.4, seed) for n in a.removed]
    evictions = random_evictions(anatomy, rng, random_cut(anatomy, 0.4, seed))
    steps = rng.sample([*prunes, *evictions], len(prunes) + len(evictions))
    table = sizes(anatomy, steps)
    assert len(table) == len(steps) + 1
    for count in {0, len(steps) // 2, len(steps)}:
        some = steps[:count]
        small = hope.cut(model, anatomy, some)
        assert table[count, 1] == sum(p.numel() for p in small.parameters())
        removed = {layer.name: sum(s.name == layer.name for s in some) for layer in anatomy.layers}
        evicted = [s for s in some if isinstance(s, Evict)]
        size = anatomy.size(
            removed, [s.name for s in evicted], [s.name for s in evicted if s.bias is not None]
        )
        if any(anatomy.block(s.name).before for s in evicted):  # counts do not tell which neurons are left
            size = outcome(anatomy, some).size(anatomy)
        assert table[count].tolist() == [size.neurons, size.parameters, size.macs]
        again = hope.inspect(small, example(net)).size()
        assert size.macs == again.macs
