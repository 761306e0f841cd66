"""Activations: their functions, their slopes, and the moments of signals after them."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from hope.errors import UnknownMethod
from hope.geometry.gaussian import Cuts
from hope.geometry.hermite import KinkedFunction, bend, bend_with, covariance
from hope.ops.elementwise import Elementwise, per_channel
from hope.ops.protocols import Propagation, Tracer
from hope.ops.registry import TABLE, Form, Inputs, Reads, Signal
from hope.trace.program import Operation, Shape, numbers
from hope.trace.values import Link, Value

Function = Callable[..., Tensor]
SAME = 20.0  # from there on a softplus is its argument to all digits that count


class Activation(Elementwise):
    """A function of one signal.

    Args:
        function: what it computes, for quadrature; None if its moments are not known or follow from a slope.
        slope: below zero, of a positively homogeneous activation (PH-1).
        module: the class in `torch.nn` that does the same without being given any numbers, "" if none does.
        given: how many of the operator's numbers the function takes.
        cuts: where the function has kinks: quadrature is split there. It may be split elsewhere, too.
    """

    def __init__(
        self,
        function: Function | None = None,
        *,
        slope: float | None = None,
        module: str = "",
        given: int = 0,
        cuts: Cuts = (),
    ) -> None:
        self.function, self.slope, self.module, self.given = function, slope, module, given
        self.cuts = cuts
        if function is not None and not given:
            values = function(torch.linspace(-6, 6, 25, dtype=torch.float64))
            if values.shape != (25,) or not bool(values.isfinite().all()):
                raise UnknownMethod(
                    "an activation's function must give a finite number for each from -6 to 6, got "
                    f"{values.flatten().tolist()[:3]}…: clamp its input, or leave the function out"
                )
        self.homogeneous = slope is not None

    def link(self, operation: Operation) -> Link:
        """The operation as a link between a filter and its readers."""
        return Link("activation", operation.operator, numbers(operation), operation.tensors.get("weight", ""))

    def slopes(self, link: Link, tensors: Mapping[str, Tensor]) -> Tensor | None:
        """The slope below zero, one or one per channel; None if it is not PH-1."""
        return None if self.slope is None else torch.tensor([self.slope], dtype=torch.float64)

    def splits(self, link: Link) -> Cuts:
        """Where quadrature is split."""
        return self.cuts

    def plain(self, operation: Operation) -> str:
        """The class in `torch.nn` that does what this operation does, "" if there is none."""
        return self.module if operation.given == 1 else ""

    def form(self, operation: Operation, reads: Reads) -> Form | None:
        """Channels stay in their dimension."""
        return Form(operation, self, tuple(read.position for read in reads), reads[0].channel)

    def moments(self, at: Propagation, form: Form, inputs: Inputs) -> Signal | None:
        """The moments of a Gaussian signal after it."""
        x = inputs[0]
        if x is None or x.repeat != 1:
            return None
        spread = torch.sqrt(x.covariance.diagonal().clamp(min=0))
        bent = self._bend(self.link(form.operation), at, x.mean, spread)
        if bent is None:
            return None
        safe = torch.where(spread > 0, spread, torch.ones_like(spread))
        rho = (x.covariance / torch.outer(safe, safe)).clamp(-1, 1)
        return Signal(bent.mean, covariance(bent, bent, rho), gain=bent.slope)

    def _bend(self, link: Link, at: Propagation, mean: Tensor, spread: Tensor) -> KinkedFunction | None:
        below, smooth = slopes(link, at.tensors), function(link)
        if below is not None:
            return bend(mean, spread, below.expand(len(mean)))
        return None if smooth is None else bend_with(smooth, mean, spread, cuts(link))


class Leaky(Activation):
    """A leaky ReLU: the slope is its number."""

    def slopes(self, link: Link, tensors: Mapping[str, Tensor]) -> Tensor | None:
        """The number it was given, or torch's own."""
        return torch.tensor([link.values[0] if link.values else self.slope], dtype=torch.float64)


class Parametrised(Activation):
    """An activation whose link has more than its parameters."""

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """Every channel by itself."""
        x = flow.value(operation.first)
        return None if x is None else x.moved(x.shape, x.labels).then(*self.link(operation))


class Gelu(Parametrised):
    """A GELU, exact or with a tanh in it."""

    def link(self, operation: Operation) -> Link:
        """With a number for the one with a tanh."""
        approximate = operation.arguments.get("approximate") == "tanh"
        return Link("activation", "gelu", (1.0,) if approximate else ())


def _gelu(y: Tensor, approximate: float = 0.0) -> Tensor:
    return functional.gelu(y, approximate="tanh" if approximate else "none")


class Parametric(Activation):
    """A PReLU: the slopes are a parameter."""

    modules = (nn.PReLU,)

    def __init__(self) -> None:
        super().__init__()
        self.homogeneous = True

    def channels(self, flow: Tracer, operation: Operation) -> Value | None:
        """Every channel by itself, with its slope."""
        found = per_channel(flow, operation)
        return None if found is None else found[0].then("activation", "prelu", (), found[1][0].tensor or "")

    def slopes(self, link: Link, tensors: Mapping[str, Tensor]) -> Tensor | None:
        """The parameter, one slope or one per channel."""
        return tensors[link.tensor].double() if link.tensor in tensors else None

    def resize(self, module: nn.Module, before: Mapping[str, Shape]) -> None:
        """As many slopes as are left."""
        assert isinstance(module, nn.PReLU)
        module.num_parameters = int(module.weight.shape[0])


class Celu(Activation):
    """A CELU: its number is its width."""

    def splits(self, link: Link) -> Cuts:
        """In units of its width."""
        return tuple(link.values[0] * cut for cut in self.cuts) if link.values else self.cuts


class Softplus(Activation):
    """A softplus: where β·x is above its threshold it is x, which is a step that counts if that is low."""

    def splits(self, link: Link) -> Cuts:
        """At its step, and where it bends."""
        beta, threshold = link.values or (1.0, SAME)
        return tuple(cut / beta for cut in (-12.0, -4.0, 0.0, 4.0, threshold)) if threshold < SAME else ()


class Clamp(Parametrised):
    """A hard tanh, which is a ReLU6 if its bounds are 0 and 6."""

    def _bounds(self, operation: Operation) -> tuple[float, float]:
        return operation.arguments.get("min_val", 0), operation.arguments.get("max_val", 6)

    def link(self, operation: Operation) -> Link:
        """By the name that its bounds give it."""
        low, high = self._bounds(operation)
        own = (low, high) != (0, 6)
        return Link("activation", *(("hardtanh", (float(low), float(high))) if own else ("relu6", ())))

    def splits(self, link: Link) -> Cuts:
        """At its bounds."""
        return link.values or self.cuts

    def plain(self, operation: Operation) -> str:
        """A ReLU6 or nothing."""
        return "ReLU6" if self._bounds(operation) == (0, 6) else ""


_BENT = (-20.0, -5.0, 0.0)  # an exponential below a kink at 0: none is left of it below -20
SMOOTH: dict[str, Activation] = {
    "silu": Activation(functional.silu, module="SiLU"),
    "gelu": Gelu(_gelu, module="GELU", given=1),
    "hardswish": Activation(functional.hardswish, module="Hardswish", cuts=(-3.0, 3.0)),
    "relu6": Clamp(functional.relu6, module="ReLU6", cuts=(0.0, 6.0)),
    "hardtanh": Clamp(functional.hardtanh, given=2, cuts=(-1.0, 1.0)),
    "sigmoid": Activation(torch.sigmoid, module="Sigmoid"),
    "log_sigmoid": Activation(functional.logsigmoid),
    "tanh": Activation(torch.tanh, module="Tanh"),
    "elu": Activation(functional.elu, module="ELU", given=1, cuts=_BENT),
    "mish": Activation(functional.mish, module="Mish"),
    "selu": Activation(functional.selu, module="SELU", cuts=_BENT),
    "hardsigmoid": Activation(functional.hardsigmoid, module="Hardsigmoid", cuts=(-3.0, 3.0)),
    "celu": Celu(functional.celu, module="CELU", given=1, cuts=_BENT),
    "softplus": Softplus(functional.softplus, module="Softplus", given=2),
}
TABLE.update(SMOOTH)
TABLE.update(
    {
        "relu": Activation(slope=0.0, module="ReLU"),
        "leaky_relu": Leaky(slope=0.01, module="LeakyReLU"),
        "prelu": Parametric(),
        "rrelu": Activation(),
    }
)


def slopes(link: Link | None, tensors: Mapping[str, Tensor]) -> Tensor | None:
    """The slope below zero of a PH-1 activation, one for all or one per channel; None if it is not PH-1.

    Args:
        link: the activation; None for none, whose slope is 1.

    >>> slopes(Link("activation", "leaky_relu", (0.2,)), {})
    tensor([0.2000], dtype=torch.float64)
    """
    if link is None or link.name == "identity":
        return torch.ones(1, dtype=torch.float64)
    entry = TABLE.get(link.name)
    return entry.slopes(link, tensors) if isinstance(entry, Activation) else None


def function(link: Link) -> Function | None:
    """What an activation computes, with its own numbers; None if that is not known.

    >>> function(Link("activation", "elu", (2.0,)))(torch.tensor(-100.0))
    tensor(-2.)
    """
    entry = TABLE.get(link.name)
    found = entry.function if isinstance(entry, Activation) else None
    own = link.values[: entry.given] if isinstance(entry, Activation) else ()
    return None if found is None else lambda y: found(y, *own)


def cuts(link: Link) -> Cuts:
    """Where quadrature of an activation is split: at its kinks.

    >>> cuts(Link("activation", "hardtanh", (-2.0, 2.0))), cuts(Link("activation", "gelu"))
    ((-2.0, 2.0), ())
    """
    entry = TABLE.get(link.name)
    return entry.splits(link) if isinstance(entry, Activation) else ()


def known(link: Link) -> bool:
    """Whether the moments of a Gaussian signal after an activation are known.

    >>> known(Link("activation", "gelu")), known(Link("activation", "rrelu"))
    (True, False)
    """
    entry = TABLE.get(link.name)
    if isinstance(entry, Parametric):
        return bool(link.tensor)
    return isinstance(entry, Activation) and (entry.homogeneous or entry.function is not None)


def homogeneous(name: str) -> bool:
    """Whether an activation of that name is PH-1; "identity" is."""
    entry = TABLE.get(name)
    return name == "identity" or (isinstance(entry, Activation) and entry.homogeneous)
