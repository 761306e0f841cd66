"""The table of operators: one entry defines everything about an operator. An operator without an entry
pins the channels it reads: cautious, never wrong.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, TypeAlias

from torch import Tensor, nn

from hope.ops.protocols import Propagation, Tracer
from hope.reasons import Cause
from hope.trace.program import Operation, Program, Shape
from hope.trace.values import Value, origins_of

SETTINGS = (
    "kernel_size", "stride", "padding", "padding_mode", "dilation", "output_size", "num_groups", "num_heads",
    "normalized_shape", "eps", "alpha", "beta", "negative_slope", "threshold", "min_val", "max_val",
    "approximate",
)  # settings of torch's modules that change what they compute  # fmt: skip


@dataclass(frozen=True)
class Form:
    """An operation as one on whole signals."""

    operation: Operation  # itself
    operator: Operator | None  # its entry; None if what it does to signals is not known
    # positions of the operations whose signals it reads, in the order that its entry expects
    inputs: tuple[int, ...]
    # the dimension of its result that channels stand in, None if that is not known
    channel: int | None = None
    values: tuple[float, ...] = ()  # numbers that its entry made of its arguments


@dataclass(frozen=True)
class Read:
    """A signal that an operation reads: which operation made it, its shape, where its channels stand."""

    position: int
    shape: Shape
    channel: int | None


@dataclass(frozen=True)
class Signal:
    """What is known of a signal at one place."""

    mean: Tensor  # (C,)
    covariance: Tensor  # (C, C)
    repeat: int = 1  # places that stand for each channel (after a flatten), 1 otherwise
    # the inputs were not known and taken as isotropic: only a BN can make something of it
    guess: bool = False
    # (C,) what a channel's covariance with any other signal was multiplied by, if each came from one
    gain: Tensor | None = None


Reads: TypeAlias = Sequence[Read]  # the signals that an operation reads
Inputs: TypeAlias = Sequence[Signal | None]  # what is known of them
Parts: TypeAlias = Sequence[Tensor | None]  # their covariances with another signal


class Operator:
    """Everything that is known of an operator. An entry of the table is an object of a subclass.

    Attributes:
        alone: its signal is known even where those that it reads are not, and whatever order they come in.
        modules: the classes of modules that hold its parameters and know their sizes.
    """

    alone = False
    modules: tuple[type[nn.Module], ...] = ()

    def channels(self, flow: Tracer, operation: Operation) -> Any:
        """How channels pass: the operation's value, or a list of values. None means "not this case"."""
        return None

    def form(self, operation: Operation, reads: Reads) -> Form | None:
        """The operation as one on whole signals; None means "not this case"."""
        return None

    def moments(self, at: Propagation, form: Form, inputs: Inputs) -> Signal | None:
        """How moments pass: the signal it returns, None if that is not known.

        Args:
            at: what has been followed so far.
            inputs: the signals it reads; without `alone` all of them are known.
        """
        return None

    def covariance(self, at: Propagation, form: Form, parts: Parts, other: Signal) -> Tensor | None:
        """How the covariance with another signal passes: (own channels, the other's).

        Args:
            parts: the same for each signal that it reads, None where that is not known.
            other: the other signal.
        """
        signal, first = at.signals[form.operation.position], parts[0]
        gain = signal.gain if signal is not None else None
        return None if gain is None or first is None else gain[:, None] * first

    def positions(self, operation: Operation, reads: Shape, channel: int) -> int:
        """What it costs: how many times each entry of its weight is used, in multiply-accumulates."""
        return 0

    def holds(self, module: nn.Module, before: Mapping[str, Shape]) -> bool:
        """Whether a module holds the parameters of this operator."""
        return isinstance(module, self.modules)

    def resize(self, module: nn.Module, before: Mapping[str, Shape]) -> None:
        """Bring a module's own size attributes up to date with its tensors.

        Args:
            before: attribute -> shape before the cut, of the tensors that were cut.
        """


class MomentPreserving(Operator):
    """An operator that is assumed not to change the moments of a signal."""

    def form(self, operation: Operation, reads: Reads) -> Form | None:
        """Channels stay in their dimension."""
        return Form(operation, self, tuple(read.position for read in reads), reads[0].channel)

    def moments(self, at: Propagation, form: Form, inputs: Inputs) -> Signal | None:
        """Those of what it reads."""
        return inputs[0]

    def covariance(self, at: Propagation, form: Form, parts: Parts, other: Signal) -> Tensor | None:
        """That of what it reads."""
        return parts[0]


TABLE: dict[str, Operator] = {}
POINTWISE = "pointwise"  # the entry of operators that torch marks as element-wise


class Registration:
    """Operators that were registered. `undo`, or the end of a `with`, restores the earlier entries."""

    def __init__(self, names: Sequence[str], operator: Operator) -> None:
        self._before = {name: TABLE.get(name) for name in names}
        TABLE.update(dict.fromkeys(names, operator))
        forms.cache_clear()

    def undo(self) -> None:
        """Take the entries out of the table."""
        for name, entry in self._before.items():
            if entry is None:
                TABLE.pop(name, None)
            else:
                TABLE[name] = entry
        forms.cache_clear()

    def __enter__(self) -> Registration:
        return self

    def __exit__(self, *_: object) -> None:
        self.undo()


def register(*names: str, operator: Operator) -> Registration:
    """Register an operator that the package does not know.

    Args:
        names: of the operator without the underscore of in-place ones: "relu" for one of torch's own,
            "library::name" for any other.
        operator: what it does: an `Elementwise` (every channel by itself, moments not known), an `Activation`
            with its function, a `Identity`, or an object of your own subclass of `Operator`.

    Returns:
        What undoes it, by its `undo()` or as a context manager.

    Example:
        >>> import torch, hope
        >>> @torch.library.custom_op("shop::shrink", mutates_args=())
        ... def shrink(x: torch.Tensor) -> torch.Tensor:
        ...     return torch.nn.functional.softshrink(x)
        >>> _ = shrink.register_fake(torch.empty_like)
        >>> class Net(torch.nn.Module):
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.a, self.b = torch.nn.Linear(4, 8), torch.nn.Linear(8, 2)
        ...     def forward(self, x):
        ...         return self.b(shrink(self.a(x)))
        >>> [str(one.reason) for one in hope.inspect(Net(), torch.zeros(1, 4)).skipped][0]
        'shrink mixes or reorders channels in a way that is not analysed'
        >>> with hope.ops.register("shop::shrink", operator=hope.ops.Elementwise()):
        ...     hope.inspect(Net(), torch.zeros(1, 4)).unit("a").neurons
        8
    """
    return Registration(names, operator)


def find(operation: Operation) -> Operator | None:
    """The entry of an operation's operator."""
    return TABLE.get(operation.operator) or (TABLE[POINTWISE] if operation.pointwise else None)


def channels(flow: Tracer, operation: Operation) -> Any:
    """The value of an operation under the entry of its operator; without one, the channels it reads are "
    "pinned."""
    entry, values = find(operation), flow.values(operation.arguments)
    if entry is not None and all(0 not in value.shape or value.shape == (0,) for value in values):
        result = entry.channels(flow, operation)
        if result is not None:
            return result
    reason = Cause.UNKNOWN_OPERATOR.at(str(operation))
    flow.pin_all(values, reason)
    static = bool(values) and all(value.static for value in values)
    weights = [value for value in values if value.static and len(value.shape) > 1 and value.labels]
    if weights and not static:
        for name in [operation.module] if operation.module else origins_of(weights):
            flow.computed.setdefault(name, ((operation.output or (1,))[-1], reason))
    if operation.several:
        return [None if shape is None else Value(shape, static=static) for shape in operation.shapes]
    return Value(operation.output, static=static, origins=origins_of(values) if static else ())


@lru_cache(maxsize=8)
def forms(program: Program) -> tuple[Form | None, ...]:
    """Every operation as one on whole signals; None for those that no input of the model reaches."""
    found: list[Form | None] = []
    for operation in program:
        reads = [
            Read(position, program[position].output, form.channel)
            for position in operation.inputs
            if (form := found[position]) is not None
        ]
        if joins_inputs(program, operation):
            found.append(replace(_form(program[operation.inputs[0]], ()), operation=operation))
        elif operation.operator == "input" or (reads and operation.operator != "output"):
            found.append(_form(operation, reads))
        else:
            found.append(None)
    return tuple(found)


def joins_inputs(program: Program, operation: Operation) -> bool:
    """Whether it puts the model's inputs into one batch: a list of images becomes a tensor."""
    along = operation.arguments.get("dim") in (None, 0) and operation.operator in ("stack", "cat", "concat")
    return along and all(program[position].operator == "input" for position in operation.inputs)


def _form(operation: Operation, reads: Sequence[Read]) -> Form:
    entry, made = find(operation), None
    tensor = any(shape is not None for shape in operation.shapes)
    if entry is not None and tensor and (entry.alone or all(read.channel is not None for read in reads)):
        try:
            made = entry.form(operation, reads)
        except (AttributeError, IndexError, KeyError, TypeError, ValueError):
            made = None  # called in a way that no entry foresaw: unknown, like what has no entry
    return made if made is not None else Form(operation, None, tuple(read.position for read in reads))


def resize(module: nn.Module, before: Mapping[str, Shape]) -> None:
    """Bring a module's size attributes up to date, by the operator that uses its parameters."""
    entry = next((entry for entry in TABLE.values() if entry.holds(module, before)), None)
    if entry is not None:
        entry.resize(module, before)
