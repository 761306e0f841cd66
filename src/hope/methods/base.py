"""What a method is: options, and a few verbs that the run, the surgery and the page ask it for.

A method sees a network as units. For each it has a state (numbers only) or a reason why it has none; a
state's path is the unit's whole sequence of removals, independent of every other unit; and a block has a
price. The run merges the paths.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Protocol

from torch import nn

from hope._util.calls import Example
from hope._util.numbers import rounded
from hope.errors import UnknownMethod
from hope.reasons import Cause, Reason
from hope.statistics.checkpoint import Checkpoint
from hope.statistics.input_statistics import InputStatistics
from hope.statistics.propagated import Propagated
from hope.structure.anatomy import Anatomy
from hope.structure.steps import Step
from hope.structure.units import Unit
from hope.trace.blocks import Block


def listed(names: Sequence[str]) -> str:
    """A few names in a sentence.

    >>> listed(["a", "b"]), listed(["a", "b", "c", "d", "e"])
    ('a, b', 'a, b, c and 2 more')
    """
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"{', '.join(names[:3])}{more}"


class State(Protocol):
    """A unit as a method sees it, before the first step."""

    @property
    def name(self) -> str:
        """The unit's name."""

    @property
    def neurons(self) -> int:
        """How many there are."""

    @property
    def release(self) -> int:
        """ΔP of one neuron."""

    @property
    def capacity(self) -> float:
        """What there is to lose."""


class Path(Protocol):
    """One unit on its way down."""

    @property
    def neurons(self) -> int:
        """Neurons that are left."""

    @property
    def left(self) -> float:
        """Capacity that is left."""

    def steps(self) -> Iterator[Step]:
        """All steps down to one neuron."""

    def follow(self, step: Step) -> None:
        """Take a step that an earlier run has found to be the cheapest, without looking for it."""


@dataclass(frozen=True)
class Branch(ABC):
    """A block that may be evicted.

    Attributes:
        name: the block's name.
        layers: its layers.
        release: ΔP of the eviction.
        bias: what stays behind in place of the branch.
    """

    name: str
    layers: tuple[str, ...]
    release: int
    bias: tuple[float, ...] | None

    @abstractmethod
    def cost(self, neurons: Sequence[int], capacities: Sequence[float]) -> float:
        """J of evicting it now.

        Args:
            neurons, capacities: what is left in each of its layers.
        """

    @property
    def worth(self) -> float:
        """Where the judge decides: those of the least worth per parameter are tried first."""
        return 1.0


@dataclass(frozen=True)
class Rewrite:
    """How steps rewrite weights.

    Attributes:
        takeover: absorption rewrites survivors' weights.
        constants: it keeps the constant that removed neurons leave behind, where a BN takes it.
        repair: it repairs running variances of BNs.
        clamp: a parent's BN numbers are those that the paper prints, γ = s and σ² = max(0, s² − ε), and its
            filter is 0 below that; otherwise σ² = s² and γ = √(s² + ε), exact for every s.
        refit: where there are inputs, weights are fitted in the end to what the original said.
        made_up: the inputs are, so that their statistics say nothing.
    """

    takeover: bool = True
    constants: bool = True
    repair: bool = True
    clamp: bool = False
    refit: bool = False
    made_up: bool = False


@dataclass(frozen=True)
class NetworkStatistics:
    """What a method knows of a network before it looks at units.

    Attributes:
        anatomy: the network.
        numbers: its checkpoint.
        intakes: moments of what weights read (absorption only).
        surrogate: the signals as they were propagated (absorption only).
        notes: what a user should know.
        inputs: batches that moments were measured on, if they were.
        many: whether a layer's moments are all that memory should hold at once.
    """

    anatomy: Anatomy
    numbers: Checkpoint
    intakes: Mapping[str, InputStatistics] = field(default_factory=dict)
    surrogate: Propagated | None = None
    notes: tuple[str, ...] = ()
    inputs: Sequence[Any] = ()
    many: bool = False


@dataclass(frozen=True)
class Method(ABC):
    """Base of all methods: a frozen dataclass of its own options.

    Attributes:
        evictions: "priced" like any step, "judged" (whole networks are compared), or "none".
        by_budget: whether a budget in MACs ranks steps by the MACs that they save.
    """

    evictions: ClassVar[Literal["priced", "judged", "none"]] = "none"
    by_budget: ClassVar[bool] = False

    @property
    @abstractmethod
    def name(self) -> str:
        """What it goes by on the command line and in reports."""

    def collect(
        self, model: nn.Module, example: Example | None, anatomy: Anatomy, *, progress: bool | None = None
    ) -> NetworkStatistics:
        """Look at the network as a whole."""
        return NetworkStatistics(anatomy, Checkpoint.of(model, anatomy))

    @abstractmethod
    def state(self, unit: Unit, known: NetworkStatistics) -> State | Reason:
        """A unit's state, or the reason why it has none."""

    @property
    @abstractmethod
    def path(self) -> Callable[[Any], Path]:
        """A state -> its path; something that can be sent to another process."""

    def branch(self, block: Block, known: NetworkStatistics, states: Sequence[State]) -> Branch | Reason:
        """A block with its price, or the reason why it has none; here that of methods that evict nothing."""
        return Cause.EXCLUDED.at(self.name)

    @abstractmethod
    def measures(self, known: NetworkStatistics, states: Sequence[State]) -> dict[str, list[float]]:
        """Unit -> what each of its neurons counts in the original network, where that is known."""

    @property
    def needs_sensitivity(self) -> bool:
        """Whether costs count by what the judge sees of each unit."""
        return False

    def resolve(self, known: NetworkStatistics) -> Method:
        """The method with options that the network decides about."""
        return self

    @property
    def live(self) -> bool:
        """Whether steps are ranked by what they release in the network as it is then."""
        return False

    @property
    def rewrite(self) -> Rewrite:
        """What absorptions rewrite."""
        return Rewrite()

    @property
    def margin(self) -> float:
        """Where the judge decides: an eviction must leave less than this of the loss that it saves."""
        return 1.0

    def rank(self, cost: float, release: float) -> float:
        """The order of steps: the smallest goes first. J/ΔP, equal up to rounding counts as equal."""
        return rounded(cost / release)

    def to_dict(self) -> dict[str, Any]:
        """The method as plain data: its name, and its options."""
        return {"name": self.name, **{one.name: getattr(self, one.name) for one in fields(self)}}

    def validate(self, **options: tuple[object, Sequence[object]]) -> None:
        """Refuse options that there are not: name -> (value, known values)."""
        for name, (value, known) in options.items():
            if value not in known:
                words = ", ".join(map(str, known))
                raise UnknownMethod(f"{self.name} has no {name}={value!r}: choose from {words}")
