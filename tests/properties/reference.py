"""Random evictions."""

from __future__ import annotations

import random
from collections.abc import Sequence

import hope
from zoo.silence import together


def random_evictions(
    anatomy: hope.Anatomy, rng: random.Random, prunings: Sequence[hope.Prune] = ()
) -> list[hope.Evict]:
    """Some of the blocks, at least one if there is any, as many as can go in any order; half of them with a
    bias where one is possible.
    """
    blocks = rng.sample(anatomy.blocks, rng.randint(min(1, len(anatomy.blocks)), len(anatomy.blocks)))
    evictions = [
        hope.Evict(
            b.name, [rng.uniform(-1, 1) for _ in range(b.channels)] if b.bias and rng.random() < 0.5 else None
        )
        for b in sorted(blocks, key=lambda b: len(b.layers))
    ]
    return together(anatomy, evictions, prunings)
