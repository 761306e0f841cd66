"""Sensitivity: the effect of a layer's loss on the network's outputs, measured once per layer.

Layers lose fractions of their signal, with different effects: the first layer of a bottleneck matters more
than the second, a branch less than a layer without a skip. The sensitivity is the derivative of the fidelity
with respect to the layer's loss, as a difference quotient: the layer alone loses signal along its own path
until `LEFT` of it remains, and the fidelity is measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from torch import nn

from hope._util.disk_cache import cached_number
from hope._util.progress import SENSITIVITY, bar
from hope.methods.absorption_path import AbsorbState
from hope.rewrite.apply import cut
from hope.schedule.search_space import SearchSpace

LEFT = 0.7  # the share of a layer's signal at which sensitivity is measured
LEAST = 1e-4  # the smallest loss of fidelity that can be distinguished from none


def with_sensitivities(
    model: nn.Module,
    space: SearchSpace,
    fidelity: Callable[[nn.Module], float],
    *,
    progress: bool | None = None,
) -> SearchSpace:
    """The same search space with costs weighted by sensitivities.

    Args:
        fidelity: a network -> its fidelity.
    """
    found = list(space.states)
    with bar(SENSITIVITY, len(found), progress) as show:
        for done, state in enumerate(space.states):
            show(done)
            if isinstance(state, AbsorbState):
                measure = partial(_sensitivity, model, space, state, fidelity)
                found[done] = replace(state, share=cached_number(f"sensitivity of {state.name}", measure))
    return replace(space, states=tuple(found))


def _sensitivity(
    model: nn.Module, space: SearchSpace, state: AbsorbState, fidelity: Callable[[nn.Module], float]
) -> float:
    """Loss of fidelity per loss of the layer's signal; the latter as a logarithm, so that losses add up."""
    path, steps = space.method.path(state), []
    for step in path.steps():
        steps.append(step)
        if path.left <= LEFT:
            break
    small = cut(model, space.anatomy, steps, input_statistics=space.statistics.input_statistics, shared=True)
    return max(LEAST, 1 - fidelity(small)) / max(LEAST, -math.log(path.left))
