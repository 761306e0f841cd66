"""Budgets as measurements write them, "params=0.65", and the networks of a run at each of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from hope._util.calls import duplicate
from hope.actions import Action
from hope.api import encode, inspect
from hope.encoding import Encoding
from hope.errors import InfeasibleBudget, first_line
from hope.schedule.trajectory import Trajectory
from hope.structure.anatomy import Anatomy

KEPT = {"density": "neurons", "params": "parameters", "macs": "macs"}
"""unit -> what it is called in the facts about a compressed network."""


def parse(budget: str, units: Collection[str] = tuple(KEPT)) -> tuple[str, float]:
    """Unit and share.

    >>> parse("params=0.65")
    ('params', 0.65)
    """
    unit, _, value = budget.partition("=")
    try:
        share = float(value)
    except ValueError:
        share = -1.0
    if unit not in units or not 0 < share <= 1:
        raise InfeasibleBudget(
            f"a budget must be a share to keep of {', '.join(units)}, got {budget!r}: write it like "
            "params=0.65"
        )
    return unit, share


def by_unit(budgets: Sequence[str]) -> dict[str, list[str]]:
    """The budgets of each unit, the largest first.

    >>> by_unit(["params=0.4", "density=0.5", "params=0.65"])
    {'params': ['params=0.65', 'params=0.4'], 'density': ['density=0.5']}
    """
    found: dict[str, list[str]] = {}
    for budget in budgets:
        found.setdefault(parse(budget)[0], []).append(budget)
    return {unit: sorted(some, key=parse)[::-1] for unit, some in found.items()}


def located(
    model: nn.Module, example: Tensor, anatomy: Anatomy, budgets: Sequence[str], **options: Any
) -> Callable[[str], tuple[Encoding, int]]:
    """Where some budgets are met, a run and its steps: one run per unit, down to the lowest of its budgets
    that can be met.

    Asked for another one, what is returned raises `InfeasibleBudget`.
    """
    options |= {"anatomy": anatomy, "progress": False}
    runs: dict[str, Encoding] = {}
    refused: dict[str, InfeasibleBudget] = {}
    for unit, some in by_unit(budgets).items():
        for budget in reversed(some):
            try:
                runs[unit] = encode(model, example, **{**options, unit: parse(budget)[1]})
                break
            except InfeasibleBudget as error:
                refused[budget] = error

    def where(budget: str) -> tuple[Encoding, int]:
        if budget in refused:
            raise refused[budget]
        unit, share = parse(budget)
        return runs[unit], runs[unit].trajectory.steps_to(unit, share)

    return where


def kept(trajectory: Trajectory, steps: int) -> dict[str, Any]:
    """The shares that a network keeps, and what was done to it."""
    before, after = trajectory.size(0), trajectory.size(steps)
    shares = {name: getattr(after, name) / max(1, getattr(before, name)) for name in KEPT.values()}
    return {**shares, "mix": trajectory.mix(steps)}


@dataclass(frozen=True)
class Candidate:
    """A network to measure."""

    model: nn.Module = field(repr=False)  # in evaluation mode
    facts: dict[str, Any]  # what the results say about it: how it was made and the shares it kept
    steps: tuple[Action, ...] = field(default=(), repr=False)  # that were taken


def candidates(
    model: nn.Module,
    example: Tensor,
    *,
    methods: Sequence[str] = ("absorb",),
    budgets: Sequence[str] = ("params=0.65", "params=0.4"),
    multiple_of: int = 1,
    fidelities: bool = False,
    note: Callable[[str], None] = lambda line: None,
) -> Iterator[Candidate]:
    """The original, and every method at every budget; with `multiple_of` also with widths that are multiples
    of it. Budgets that cannot be reached are omitted, with a call of `note`. The facts have the fidelities
    where these are asked for.

    Raises:
        InfeasibleBudget: none of them can be met.
    """
    for budget in budgets:
        parse(budget)  # a wrong one is reported before the work starts
    anatomy = inspect(model, example, progress=False)
    whole: dict[str, Any] = dict.fromkeys(KEPT.values(), 1.0)
    made = {"method": "original", "budget": "", "multiple of": 1}
    seen = {"fidelity": 1.0} if fidelities else {}
    yield Candidate(duplicate(model).eval(), {**made, **whole, "mix": {}, **seen})
    refused: InfeasibleBudget | None = None
    met = 0
    for method in methods:
        for multiple in dict.fromkeys((1, multiple_of)):
            where = located(model, example, anatomy, budgets, method=method, multiple_of=multiple)
            for budget in budgets:
                try:
                    encoding, steps = where(budget)
                except InfeasibleBudget as error:
                    refused = error
                    note(f"without {method} at {budget}: {first_line(error)}")
                    continue
                met += 1
                made = {"method": method, "budget": budget, "multiple of": multiple}
                seen = {"fidelity": encoding.fidelity_after(steps)} if fidelities else {}
                facts = {**made, **kept(encoding.trajectory, steps), **seen}
                yield Candidate(encoding.at(steps=steps).eval(), facts, encoding.trajectory.steps[:steps])
    if refused is not None and not met:
        raise refused
