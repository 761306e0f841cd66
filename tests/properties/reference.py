"""Random evictions."""

from __future__ import annotations

import random

import hope


def random_evictions(anatomy: hope.Anatomy, rng: random.Random) -> list[hope.Evict]:
    """Some of the blocks, at least one if there is any, half of them with a bias where one is possible."""
    blocks = rng.sample(anatomy.blocks, rng.randint(min(1, len(anatomy.blocks)), len(anatomy.blocks)))
    return [
        hope.Evict(
            b.name, [rng.uniform(-1, 1) for _ in range(b.channels)] if b.bias and rng.random() < 0.5 else None
        )
        for b in blocks
    ]
