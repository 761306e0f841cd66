"""The propagated surrogate: moments of every signal from those of the signals before it.

A layer's inputs are not isotropic: their covariance follows from the layer before, and that of a residual
stream from everything that was added to it. Each BN says what the mean and the deviation of its output are;
only correlations are modelled. Signals before an activation are taken as jointly Gaussian. How moments pass
through each operator is said in `hope.ops`; here they are followed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from hope import ops
from hope.ops.elementwise import Add
from hope.ops.norm import Bn, following_bns
from hope.ops.reading import DECAYS, Reading
from hope.ops.registry import Form, Signal
from hope.trace.program import Program

DEPTH = 80  # operations that a covariance between two signals is followed back through


@dataclass
class Propagated:
    """Follows a program; `signals[k]` is what operation k returns, None where that is not known.

    Attributes:
        program: whose signals are followed.
        tensors: its parameters and buffers.
        crosses: whether covariances between different signals are worked out.
        decays: the correlations of neighbouring places that are tried for each kernel.
        isotropic: take what weights compute from their filters alone, as the paper does; what they read is
            noted all the same.
        signals: what each operation returns.
        readings: weight -> what it reads.
        fallbacks: BNs whose inputs could not be followed.
        forms: the operations as such on whole signals.
        following_bn: operation -> the BN right after it.
        read: the operations that others read.
        by_operation: readings by the operation that reads.
        known: covariances between two signals, the later one first; while they are followed.
    """

    program: Program
    tensors: Mapping[str, Tensor]
    crosses: bool = True
    decays: tuple[float, ...] = DECAYS
    isotropic: bool = False
    signals: list[Signal | None] = field(default_factory=list)
    readings: dict[str, Reading] = field(default_factory=dict)
    fallbacks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.forms = ops.forms(self.program)
        self.following_bn: dict[int, Bn | None] = following_bns(self.forms, self.tensors)
        self.read = {position for form in self.forms if form is not None for position in form.inputs}
        self.by_operation: dict[int, Reading] = {}
        self.known: dict[tuple[int, int], Tensor | None] = {}
        for form in self.forms:
            self.signals.append(self._follow(form))
        self.known.clear()  # they are as large as all signals together, and not needed again

    def _follow(self, form: Form | None) -> Signal | None:
        if form is None or form.operator is None:
            return None
        inputs = [self.signals[position] for position in form.inputs]
        if not form.operator.alone and any(signal is None or signal.guess for signal in inputs):
            return None
        return form.operator.moments(self, form, inputs)

    def share(self, branch: int) -> float:
        """Of the variance after the add that a branch ends in, what the branch writes."""
        adds = (form for form in self.forms if form is not None and isinstance(form.operator, Add))
        ends = [form.operation.position for form in adds if branch in form.inputs]
        signals = [self.signals[k] for k in (branch, *ends[:1])]
        if len(signals) < 2 or signals[0] is None or signals[1] is None:
            return 1.0
        own, total = (float(s.covariance.diagonal().sum()) for s in signals if s is not None)
        return min(1.0, own / total) if total > 0 else 1.0

    def cross(self, a: int, b: int, depth: int = 0) -> Tensor | None:
        """Cov(a, b), following the later of the two back until both are the same; None if that fails.

        After an activation it is E Ψ' times the covariance before it (Stein's lemma).
        """
        signal, other = self.signals[a], self.signals[b]
        if not self.crosses or signal is None or other is None:
            return None
        if a == b:
            return None if signal.repeat != 1 else signal.covariance
        if a < b:
            found = self.cross(b, a, depth)
            return None if found is None else found.T
        if (a, b) not in self.known:
            self.known[a, b] = self._back(a, b, depth + 1) if depth < DEPTH else None
        return self.known[a, b]

    def _back(self, a: int, b: int, depth: int) -> Tensor | None:
        form, signal, other = self.forms[a], self.signals[a], self.signals[b]
        if form is None or form.operator is None or not form.inputs or signal is None or other is None:
            return None
        if signal.repeat != 1:
            return None
        parts = [self.cross(position, b, depth) for position in form.inputs]
        return form.operator.covariance(self, form, parts, other)
