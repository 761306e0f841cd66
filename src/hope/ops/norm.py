"""Normalisations: BN by its running statistics, and those that make channels depend on one another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor, nn

from hope._util.frozen_bn import has_bn_numbers
from hope.geometry.matrices import semidefinite
from hope.geometry.pairwise import warped_correlation
from hope.ops.elementwise import Identity, per_channel
from hope.ops.protocols import Propagation, Tracer
from hope.ops.registry import TABLE, Form, Inputs, Operator, Reads, Signal, find, forms
from hope.reasons import Cause
from hope.trace.labels import dims
from hope.trace.program import Operation, Program, Ref, Shape, module_of
from hope.trace.values import Link, Value

LLAMA_NORMS = ("input_layernorm", "post_attention_layernorm")  # before the attention and before the MLP


@dataclass(frozen=True)
class Bn:
    """A BN's numbers, float64."""

    scale: Tensor
    shift: Tensor
    mean: Tensor
    variance: Tensor
    eps: float
    literal: bool = False

    @property
    def gain(self) -> Tensor:
        """γ/√(σ² + ε): what the BN multiplies its input by."""
        return self.scale / torch.sqrt(self.variance + self.eps)

    @property
    def spread(self) -> Tensor:
        """Deviation of the BN's output, |γ|·√(σ²/(σ² + ε)); taken literally, |γ|."""
        if self.literal:
            return self.scale.abs()
        return self.scale.abs() * torch.sqrt(self.variance / (self.variance + self.eps))


def read_bn(tensors: Mapping[str, Tensor], name: str, eps: float) -> Bn | None:
    """The numbers of the BN of that name; None if it keeps no statistics."""
    mean, variance = tensors.get(f"{name}.running_mean"), tensors.get(f"{name}.running_var")
    if mean is None or variance is None:
        return None
    scale, shift = tensors.get(f"{name}.weight"), tensors.get(f"{name}.bias")
    one = torch.ones_like(variance, dtype=torch.float64)
    return Bn(
        scale.double() if scale is not None else one,
        shift.double() if shift is not None else torch.zeros_like(one),
        mean.double(),
        variance.double().clamp(min=0),
        eps,
    )


def _apart(flow: Tracer, operation: Operation, kind: str) -> Any:
    """Every channel by itself, tied to its numbers."""
    found = per_channel(flow, operation)
    if found is None:
        return None
    result, parameters = found
    module = next((module_of(p.tensor) for p in parameters if p.tensor is not None), operation.operator)
    eps = operation.arguments.get("eps")
    value = result.then(kind, module, (float(eps),) if eps is not None else ())
    rest = [Value(())] * (len(operation.shapes) - 1)  # statistics of the batch, which evaluation ignores
    return [value, *rest] if operation.several else value


class PerChannel(Operator):
    """A normalisation of every channel by itself."""

    kind = "norm"
    modules = (nn.modules.batchnorm._NormBase,)

    def channels(self, flow: Tracer, operation: Operation) -> Any:
        """Channels are tied to their numbers."""
        return _apart(flow, operation, self.kind)

    def resize(self, module: nn.Module, before: Mapping[str, Shape]) -> None:
        """As many features as are left; a frozen BN may have no such attribute."""
        if not hasattr(module, "num_features"):
            return
        vars(module)["num_features"] = int(getattr(module, next(iter(before))).shape[0])


class BatchNorm(PerChannel):
    """Batch normalisation in evaluation: its running statistics say what its output looks like. A frozen one
    is captured as this operator (see `frozen_bn`).
    """

    kind = "bn"
    alone = True

    def holds(self, module: nn.Module, before: Mapping[str, Shape]) -> bool:
        """Whether a module is a norm of torch's, or a frozen BN."""
        return super().holds(module, before) or has_bn_numbers(module)

    def form(self, operation: Operation, reads: Reads) -> Form | None:
        """Channels are in dimension 1, if it has statistics."""
        if not bn_of(operation):
            return None
        return Form(
            operation, self, tuple(r.position for r in reads), 1, (float(operation.arguments["eps"]),)
        )

    def moments(self, at: Propagation, form: Form, inputs: Inputs) -> Signal | None:
        """Mean and deviation are the BN's own, correlations those of what it reads, if known."""
        x, name = inputs[0], bn_of(form.operation)
        bn = read_bn(at.tensors, name, form.values[0])
        if bn is None or (x is not None and len(x.mean) != len(bn.shift)):
            return None
        if x is None or x.repeat != 1:
            at.fallbacks.append(name)
            return Signal(bn.shift, torch.diag(bn.spread**2))
        if x.guess:
            at.fallbacks.append(name)
            gram = x.covariance * torch.outer(bn.gain, bn.gain)
            rho = semidefinite(warped_correlation(gram, bn.spread))
            return Signal(bn.shift, rho * torch.outer(bn.spread, bn.spread))
        deviation = torch.sqrt(x.covariance.diagonal().clamp(min=0))
        signed = bn.spread * torch.sign(bn.scale)
        gain = torch.where(deviation > 0, signed / deviation.clamp(min=1e-150), torch.zeros_like(deviation))
        found = gain[:, None] * x.covariance * gain[None, :]
        return Signal(bn.shift, found.diagonal_scatter(bn.spread**2), gain=gain)


class CrossChannelNorm(Operator):
    """Channels normalised together depend on one another; the labels stay, so that streams remain visible.

    Attributes:
        centres: whether the mean over channels is subtracted.
    """

    centres = False

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """Channels along a normalised dimension are pinned; rows that are normalised separately are
        kept whole.
        """
        x = flow.value(operation.first)
        if x is None:
            return None
        over, labels, weight = set(self.over(operation, len(x.shape))), [], ""
        for label in x.labels:
            if flow.streams and over == set(dims(label)):
                weight = self.weight(operation)
            if over >= set(dims(label)):
                flow.normalise(
                    label, Cause.NORMALISED.at(str(operation)), weight, operation.tensors.get("bias")
                )
            labels.append(label if over >= set(dims(label)) else flow.bundle(label, over))
        return x.moved(x.shape, labels).then("norm", str(operation), tensor=weight)

    def weight(self, operation: Operation) -> str:
        """The weight that can make up for channels of a stream that go, "" if there is none."""
        return ""

    def over(self, operation: Operation, ndim: int) -> Iterable[int]:
        """The dimensions that are normalised."""
        return range(1, ndim)


class GroupNorm(CrossChannelNorm):
    """Normalisation of groups of channels. A group depends on no other, so it is a neuron: of one channel, if
    there are as many groups as channels, as in an instance norm.
    """

    modules = (nn.GroupNorm,)

    def channels(self, flow: Tracer, operation: Operation) -> Any:
        """Channels of a group are joined, and tied to their numbers. A single group is kept whole."""
        x, groups = flow.value(operation.first), int(operation.arguments["num_groups"])
        if x is None or groups == 1 or any(dims(label) != (1,) for label in x.labels):
            return super().channels(flow, operation)
        for label in x.labels:
            rows = label.reshape(groups, -1)
            whole = (rows >= 0).all(axis=1)
            flow.pin(rows[~whole], Cause.NORMALISED.at(str(operation)))
            flow.ties.tie(np.broadcast_to(rows[whole, :1], rows[whole].shape), rows[whole])
        return _apart(flow, operation, "norm")

    def resize(self, module: nn.Module, before: Mapping[str, Shape]) -> None:
        """As many channels and groups as are left."""
        names, numbers = vars(module), module.get_parameter("weight")
        size = names["num_channels"] // names["num_groups"]
        names["num_channels"] = len(numbers)
        names["num_groups"] = len(numbers) // size


class RootMeanSquareNorm(CrossChannelNorm):
    """Normalisation by the root of the mean square: the last dimensions."""

    def weight(self, operation: Operation) -> str:
        """Its weight, if what it normalises is one dimension, and its bias a parameter, too."""
        plain = operation.arguments.get("bias") is None or "bias" in operation.tensors
        one = len(operation.arguments["normalized_shape"]) == 1
        return operation.tensors.get("weight", "") if plain and one else ""

    def holds(self, module: nn.Module, before: Mapping[str, Shape]) -> bool:
        """Its module knows the shape."""
        return "weight" in before and hasattr(module, "normalized_shape")

    def resize(self, module: nn.Module, before: Mapping[str, Shape]) -> None:
        """As many channels as are left."""
        vars(module)["normalized_shape"] = tuple(module.get_parameter("weight").shape)

    def over(self, operation: Operation, ndim: int) -> Iterable[int]:
        """The last dimensions, as many as its shape has."""
        return range(ndim - len(operation.arguments["normalized_shape"]), ndim)


class LayerNorm(RootMeanSquareNorm):
    """Layer normalisation: the last dimensions."""

    centres = True


class Softmax(CrossChannelNorm):
    """Softmax: one dimension."""

    def over(self, operation: Operation, ndim: int) -> Iterable[int]:
        """Its own."""
        return (operation.arguments["dim"] % ndim,)


TABLE.update(dict.fromkeys(("batch_norm", "_native_batch_norm_legit_no_training"), BatchNorm()))
TABLE.update({"instance_norm": PerChannel(), "group_norm": GroupNorm()})
TABLE.update({"layer_norm": LayerNorm(), "rms_norm": RootMeanSquareNorm()})
TABLE.update(dict.fromkeys(("softmax", "log_softmax", "_softmax", "_log_softmax"), Softmax()))


def centres(link: Link) -> bool:
    """Whether a link is a norm that subtracts the mean over channels."""
    entry = TABLE.get(link.name.partition(" in ")[0])
    return isinstance(entry, CrossChannelNorm) and entry.centres


def is_square(operation: Operation) -> bool:
    """Whether it is x², however that is written."""
    itself = operation.operator == "mul" and isinstance(operation.arguments.get("other"), Ref)
    power = operation.operator == "pow" and operation.arguments.get("exponent") == 2
    return operation.operator == "square" or power or (itself and len(operation.inputs) == 1)


def mean_squares(program: Program) -> dict[int, str]:
    """Position of a mean of squares -> the weight after it, for norms by the root of the mean square that
    are written out: x·rsqrt(mean(x²) + ε)·weight, as in Llama, or x/√(mean(x²) + ε)·weight.
    """
    readers: dict[int, list[Operation]] = {}
    for operation in reversed(program):
        if operation.position in readers or not isinstance(
            find(operation), Identity
        ):  # otherwise nothing reads it
            for other in operation.inputs:
                readers.setdefault(other, []).append(operation)
    found: dict[int, str] = {}
    for mean in (operation for operation in program if operation.operator == "mean"):
        squares = _source(program, mean.first)
        whole = _source(program, squares.first) if squares is not None else None
        if squares is None or whole is None or len(readers[squares.position]) > 1:
            continue
        last = mean.arguments.get("dim") in ([-1], [len(whole.output) - 1]) and mean.arguments.get("keepdim")
        way = _way(mean, readers)
        plain = [one.operator for one in way[:3]] in (["add", "rsqrt", "mul"], ["add", "sqrt", "div"])
        if is_square(squares) and last and plain and way[2].inputs == (whole.position, way[1].position):
            scaled = next((one for one in way[3:] if not isinstance(find(one), Identity)), None)
            if scaled is not None and scaled.operator == "mul" and scaled.tensors:
                found[mean.position] = next(iter(scaled.tensors.values()))
    return found


def _source(program: Program, argument: object) -> Operation | None:
    return program[argument.position] if isinstance(argument, Ref) else None


def _way(operation: Operation, readers: Mapping[int, Sequence[Operation]]) -> list[Operation]:
    """The chain of operations after a result, while only one operation reads it, at most six."""
    way: list[Operation] = []
    while len(way) < 6 and len(readers.get(operation.position, ())) == 1:
        (operation,) = readers[operation.position]
        way.append(operation)
    return way


def bn_of(operation: Operation) -> str:
    """The module of a BN that keeps statistics, "" if it keeps none."""
    running = operation.tensors.get("running_var", "")
    return module_of(running) if running else ""


def epsilons(program: Program) -> dict[str, float]:
    """BN module -> its ε, for all that keep statistics."""
    return {bn_of(form.operation): form.values[0] for form in _bns(forms(program))}


def uses_of_bns(program: Program) -> Counter[str]:
    """How many times each BN is used."""
    return Counter(bn_of(form.operation) for form in _bns(forms(program)))


def following_bns(every: Sequence[Form | None], tensors: Mapping[str, Tensor]) -> dict[int, Bn | None]:
    """Position of an operation -> the numbers of the BN that reads it."""
    return {f.inputs[0]: read_bn(tensors, bn_of(f.operation), f.values[0]) for f in _bns(every)}


def _bns(every: Sequence[Form | None]) -> list[Form]:
    return [form for form in every if is_bn(form)]


def is_bn(form: Form | None) -> TypeGuard[Form]:
    """Whether an operation is a BN that keeps statistics."""
    return form is not None and isinstance(form.operator, BatchNorm)
