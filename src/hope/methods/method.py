"""What a method is: options, and the functions that scheduler, rewriting and report call.

A method compresses units. For each unit it has a state (numbers only) or a reason why it has none. The path
of a state is the unit's whole sequence of removals, independent of every other unit. A block has a price. The
scheduler merges the paths.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Protocol

from torch import nn

from hope._util.calls import Example
from hope._util.hashing import hash_inputs
from hope._util.numbers import rounded
from hope.actions import Action, Rewrite
from hope.errors import UnknownMethod
from hope.reasons import Cause, Reason
from hope.statistics.checkpoint import Checkpoint
from hope.statistics.input_statistics import InputStatistics
from hope.statistics.propagated import Propagated
from hope.structure.anatomy import Anatomy
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
    """A unit's state before the first step."""

    @property
    def name(self) -> str:
        """The unit's name."""

    @property
    def neurons(self) -> int:
        """The number of neurons."""

    @property
    def release(self) -> int:
        """ΔP of one neuron."""

    @property
    def capacity(self) -> float:
        """The whole capacity."""


class Path(Protocol):
    """One unit's path."""

    @property
    def neurons(self) -> int:
        """The remaining neurons."""

    @property
    def left(self) -> float:
        """The remaining capacity."""

    def steps(self) -> Iterator[Action]:
        """All steps down to one neuron."""

    def follow(self, step: Action) -> None:
        """Apply a step that an earlier run found to be the cheapest, without searching."""


@dataclass(frozen=True)
class Branch(ABC):
    """A block that may be evicted."""

    name: str  # the block's name
    layers: tuple[str, ...]  # its layers
    release: int  # ΔP of the eviction
    bias: tuple[float, ...] | None  # the bias that replaces the branch

    @abstractmethod
    def cost(self, neurons: Sequence[int], capacities: Sequence[float]) -> float:
        """J of evicting it now.

        Args:
            neurons, capacities: remaining in each of its layers.
        """

    @property
    def worth(self) -> float:
        """For the eviction search: blocks with the lowest value per parameter are tried first."""
        return 1.0


@dataclass(frozen=True)
class NetworkStatistics:
    """What a method knows about a network before it reads units."""

    anatomy: Anatomy  # the network
    numbers: Checkpoint  # its checkpoint
    # input statistics of weights (absorption only)
    input_statistics: Mapping[str, InputStatistics] = field(default_factory=dict)
    surrogate: Propagated | None = None  # propagated signals (absorption only)
    notes: tuple[str, ...] = ()  # messages for the user
    inputs: Sequence[Any] = ()  # the batches of the measured moments, if there are any
    many: bool = False  # whether only one layer's moments should be in memory at a time


@dataclass(frozen=True)
class Method(ABC):
    """Base of all methods: a frozen dataclass of its own options.

    Attributes:
        evictions: "priced" like any step, "searched" (by the eviction search), or "none".
        by_budget: whether a budget in MACs ranks steps by the MACs that they save.
        quantises: whether a budget in bytes is met by bits, too, without being asked for.
        margin: in the eviction search, an eviction must cost less than this share of the loss it saves.
        relative: whether `Path.left` is a share of the signal (1 in the original) instead of a capacity.
        price: what J is, for the report.
    """

    evictions: ClassVar[Literal["priced", "searched", "none"]] = "none"
    by_budget: ClassVar[bool] = False
    quantises: ClassVar[bool] = False
    margin: ClassVar[float] = 1.0
    relative: ClassVar[bool] = False
    price: ClassVar[str] = "what an action costs, relative to what its layer has left"

    @property
    @abstractmethod
    def name(self) -> str:
        """The name on the command line and in reports."""

    def collect(
        self, model: nn.Module, example: Example | None, anatomy: Anatomy, *, progress: bool | None = None
    ) -> NetworkStatistics:
        """Collect statistics of the whole network."""
        return NetworkStatistics(anatomy, Checkpoint.of(model, anatomy))

    @abstractmethod
    def state(self, unit: Unit, known: NetworkStatistics) -> State | Reason:
        """A unit's state, or the reason why it has none."""

    @property
    @abstractmethod
    def path(self) -> Callable[[Any], Path]:
        """A state -> its path; can be sent to another process."""

    def branch(self, block: Block, known: NetworkStatistics, states: Sequence[State]) -> Branch | Reason:
        """A block with its price, or the reason why it has none. The default is for methods that evict
        nothing.
        """
        return Cause.EXCLUDED.at(self.name)

    def share_of(self, known: NetworkStatistics) -> Callable[[str], float]:
        """Block -> its branch's share of the stream's variance; 1 where a method does not know it."""
        return lambda block: 1.0

    def path_bytes(self, unit: Unit) -> int:
        """About how many bytes a unit's state and path hold, to refuse what cannot fit before it starts."""
        return 0

    @abstractmethod
    def measures(self, known: NetworkStatistics, states: Sequence[State]) -> dict[str, list[float]]:
        """Unit -> the value of each neuron in the original network, where it is known."""

    @property
    def needs_sensitivity(self) -> bool:
        """Whether costs are weighted by sensitivities."""
        return False

    def expects_sensitivity(self, anatomy: Anatomy, *, inputs: bool) -> bool:
        """Whether the method will need sensitivities once it is resolved.

        Args:
            inputs: whether statistics are measured on inputs.
        """
        return self.needs_sensitivity

    @property
    def propagates(self) -> bool:
        """Whether moments of every signal are propagated through the network."""
        return False

    @property
    def may_refit(self) -> bool:
        """Whether weights may be fitted to the original's activations."""
        return False

    def resolve(self, known: NetworkStatistics) -> Method:
        """The method with its options resolved for this network."""
        return self

    @property
    def live(self) -> bool:
        """Whether steps are ranked by the parameters they save in the current network."""
        return False

    @property
    def rewrite(self) -> Rewrite:
        """What absorptions rewrite."""
        return Rewrite()

    def rank(self, cost: float, release: float) -> float:
        """The order of steps: the smallest first. J/ΔP; values equal up to rounding are equal, and
        actions that release nothing are last.
        """
        return rounded(cost / release) if release else math.inf

    def to_dict(self) -> dict[str, Any]:
        """The method as plain data: its name, and its options; calibration inputs by a hash."""
        options = {one.name: getattr(self, one.name) for one in fields(self)}
        if "calibration" in options:
            options["calibration"] = hash_inputs(options["calibration"])
        return {"name": self.name, **options}

    def validate(self, **options: tuple[object, Sequence[object]]) -> None:
        """Refuse invalid options: name -> (value, allowed values)."""
        for name, (value, known) in options.items():
            if value not in known:
                words = ", ".join(map(str, known))
                raise UnknownMethod(
                    f"{name} of {self.name} must be one of {words}, got {value!r}: give {known[0]}"
                )
