"""The propagated surrogate: moments of every signal from those of the signals before it.

A layer's inputs are not isotropic: their covariance follows from the layer before, and that of a residual
stream from everything that was added to it. Each BN says what the mean and the deviation of its output are;
only correlations are modelled. Signals before an activation are taken as jointly Gaussian. Across the places
that one kernel covers, the correlation falls off as q^distance, with q read off the checkpoint: of all q, the
one whose modelled variances fit the BN's running variances best (least spread of their log-ratio).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from hope.graph.program import Op
from hope.signals.bn import Bn, Numbers
from hope.signals.energy import SMOOTH
from hope.signals.hermite import Bent, bend, bend_with, covariance
from hope.signals.matrices import product, semidefinite, symmetric_product, tap_distances
from hope.signals.pairwise import warped_correlation

DECAYS = tuple(k / 20 for k in range(20))
DEFAULT_DECAY = 0.5
COLOURS = 0.95  # correlation between the channels of natural images
DEPTH = 80  # operations that a covariance between two signals is followed back through


@dataclass(frozen=True)
class Signal:
    """What is known of a signal at one place.

    Attributes:
        mean: (C,).
        covariance: (C, C).
        repeat: places that stand for each channel (after a flatten), 1 otherwise.
        guess: the inputs were not known and taken as isotropic: only a BN can make something of it.
    """

    mean: Tensor
    covariance: Tensor
    repeat: int = 1
    guess: bool = False


@dataclass(frozen=True)
class Reading:
    """What a weight reads.

    Attributes:
        signal: of its input.
        weight: (outputs, taps, inputs), groups written out.
        taps: (taps, taps) correlation between the places that the kernel covers.
        variance: (outputs,) of what it computes, as modelled.
        bn: the BN right behind it, if there is one.
        decay: q.
    """

    signal: Signal
    weight: Tensor
    taps: Tensor
    variance: Tensor
    bn: Bn | None
    decay: float
    op: int


@dataclass
class Propagated:
    """Follows a program; `signals[k]` is what operation k returns, None where that is not known."""

    program: Sequence[Op]
    tensors: Mapping[str, Tensor]
    crosses: bool = True
    signals: list[Signal | None] = field(default_factory=list)
    readings: dict[str, Reading] = field(default_factory=dict)
    fallbacks: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._bent: dict[int, Bent] = {}
        self._known: dict[tuple[int, int], Tensor | None] = {}
        self._behind = {op.inputs[0]: self._bn(op) for op in self.program if op.kind == "bn"}
        self._by_op: dict[int, Reading] = {}
        self._gains: dict[int, Tensor] = {}
        self._sources: dict[int, Tensor] = {}
        for position, op in enumerate(self.program):
            self.signals.append(self._follow(position, op))

    def _bn(self, op: Op) -> Bn | None:
        return Numbers(self.tensors, {op.tensors[0]: op.values[0]}).bn(op.tensors[0])

    # ---- one operation ---------------------------------------------------------------------------

    def _follow(self, position: int, op: Op) -> Signal | None:
        inputs = [self.signals[i] for i in op.inputs]
        if op.kind == "input":
            return self._image(op)
        if op.kind == "bn":
            return self._normalise(position, op, inputs[0])
        if any(signal is None or signal.guess for signal in inputs):
            return self._guess(op) if op.kind in ("conv", "linear") else None
        first = inputs[0]
        assert first is not None
        match op.kind:
            case "conv" | "linear":
                return self._weigh(position, op, first)
            case "activation":
                return self._activate(position, op, first)
            case "add":
                return self._add(op, inputs)
            case "cat":
                return self._cat(op, inputs)
            case "max" | "average" | "pass":
                return first
            case "pad" if first.repeat == 1:
                before, after = (int(v) for v in op.values)
                pads = (before, after)
                return Signal(functional.pad(first.mean, pads), functional.pad(first.covariance, pads + pads))
            case "slice" if first.repeat == 1:
                start, step, count = (int(v) for v in op.values)
                part = slice(start, start + step * count, step)
                return Signal(first.mean[part], first.covariance[part, part])
            case "flatten" if first.repeat == 1:
                return Signal(first.mean, first.covariance, int(op.values[0]))
            case "gate":
                other = inputs[1]
                assert other is not None
                if len(other.mean) != len(first.mean) or first.repeat != 1:
                    return None
                self._gains[position] = other.mean
                return Signal(first.mean * other.mean, first.covariance * torch.outer(other.mean, other.mean))
        return None

    def _image(self, op: Op) -> Signal | None:
        if len(op.values) < 2:
            return None
        channels = int(op.values[1])
        colours = torch.full((channels, channels), COLOURS if channels == 3 else 0.0, dtype=torch.float64)
        return Signal(torch.zeros(channels, dtype=torch.float64), colours.fill_diagonal_(1.0))

    def _weigh(self, position: int, op: Op, x: Signal) -> Signal | None:
        if op.tensors[0] not in self.tensors:
            return None
        bias = self.tensors.get(op.tensors[1])
        shift = bias.double() if bias is not None else torch.zeros((), dtype=torch.float64)
        bn = self._behind.get(position)
        if op.kind == "conv" and op.values[0] == len(x.mean) > 1 and x.repeat == 1:
            return self._depthwise(position, op, x, bn, shift)
        weight = self._dense(op, x)
        if weight is None:
            return None
        reached = product(weight, x.covariance)  # (O, T, I)
        pairs = torch.einsum("osi,oti->ost", reached, weight) if weight.shape[1] > 1 else None
        decay, taps = self._decay(pairs, bn, op)
        mixed = torch.einsum("st,oti->osi", taps, reached) if len(taps) > 1 else reached
        last = all(position not in other.inputs for other in self.program)  # then its variance will do
        found = (
            torch.diag((mixed * weight).sum(dim=(1, 2)))
            if last
            else symmetric_product(mixed.flatten(1), weight.flatten(1).T)
        )
        mean = weight.sum(dim=1) @ x.mean + shift
        reading = Reading(x, weight, taps, found.diagonal().clone(), bn, decay, position)
        self._by_op[position] = reading
        self.readings.setdefault(op.tensors[0], reading)
        if weight.shape[1] == 1:
            self._known.setdefault((position, op.inputs[0]), reached[:, 0])
        return Signal(mean, found)

    def _depthwise(self, position: int, op: Op, x: Signal, bn: Bn | None, shift: Tensor) -> Signal | None:
        """One channel in, some out: no dense weight is needed, and no neuron is read here."""
        kernel = self.tensors[op.tensors[0]].double().flatten(1)  # (O, T)
        if len(kernel) % len(x.mean):
            return None
        source = torch.arange(len(x.mean)).repeat_interleave(len(kernel) // len(x.mean))
        own = x.covariance.diagonal()[source]
        pairs = own[:, None, None] * kernel[:, :, None] * kernel[:, None, :]
        _, taps = self._decay(pairs if kernel.shape[1] > 1 else None, bn, op)
        found = x.covariance[source][:, source] * (kernel @ taps @ kernel.T)
        self._gains[position], self._sources[position] = kernel @ taps[len(taps) // 2], source
        return Signal(kernel.sum(dim=1) * x.mean[source] + shift, (found + found.T) / 2)

    def _guess(self, op: Op) -> Signal | None:
        """The paper's surrogate for a layer whose inputs are not known: isotropic, to be warped by its BN."""
        raw = self.tensors.get(op.tensors[0])
        if raw is None or (op.kind == "conv" and op.values[0] != 1):
            return None
        filters = raw.double().flatten(1)
        return Signal(torch.zeros(len(filters), dtype=torch.float64), filters @ filters.T, guess=True)

    def _dense(self, op: Op, x: Signal) -> Tensor | None:
        raw = self.tensors[op.tensors[0]].double()
        width = len(x.mean)
        if op.kind == "linear":
            if raw.ndim != 2 or raw.shape[1] != width * x.repeat:
                return None
            return raw.reshape(len(raw), width, x.repeat).transpose(1, 2).contiguous()
        groups = int(op.values[0])
        raw = raw.flatten(2) if raw.ndim > 2 else raw[:, :, None]
        if raw.shape[1] * groups != width or x.repeat != 1:
            return None
        if groups == 1:
            return raw.transpose(1, 2).contiguous()
        dense = torch.zeros(len(raw), raw.shape[2], width, dtype=torch.float64)
        out, into = len(raw) // groups, raw.shape[1]
        for group in range(groups):
            rows = slice(group * out, (group + 1) * out)
            dense[rows, :, group * into : (group + 1) * into] = raw[rows].transpose(1, 2)
        return dense

    def _decay(self, pairs: Tensor | None, bn: Bn | None, op: Op) -> tuple[float, Tensor]:
        """q and the correlations between taps.

        Args:
            pairs: (O, T, T) covariances of what each two taps contribute, if they moved as one; None for one.
        """
        if pairs is None:
            return 1.0, torch.ones(1, 1, dtype=torch.float64)
        kernel = tuple(self.tensors[op.tensors[0]].shape[2:]) if op.kind == "conv" else ()
        distance = tap_distances(kernel or pairs.shape[1])
        if bn is None:
            return DEFAULT_DECAY, DEFAULT_DECAY**distance
        best = (math.inf, DEFAULT_DECAY)
        moving = bn.variance > 1e-12
        for decay in DECAYS:
            variance = (pairs * decay**distance).sum(dim=(1, 2))[moving]
            if len(variance) < 2 or not (variance > 0).all():
                continue
            ratio = torch.log(variance / bn.variance[moving])
            best = min(best, (float(ratio.var()), decay))
        return best[1], best[1] ** distance

    def _normalise(self, position: int, op: Op, x: Signal | None) -> Signal | None:
        bn = self._bn(op)
        if bn is None or (x is not None and len(x.mean) != len(bn.shift)):
            return None
        if x is None or x.repeat != 1:
            self.fallbacks.append(op.tensors[0])
            return Signal(bn.shift, torch.diag(bn.spread**2))
        if x.guess:
            self.fallbacks.append(op.tensors[0])
            gram = x.covariance * torch.outer(bn.gain, bn.gain)
            rho = semidefinite(warped_correlation(gram, bn.spread))
            return Signal(bn.shift, rho * torch.outer(bn.spread, bn.spread))
        deviation = torch.sqrt(x.covariance.diagonal().clamp(min=0))
        signed = bn.spread * torch.sign(bn.scale)
        gain = torch.where(deviation > 0, signed / deviation.clamp(min=1e-150), torch.zeros_like(deviation))
        self._gains[position] = gain
        found = gain[:, None] * x.covariance * gain[None, :]
        return Signal(bn.shift, found.diagonal_scatter(bn.spread**2))

    def _activate(self, position: int, op: Op, x: Signal) -> Signal | None:
        spread = torch.sqrt(x.covariance.diagonal().clamp(min=0))
        bent = self._bend(op, x.mean, spread)
        if bent is None or x.repeat != 1:
            return None
        self._bent[position] = bent
        self._gains[position] = bent.slope
        safe = torch.where(spread > 0, spread, torch.ones_like(spread))
        rho = (x.covariance / torch.outer(safe, safe)).clamp(-1, 1)
        return Signal(bent.mean, covariance(bent, bent, rho))

    def _bend(self, op: Op, mean: Tensor, spread: Tensor) -> Bent | None:
        ones = torch.ones_like(mean)
        if op.function == "relu":
            return bend(mean, spread, 0 * ones)
        if op.function == "leaky_relu":
            return bend(mean, spread, (op.values[0] if op.values else 0.01) * ones)
        if op.function == "prelu" and op.tensors[0] in self.tensors:
            slopes = self.tensors[op.tensors[0]].double()
            return bend(mean, spread, slopes.expand(len(mean)) if len(slopes) == 1 else slopes)
        if op.function in SMOOTH:
            alpha = op.values[:1] if op.function in ("elu", "celu") else ()
            return bend_with(lambda y: SMOOTH[op.function](y, *alpha), mean, spread)
        return None

    def _add(self, op: Op, inputs: Sequence[Signal | None]) -> Signal | None:
        a, b = inputs
        assert a is not None
        assert b is not None
        if len(a.mean) != len(b.mean) or a.repeat != b.repeat:
            return None
        total = a.covariance + b.covariance
        between = self.cross(op.inputs[0], op.inputs[1])
        if between is not None:
            total = total + between + between.T
        return Signal(a.mean + b.mean, total, a.repeat)

    def _cat(self, op: Op, inputs: Sequence[Signal | None]) -> Signal | None:
        parts = [signal for signal in inputs if signal is not None]
        if any(part.repeat != 1 for part in parts):
            return None
        rows = []
        for i, a in enumerate(parts):
            row = []
            for j, b in enumerate(parts):
                between = a.covariance if i == j else self.cross(op.inputs[i], op.inputs[j])
                if between is None:
                    between = torch.zeros(len(a.mean), len(b.mean), dtype=torch.float64)
                row.append(between)
            rows.append(torch.cat(row, dim=1))
        return Signal(torch.cat([part.mean for part in parts]), torch.cat(rows))

    def share(self, branch: int) -> float:
        """Of the variance behind the add that a branch ends in, what the branch writes."""
        ends = [k for k, op in enumerate(self.program) if op.kind == "add" and branch in op.inputs]
        signals = [self.signals[k] for k in (branch, *ends[:1])]
        if len(signals) < 2 or signals[0] is None or signals[1] is None:
            return 1.0
        own, total = (float(s.covariance.diagonal().sum()) for s in signals if s is not None)
        return min(1.0, own / total) if total > 0 else 1.0

    # ---- covariance of two signals ---------------------------------------------------------------

    def cross(self, a: int, b: int, depth: int = 0) -> Tensor | None:
        """Cov(a, b), following the later of the two back until both are the same; None if that fails.

        Behind an activation it is E Ψ' times the covariance before it (Stein's lemma).
        """
        signal, other = self.signals[a], self.signals[b]
        if not self.crosses or signal is None or other is None:
            return None
        if a == b:
            return None if signal.repeat != 1 else signal.covariance
        if a < b:
            found = self.cross(b, a, depth)
            return None if found is None else found.T
        if (a, b) not in self._known:
            self._known[a, b] = self._back(a, b, depth + 1) if depth < DEPTH else None
        return self._known[a, b]

    def _back(self, a: int, b: int, depth: int) -> Tensor | None:
        op, signal = self.program[a], self.signals[a]
        if signal is None or not op.inputs or signal.repeat != 1:
            return None
        parts = [self.cross(i, b, depth) for i in op.inputs]
        first = parts[0]
        if op.kind == "cat":
            other = self.signals[b]
            assert other is not None
            filled = []
            for i, part in zip(op.inputs, parts, strict=True):
                source = self.signals[i]
                assert source is not None
                zero = torch.zeros(len(source.mean), len(other.mean), dtype=torch.float64)
                filled.append(zero if part is None else part)
            return torch.cat(filled)
        if op.kind == "add":
            there = [part for part in parts if part is not None]
            return torch.stack(there).sum(dim=0) if there else None
        if first is None:
            return None
        match op.kind:
            case "conv" if a in self._sources:
                return self._gains[a][:, None] * first[self._sources[a]]
            case "conv" | "linear":
                reading = self._by_op[a]
                middle = reading.taps[len(reading.taps) // 2]
                central: Tensor = torch.einsum("t,oti->oi", middle, reading.weight)
                return product(central, first)
            case "bn" | "activation" | "gate":
                return self._gains[a][:, None] * first if a in self._gains else None
            case "max" | "average" | "pass":
                return first
            case "pad":
                before, after = (int(v) for v in op.values)
                return functional.pad(first, (0, 0, before, after))
            case "slice":
                start, step, count = (int(v) for v in op.values)
                return first[start : start + step * count : step]
        return None
