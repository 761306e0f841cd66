"""Budgets: what may be left of a network, in one of the units of `schedule.resources`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, TypedDict, TypeVar

from hope.errors import InfeasibleBudget, UnknownBudget
from hope.reasons import LISTED
from hope.schedule.resources import UNITS, BudgetUnit, Resource

Function = TypeVar("Function", bound=Callable[..., Any])


class ReplayBudget(TypedDict, total=False):
    """Keywords of the budgets that a finished run can be replayed at, for type checkers; registered
    resources are taken too.
    """

    density: float | None
    params: float | None
    macs: float | None
    size: float | str | None
    latency: float | str | None
    steps: int | None


class RunBudget(ReplayBudget, total=False):
    """Keywords of the budgets that a run can be made for."""

    fidelity: float | None
    drop: float | None


@dataclass(frozen=True)
class Budget:
    """One budget.

    Attributes:
        unit: the name of a resource ("params"), "steps", "fidelity" or "drop".
        value: how much; of a resource a fraction of the original (a float up to 1) or a count.
    """

    unit: str
    value: float

    @property
    def kind(self) -> BudgetUnit:
        """Its unit, which parses and prints it."""
        return unit_of(self.unit)

    @property
    def resource(self) -> Resource | None:
        """The resource that it limits; None for steps and a fidelity."""
        return self.kind if isinstance(self.kind, Resource) else None

    @property
    def is_cost(self) -> bool:
        """Whether it limits what a network costs (see `Resource`)."""
        return self.resource is not None and self.resource.is_cost

    @property
    def is_measured(self) -> bool:
        """Whether it limits what only a cost model knows (see `Resource`)."""
        return self.resource is not None and self.resource.measured

    def ranks(self, by_budget: bool) -> bool:
        """Whether its cost model ranks the steps, of a method that ranks by budgets or not."""
        resource = self.resource
        return resource is not None and (resource.measured or (resource.ranks and by_budget))

    def allowed(self, original: int) -> float:
        """What a budget of a resource comes to: fractions of the original up to 1 (a float), absolute counts
        (an int, or above 1).

        >>> Budget("params", 0.5).allowed(100), Budget("params", 40).allowed(100)
        (50.0, 40)
        """
        fraction = isinstance(self.value, float) and self.value <= 1
        return self.value * original if fraction else self.value

    def check(self, least: int, original: int, advice: str = "") -> None:
        """Refuse what is below the least that can be reached, or above the original, and say what to do."""
        counted = self.resource is not None and not self.resource.scales  # not bytes or time
        if counted and self.allowed(original) > original:
            raise InfeasibleBudget(
                f"{self.unit} must be at most {self.kind.format(original)}, that of the original, got "
                f"{self.kind.format(self.value)}: give less, or a share ({self.unit}=0.6)"
            )
        if least > self.allowed(original):
            way = advice or LISTED
            raise InfeasibleBudget(
                f"{self} cannot be met: the smallest reachable is {self.unit}={least / max(original, 1):.4f} "
                f"({self.kind.format(least)} of {self.kind.format(original)}); {way}"
            )

    def __str__(self) -> str:
        scaled = self.resource is not None and self.resource.scales
        return f"{self.unit}={self.kind.format(self.value) if scaled else f'{self.value:g}'}"


def unit_of(name: str) -> BudgetUnit:
    """The unit of that name.

    Raises:
        UnknownBudget: there is none.
    """
    if name not in UNITS:
        near = get_close_matches(name, UNITS, n=1)
        way = f"did you mean {near[0]}?" if near else "see help(hope.encode)"
        raise UnknownBudget(
            f"a keyword must be an option of the call or a budget ({', '.join(UNITS)}), got {name!r}: {way}"
        )
    return UNITS[name]


def one_budget(**given: Any) -> Budget:
    """The one budget that was given."""
    return _one(given, list(UNITS))


def run_budget(bits: object, given: Mapping[str, Any]) -> Budget | None:
    """The one budget that was given; None if only bits were."""
    some = any(unit_of(name) and value is not None for name, value in given.items())
    return None if bits not in ("auto", None) and not some else one_budget(**given)


def replay_budget(**given: Any) -> Budget:
    """The one budget that was given, of those that a finished run can be replayed at."""
    return _one(given, [name for name, unit in UNITS.items() if unit.replayable])


def optional_budget(**given: Any) -> Budget | None:
    """The same; None if there is none."""
    some = any(unit_of(name) and value is not None for name, value in given.items())
    return replay_budget(**given) if some else None


def _one(given: dict[str, Any], names: list[str]) -> Budget:
    units = [unit_of(name) for name in given if given[name] is not None]
    if len(units) != 1 or units[0].name not in names:
        found = ", ".join(unit.name for unit in UNITS.values() if unit in units) or "none"
        raise InfeasibleBudget(f"the budget must be exactly one of {', '.join(names)}, got {found}: give one")
    return Budget(units[0].name, units[0].parse(given[units[0].name]))


def lists_budgets(options: type[ReplayBudget]) -> Callable[[Function], Function]:
    """Show the budgets by name in the signature of a function that takes them as `**budget`."""

    def listed(function: Function) -> Function:
        call = inspect.signature(function)
        own = [one for one in call.parameters.values() if one.kind is not one.VAR_KEYWORD]
        first = next((n for n, one in enumerate(own) if one.kind is one.KEYWORD_ONLY), len(own))
        budgets = [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint.__forward_arg__
            )
            for name, hint in options.__annotations__.items()
        ]
        function.__signature__ = call.replace(  # type: ignore[attr-defined]
            parameters=[*own[:first], *budgets, *own[first:]]
        )
        return function

    return listed
