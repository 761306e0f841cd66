"""How much memory a run needs at its peak, counted before it starts: copies of the model, moments, the
matrices that paths work with, and what a forward pass holds.
"""

from __future__ import annotations

from math import ceil, prod

from torch import nn

from hope import ops
from hope._util.memory import PART, allowed, available, given_ceiling, size_of
from hope.errors import NotEnoughMemory
from hope.evaluate.fidelity import images_for
from hope.methods import Method
from hope.methods.absorb import MOST
from hope.ops.elementwise import Add
from hope.ops.norm import is_bn
from hope.ops.registry import MomentPreserving
from hope.ops.weight import is_weight
from hope.statistics.measured import many_moments, moment_bytes
from hope.statistics.propagated import DEPTH
from hope.structure.anatomy import Anatomy

BASE = 350_000_000  # bytes of Python, torch and the analysis
LIVE = 6  # of the largest activations, how many a refit holds
SOLVED = 4  # matrices of a layer's size that its normal equations hold
INVERTED = 2  # matrices of a layer's size that its inverse is worked out with
RUNNING = 3  # how many a forward pass holds
MARGIN = 1.25  # how much less a run may need than is counted: one that fits is not refused
COPIES = 3  # of the model: the original, one whose BNs are re-estimated, the small one


def memory_needed(
    model: nn.Module, anatomy: Anatomy, method: Method, count: int, rows: int = 1, *, refits: bool = True
) -> int:
    """Bytes at the peak of a run.

    Args:
        count: inputs that statistics are measured on.
        rows: inputs in the example.
        refits: whether weights are fitted in the same run.
    """
    largest = 4 * max((prod(one.output) for one in anatomy.program if one.inputs), default=0) // rows
    weights, large = size_of(model), size_of(model) > allowed() / PART
    forward = RUNNING * largest * images_for(anatomy.size().macs) + (1 if large else COPIES) * weights
    phases = [2 * weights, _paths(anatomy, method, count) + forward]
    if method.propagates:
        phases.append(_Signals(anatomy).peak + forward)
    if refits:
        unknowns = (prod(shape[1:]) for name, shape in anatomy.shapes.items() if name.endswith("weight"))
        solved = 8 * SOLVED * max(unknowns, default=0) ** 2
        phases.append(LIVE * largest * min(count, MOST) + solved + (COPIES - large) * weights)
    return BASE + max(phases)


def refuse(needed: int) -> None:
    """Refuse a run that needs more bytes than it may use.

    Raises:
        NotEnoughMemory: the message says the least that it needs.
    """
    ceiling, least = given_ceiling(), needed / MARGIN
    if ceiling == 0:
        return
    most = available() if ceiling is None else ceiling
    if least > most:
        whose = "are available" if ceiling is None else "may be used (memory=, --memory or HOPE_MEMORY)"
        raise NotEnoughMemory(
            f"this run must have at least {ceil(least / 1e8) / 10:.1f} GB of memory, got {most / 1e9:.1f} GB "
            f"that {whose}: give more, or take a method without matrices of a layer's width, method='l1-in'"
        )


def _paths(anatomy: Anatomy, method: Method, count: int) -> int:
    """What is held while paths are worked out: what was propagated, moments, and the paths' matrices."""
    each = [method.path_bytes(unit) for unit in anatomy.layers] or [0]
    if not method.propagates:
        return sum(each)
    weights = {reader.weight for unit in anatomy.layers for reader in unit.readers}
    held = _Signals(anatomy).held
    moments = [moment_bytes(anatomy, weight) for weight in weights] or [0]
    inverted = INVERTED * max(moments)
    if count and many_moments(anatomy):  # a part at a time; the rest is in files
        return held + max(allowed() // PART + inverted, max(each) + inverted)
    return held + sum(moments) + sum(each) + inverted


class _Signals:
    """Bytes of what `Propagated` makes of a program, which it follows in the same way, without numbers.

    Attributes:
        held: covariances of signals, and weights in float64.
        peak: the same with covariances between signals, which are dropped in the end.
    """

    def __init__(self, anatomy: Anatomy) -> None:
        self._forms = ops.forms(anatomy.program)
        self._widths: list[int] = []  # channels of each operation's signal, 0 where it is not known
        self._crosses: dict[tuple[int, int], bool] = {}
        self.held = self._between = 0
        read = {position for form in self._forms if form is not None for position in form.inputs}
        normed = any(map(is_bn, self._forms))
        guesses = set[int]()
        for position, form in enumerate(self._forms):
            if form is None or form.operator is None or form.channel is None:
                self._widths.append(0)
                continue
            known = [0 if one in guesses else self._widths[one] for one in form.inputs]
            channels = form.operation.output[form.channel]
            width = min(channels, sum(known)) if known and all(known) else 0
            if is_weight(form):
                entries = 8 * prod(anatomy.shapes.get(form.operation.tensors.get("weight", ""), (0,)))
                guessed = not width and normed and position in read
                width = channels if width or guessed else 0
                guesses |= {position} if guessed else set()
                self.held += entries * (width > 0)
                self._between += entries * (width > 0 and not guessed)
            elif is_bn(form):
                width = channels
            self._widths.append(width)
            if not isinstance(form.operator, MomentPreserving):
                self.held += 8 * width**2
            if isinstance(form.operator, Add) and width:
                self._cross(form.inputs[0], form.inputs[-1])
        self.peak = self.held + self._between

    def _cross(self, a: int, b: int, depth: int = 0) -> bool:
        """Count the covariance of two signals; whether it is known."""
        a, b = max(a, b), min(a, b)
        form = self._forms[a]
        if a == b or not self._widths[a] or not self._widths[b] or form is None:
            return bool(self._widths[a]) and a == b
        if (a, b) not in self._crosses:
            parts = [self._cross(one, b, depth + 1) for one in form.inputs if depth < DEPTH]
            self._crosses[a, b] = any(parts)
            if any(parts) and not isinstance(form.operator, MomentPreserving):
                self._between += 8 * self._widths[a] * self._widths[b]
        return self._crosses[a, b]
