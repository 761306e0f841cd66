"""What a layer's loss does to the answers: each layer is looked at once, by itself.

Fractions of signal that layers lose are not worth the same: the first layer of a bottleneck carries more than
the second, a branch less than a layer without a skip. How much follows from the definition of fidelity: its
derivative with respect to the layer's loss, taken as a difference. The layer alone loses signal by its own
path until `LEFT` of it is there, and the judge says what is left of the answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

from torch import nn

from hope._util.progress import bar
from hope.methods.absorption import AbsorbState
from hope.rewrite.apply import cut
from hope.schedule.search_space import SearchSpace

LEFT = 0.7  # of a layer's signal, where it is looked at
LEAST = 1e-4  # loss of fidelity that a look can tell from none


def with_sensitivities(
    model: nn.Module, space: SearchSpace, judge: Callable[[nn.Module], float], *, progress: bool | None = None
) -> SearchSpace:
    """The same search space, where a layer's cost counts by what its loss does to the network's outputs.

    Args:
        judge: a network -> its fidelity.
    """
    found = list(space.states)
    with bar("measuring the sensitivity of each layer", len(found), progress) as show:
        for done, state in enumerate(space.states):
            show(done)
            if isinstance(state, AbsorbState):
                found[done] = replace(state, share=_sensitivity(model, space, state, judge))
    return replace(space, states=tuple(found))


def _sensitivity(
    model: nn.Module, space: SearchSpace, state: AbsorbState, judge: Callable[[nn.Module], float]
) -> float:
    """Loss of fidelity per loss of the layer's signal, both as they add up: the latter in its logarithm."""
    path, steps = space.method.path(state), []
    for step in path.steps():
        steps.append(step)
        if path.left <= LEFT:
            break
    small = cut(model, space.anatomy, steps, intakes=space.statistics.intakes, shared=True)
    return max(LEAST, 1 - judge(small)) / max(LEAST, -math.log(path.left))
