"""What a layer's loss does to the answers: each layer is looked at once, by itself.

Fractions of signal that layers lose are not worth the same: the first layer of a bottleneck carries more than
the second, a branch less than a layer without a skip. How much follows from the definition of fidelity: its
derivative with respect to the layer's loss, taken as a difference. The layer alone loses signal by its own
path until `LEFT` of it is there, and the judge says what is left of the answers.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import nn

from hope._util.progress import bar
from hope.methods.absorption import AbsorbState
from hope.rewrite.apply import cut
from hope.schedule.plan import Plan

LEFT = 0.7  # of a layer's signal, where it is looked at
LEAST = 1e-4  # loss of fidelity that a look can tell from none


def weigh(
    model: nn.Module, plan: Plan, judge: Callable[[nn.Module], float], *, progress: bool | None = None
) -> None:
    """Let the costs of a plan's layers count by what they do to the answers, in place.

    Args:
        judge: a network -> its fidelity.
    """
    states = [state for state in plan.states if isinstance(state, AbsorbState)]
    with bar("looking at each layer", len(states), progress) as show:
        for done, state in enumerate(states):
            show(done)
            state.share = _sensitivity(model, plan, state, judge)


def _sensitivity(
    model: nn.Module, plan: Plan, state: AbsorbState, judge: Callable[[nn.Module], float]
) -> float:
    """Loss of fidelity per loss of the layer's signal, both as they add up: the latter in its logarithm."""
    path, steps = plan.method.path(state), []
    for step in path.steps():
        steps.append(step)
        if path.left <= LEFT:
            break
    small = cut(model, plan.anatomy, steps, intakes=plan.known.intakes, shared=True)
    return max(LEAST, 1 - judge(small)) / max(LEAST, -math.log(path.left))
