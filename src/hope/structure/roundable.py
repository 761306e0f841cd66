"""Which weights can be rounded to a few bits, and why the others cannot."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from hope import ops
from hope.ops.uses import uses_of_weights
from hope.ops.weight import is_weight
from hope.reasons import Cause, Reason
from hope.trace.labels import Shape
from hope.trace.program import Program


def roundable(
    program: Program,
    shapes: Mapping[str, Shape],
    parameters: Collection[str],
    aliases: Mapping[str, tuple[str, ...]],
) -> dict[str, Reason | None]:
    """Every parameter of two dimensions or more -> why it cannot be rounded; None if it can.

    Those of convolutions and linear layers can, if they have outputs in the first dimension and are used
    once.
    """
    uses = uses_of_weights(program)
    sides = {
        form.operation.tensors["weight"]: getattr(form.operator, "sides", (1, 0))
        for form in ops.forms(program)
        if is_weight(form)
    }
    found: dict[str, Reason | None] = {}
    for name in sorted(parameters):
        if len(shapes[name]) < 2:
            continue
        others = [other for other in aliases.get(name, ()) if other != name]
        found[name] = None
        if others:
            found[name] = Cause.TIED.at(others[0])
        elif name not in sides:
            found[name] = Cause.NOT_MULTIPLIED.at()
        elif uses[name] > 1:
            found[name] = Cause.USED_TIMES.at(detail=str(uses[name]))
        elif sides[name] != (1, 0):
            found[name] = Cause.OUTPUTS_LAST.at()
    return found
