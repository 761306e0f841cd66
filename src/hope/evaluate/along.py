"""Numbers of the networks along a run, each computed once, and the warning about weights that grew."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan

from torch import nn

from hope._util.disk_cache import DiskCache, cached_number, using
from hope._util.memo import Memo
from hope._util.numbers import plural
from hope._util.progress import EVALUATE, SEARCH, bar, busy
from hope.actions import Action
from hope.actions.registered import digest_of_steps
from hope.errors import InfeasibleBudget, InvalidExample, UnknownMethod
from hope.evaluate.fidelity import EVALUATIONS, longest_above
from hope.schedule.budget import Budget

ROUNDED = 1e-9  # a difference of scores that is none
GROWTH = 4.0  # times the original's largest entry: larger weights are reported


@dataclass(frozen=True)
class Along:
    """One number of every network of a run: its fidelity, or the user's score.

    Attributes:
        phase: what is shown while it is computed.
        compute: the number of steps -> the number.
        known: what was computed; it outlives this.

    >>> along = Along("counting", lambda steps: 1 - steps / 16)
    >>> along.points(range(0, 10, 4)), along.known[8]
    ([(0, 1.0), (4, 0.75), (8, 0.5)], 0.5)
    """

    phase: str
    compute: Callable[[int], float]
    known: Memo[int, float] = field(default_factory=Memo)

    def after(self, steps: int) -> float:
        """The number after so many steps."""

        def compute() -> float:
            with busy(self.phase):
                return self.compute(steps)

        return self.known.of(steps, compute)

    def points(self, steps: Sequence[int], progress: bool | None = None) -> list[tuple[int, float]]:
        """(steps, number) after each of these steps."""
        found = []
        with bar(self.phase, len(steps), progress) as show:
            for done, k in enumerate(steps):
                show(done)
                found.append((k, self.after(k)))
        return found


def kept(cache: DiskCache | None, steps: Sequence[Action], compute: Callable[[], float]) -> float:
    """The fidelity of the network after these steps; computed once if a run can be resumed."""
    with using(cache):
        return cached_number(f"fidelity after {digest_of_steps(steps)}", compute)


def spaced(total: int, steps: int, points: int) -> list[int]:
    """Evenly spaced steps of a run, and those of its budget.

    >>> spaced(100, 33, 4)
    [0, 25, 33, 50, 75, 100]
    """
    return sorted({round(total * k / points) for k in range(points + 1)} | {steps})


def longest(
    budget: Budget,
    total: int,
    fidelity: Callable[[int], float],
    score: Callable[[int], float],
    progress: bool | None,
) -> int:
    """How many steps the longest run has that meets a budget in fidelity or in the user's score.

    Args:
        total: all steps of the run.
        fidelity, score: the number of steps -> the number after them.
    """
    with bar(SEARCH, EVALUATIONS, progress) as show:
        if budget.kind.scored:
            return longest_above(least_score(budget, score(0)), total, score, show)
        return longest_above(budget.value, total, fidelity, show)


def least_score(budget: Budget, original: float) -> float:
    """The score that is left of the original's after a drop.

    Raises:
        InfeasibleBudget: every score from 0 is.
    """
    if 0 < original <= budget.value:
        raise InfeasibleBudget(
            f"drop must be less than the score of the original, {original:.4g}, got {budget.value:g}: give "
            f"drop={original / 100:.2g} to lose a hundredth of it"
        )
    return original - budget.value - ROUNDED


def score(evaluate: Callable[[nn.Module], object], model: nn.Module) -> float:
    """The user's score of a network, as a Python number."""
    value = evaluate(model.eval())
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = nan
    if not isfinite(number):
        raise InvalidExample(f"evaluate must return a finite number, got {str(value)[:80]}: return a score")
    return number


def scored(
    evaluate: Callable[[nn.Module], object] | None,
    network: Callable[[int], nn.Module],
    known: Memo[int, float],
) -> Along:
    """The user's score along a run.

    Args:
        network: the number of steps -> the network after them.
        known: what was computed.
    """
    if evaluate is None:
        raise UnknownMethod(
            "a score must have a function, got none: hope.encode(..., evaluate=function of a model)"
        )
    return Along(EVALUATE, lambda steps: score(evaluate, network(steps)), known)


def growth(before: nn.Module, after: nn.Module, names: Iterable[str]) -> dict[str, float]:
    """Weight -> its largest entry now, relative to the largest before."""
    old, new = (dict(net.named_parameters()) for net in (before, after))
    return {
        name: float(new[name].detach().abs().max() / old[name].detach().abs().max())
        for name in names
        if name in new and bool(old[name].any())
    }


def growth_note(found: dict[str, float], calibrated: bool) -> str:
    """What to do about weights that grew; "" if none did.

    >>> growth_note({"head.weight": 5.0}, calibrated=True).partition(": ")[2]
    '5.0 times; measure the accuracy, and use a larger budget if it is too low'
    """
    grown = {name: times for name, times in found.items() if times > GROWTH}
    if not grown:
        return ""
    worst = max(grown, key=lambda name: grown[name])
    return (
        f"{plural(len(grown), 'weight')} grew by more than {GROWTH:g} times, most {worst}: "
        f"{grown[worst]:.1f} times; measure the accuracy, and use a larger budget"
        f"{'' if calibrated else ' or calibration=batches'} if it is too low"
    )
