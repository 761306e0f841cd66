"""What a budget can be given in: one class each. `register` adds another one, which `encode`, `at`, `load`,
`save_finetuned` and the command line then take as a keyword.

Nothing here imports numpy or torch before it counts: the command line lists budgets without them.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from hope.errors import InfeasibleBudget, UnknownMethod

if TYPE_CHECKING:
    from torch import nn

    from hope._util.calls import Example
    from hope.actions import Action
    from hope.schedule.cost_model import CostModel
    from hope.structure.anatomy import Anatomy
    from hope.structure.sizes import Counts


class BudgetUnit(ABC):
    """A keyword that a budget is given by.

    Attributes:
        name: the keyword; on the command line `--name`, with dashes.
        help: what the command line prints about it.
        accepts: which values it takes, for messages: "params must be ...".
        examples: two such values, or one.
        replayable: whether a finished run can be replayed at it (`at`, `load`, `save_finetuned`).
        searched: whether it is met by evaluating networks along the whole run.
        scored: whether it is met by the user's own score (`evaluate`).
        counts_steps: whether its value is a number of steps.
        timed: whether it is the time in a runtime (`runtime`), which `encode` makes a latency model of.
        rounds: whether rounded weights save some of it: by default, weights are then rounded.
    """

    name: ClassVar[str]
    help: ClassVar[str]
    accepts: ClassVar[str]
    examples: ClassVar[tuple[float | str, ...]]
    replayable: ClassVar[bool] = True
    searched: ClassVar[bool] = False
    scored: ClassVar[bool] = False
    counts_steps: ClassVar[bool] = False
    timed: ClassVar[bool] = False
    rounds: ClassVar[bool] = False

    @abstractmethod
    def parse(self, value: Any) -> float:
        """A value as a Python number.

        Raises:
            InfeasibleBudget: it is none of those that are accepted.
        """

    def format(self, value: float) -> str:
        """A parsed value as it is printed."""
        return f"{value:g}"

    def number(self, value: Any) -> int | float:
        """A finite number from 0 as Python's own; NumPy's and torch's scalars are numbers like others."""
        number = value
        if not isinstance(value, (str, bytes)) and getattr(value, "ndim", None) == 0:
            number = value.item()
        if isinstance(number, bool) or not isinstance(number, (int, float)):
            raise self.invalid(value)
        if not math.isfinite(number) or number < 0:
            raise self.invalid(number)
        return number

    def invalid(self, value: Any) -> InfeasibleBudget:
        """The error about a value that is not accepted."""
        plain = isinstance(value, (int, float)) and not isinstance(value, bool)
        given = " ".join((f"{value:g}" if plain else repr(value)).split())
        way = " or ".join(f"{self.name}={example!r}" for example in self.examples)
        return InfeasibleBudget(f"{self.name} must be {self.accepts}, got {given[:80]}: give {way}")


class Steps(BudgetUnit):
    """How many steps a run takes."""

    name = "steps"
    help = "how many steps to take"
    accepts = "a whole number from 0"
    examples = (100,)
    counts_steps = True

    def parse(self, value: Any) -> float:
        """A whole number; it may be written as a float."""
        number = self.number(value)
        if number != int(number):
            raise self.invalid(value)
        return int(number)


class LeastFidelity(BudgetUnit):
    """The predicted fidelity below which a run does not go; found by evaluating networks along the run."""

    name = "fidelity"
    help = "the least predicted fidelity, e.g. 0.9"
    accepts = "between 0 and 1, which is the original"
    examples = (0.9,)
    replayable, searched = False, True

    def parse(self, value: Any) -> float:
        """A number up to 1."""
        number = self.number(value)
        if number > 1:
            raise self.invalid(value)
        return number


class Drop(BudgetUnit):
    """How much of the user's own score a run may lose; found by evaluating networks along the run."""

    name = "drop"
    help = "how much of the score of --evaluate may be lost, e.g. 0.01"
    accepts = "a number from 0"
    examples = (0.01,)
    replayable, searched, scored = False, True, True

    def parse(self, value: Any) -> float:
        """A number."""
        return self.number(value)


class Resource(BudgetUnit):
    """What a network has less and less of along a run, and a budget limits: as a fraction of the original's
    (a float up to 1) or as a count.

    A resource defines `name`, `noun` and `counts`; the rest has defaults for plain counts.

    Attributes:
        noun: what is counted, in the plural.
        scales: units that an amount is written with, and what they are multiples of ("MB" -> 10**6 bytes);
            without any, amounts are plain counts.
        shown: those of them that amounts are printed with, ascending; by default all.
        is_cost: whether it is what a network costs: where it is, narrower residual streams are compared with
            narrower layers.
        ranks: whether methods that rank steps by the budget have a cost model for it; others rank by
            parameters.
        measured: whether only its cost model knows how much there is; steps are then ranked by it under every
            method.

    Example:
        >>> Parameters().parse(0.5), Parameters().parse(1e6), Bytes().parse("10MB")
        (0.5, 1000000, 10000000)
        >>> Seconds().format(1_234_000), Bytes().format(10_000_000), Parameters().format(1234)
        ('1.23ms', '10MB', '1,234')
    """

    noun: ClassVar[str]
    scales: ClassVar[Mapping[str, int]] = {}
    shown: ClassVar[tuple[str, ...]] = ()
    is_cost: ClassVar[bool] = True
    ranks: ClassVar[bool] = False
    measured: ClassVar[bool] = False
    accepts = "a fraction between 0 and 1 or a whole count"
    examples: ClassVar[tuple[float | str, ...]] = (0.6, 15_000_000)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "help" not in vars(cls) and hasattr(cls, "noun"):
            amount = f"an amount ({cls.examples[-1]})" if cls.scales else "a count"
            cls.help = f"{cls.noun} to keep: a fraction (0.6) or {amount}"

    @abstractmethod
    def counts(self, anatomy: Anatomy, steps: Sequence[Action]) -> Counts | None:
        """(steps + 1,) how much there is before the first and after each step; None if it is measured: then
        only a run that was made for this resource knows it.
        """

    def cost_model(self, model: nn.Module, example: Example | None, anatomy: Anatomy) -> CostModel:
        """What ranks the steps of a run to this budget, if it `ranks` or is `measured`."""
        raise NotImplementedError(f"{type(self).__name__} must define cost_model")

    def parse(self, value: Any) -> float:
        """A fraction as a float, an amount as an int. A count may be written as a float (1e6)."""
        if self.scales and isinstance(value, str):
            return self._amount(value)
        number = self.number(value)
        if self.scales:
            if number > 1:
                raise self.invalid(value)
            return float(number)
        if isinstance(number, float) and number > 1:
            if not number.is_integer():
                raise self.invalid(value)
            return int(number)
        return number

    def _amount(self, text: str) -> int:
        """An amount as it is written: a number and its unit, whatever the case."""
        found = re.fullmatch(r"\s*([+]?[\d._]+(?:e[-+]?\d+)?)\s*([a-zµμ]+)\s*", text, re.I)
        scales = {unit.lower(): scale for unit, scale in self.scales.items()}
        scale = scales.get(found[2].replace("μ", "µ").lower()) if found else None
        try:
            number = float(found[1]) if found else math.nan
        except ValueError:
            number = math.nan
        if scale is None or not math.isfinite(number):
            raise self.invalid(text)
        return round(number * scale)

    def format(self, value: float) -> str:
        """So much of it: "1,234", or three digits and a unit, "1.23ms"; a fraction as a number."""
        if not isinstance(value, int):
            return f"{value:g}"
        if not self.scales:
            return f"{value:,}"
        units = self.shown or tuple(self.scales)
        unit = next((one for one in reversed(units) if value >= self.scales[one]), units[0])
        number = value / self.scales[unit]
        return f"{number:.3g}{unit}" if number < 1000 else f"{number:.0f}{unit}"


class Neurons(Resource):
    """Neurons in compressible layers."""

    name, noun, is_cost = "density", "neurons", False

    def counts(self, anatomy: Anatomy, steps: Sequence[Action]) -> Counts:
        """(steps + 1,) neurons."""
        return _sizes(anatomy, steps, 0)


class Parameters(Resource):
    """Entries of `nn.Parameter`s."""

    name, noun = "params", "parameters"

    def counts(self, anatomy: Anatomy, steps: Sequence[Action]) -> Counts:
        """(steps + 1,) parameters."""
        return _sizes(anatomy, steps, 1)


class Macs(Resource):
    """Multiply-accumulates of convolutions and linear layers on the example."""

    name, noun, ranks = "macs", "MACs", True

    def counts(self, anatomy: Anatomy, steps: Sequence[Action]) -> Counts:
        """(steps + 1,) MACs."""
        return _sizes(anatomy, steps, 2)

    def cost_model(self, model: nn.Module, example: Example | None, anatomy: Anatomy) -> CostModel:
        """MACs rank the steps."""
        from hope.schedule.cost_model import MacCost

        return MacCost(anatomy)


class Bytes(Resource):
    """Bytes of all parameters and buffers, each in its own type."""

    name, noun, rounds = "size", "bytes of parameters and buffers", True
    scales: ClassVar[Mapping[str, int]] = {
        "B": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30
    }  # fmt: skip
    shown = ("B", "kB", "MB")
    accepts = "a fraction between 0 and 1 or an amount with its unit (B, kB, MB, GB, KiB, MiB, GiB)"
    examples = (0.6, "10MB")

    def counts(self, anatomy: Anatomy, steps: Sequence[Action]) -> Counts:
        """(steps + 1,) bytes."""
        from hope.structure.sizes import stored

        return stored(anatomy, steps)


class Seconds(Resource):
    """Nanoseconds that the network takes on the example, predicted by the latency model of its runtime (see
    `hope.latency`), which `encode` makes.
    """

    name, noun, measured, timed = "latency", "time on this machine", True, True
    scales: ClassVar[Mapping[str, int]] = {"s": 10**9, "ms": 10**6, "us": 10**3, "µs": 10**3}
    shown = ("ms",)
    accepts = "a fraction between 0 and 1 of the original's or a time with its unit (s, ms, us)"
    examples = (0.6, "12ms")

    def counts(self, anatomy: Anatomy, steps: Sequence[Action]) -> None:
        """Nothing: time is measured, and a run that was made for it has its predictions."""


def _sizes(anatomy: Anatomy, steps: Sequence[Action], column: int) -> Counts:
    from hope.structure.sizes import sizes

    return sizes(anatomy, steps)[:, column]


UNITS: dict[str, BudgetUnit] = {
    unit.name: unit
    for unit in (Neurons(), Parameters(), Macs(), Bytes(), Seconds(), Steps(), LeastFidelity(), Drop())
}


def register(resource: Resource) -> None:
    """Take budgets in another resource, by its name.

    Raises:
        UnknownMethod: the name is taken, or is no keyword.
    """
    if resource.name in UNITS or not resource.name.isidentifier():
        raise UnknownMethod(
            f"a resource's name must be a new identifier, got {resource.name!r}: {', '.join(UNITS)} are taken"
        )
    UNITS[resource.name] = resource
