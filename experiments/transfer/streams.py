"""Random numbers of the transfer experiment: a stream of its own for every trial, task and purpose."""

from __future__ import annotations

from typing import Literal, TypeAlias, get_args

import numpy as np

Purpose: TypeAlias = Literal["superclasses", "source split", "target split", "pre-training", "fine-tuning"]


def seed(purpose: Purpose, trial: int = 0, task: int = 0) -> int:
    """Where a stream starts. Streams of one task are the same for all methods, so that these differ in
    nothing else: the new head, the order of the images, the fresh weights of vessels.

    >>> seed("fine-tuning", 0, 1) != seed("fine-tuning", 1, 0) != seed("pre-training", 1, 0)
    True
    """
    key = (get_args(Purpose).index(purpose), trial, task)
    return int(np.random.SeedSequence(0, spawn_key=key).generate_state(1, np.uint64)[0] >> 1)
