"""Networks made for a time, for `hope bench latency`: each engine and batch has its own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from hope.api import encode, inspect
from hope.bench.budgets import KEPT, Candidate, kept, parse
from hope.encoding import Encoding
from hope.errors import InfeasibleBudget, first_line
from hope.latency.measure import latency_model, resolve_runtime
from hope.latency.runtime import Runtime, runtime_of
from hope.schedule.cost_model import CostModel
from hope.schedule.trajectory import Trajectory

UNITS = (*KEPT, "latency")


class LatencyCandidate:
    """Compressed networks at shares of the original's time: of a run that was ranked by the time that steps
    save, and of one that was ranked by parameters.

    Args:
        budgets: those in time, "latency=0.6".
    """

    def __init__(
        self,
        model: nn.Module,
        example: Tensor,
        budgets: Sequence[str],
        *,
        methods: Sequence[str] = ("absorb",),
        multiple_of: int = 1,
        note: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._model, self._example, self._note = model, example, note
        self._budgets = sorted(budgets, key=lambda one: -parse(one, UNITS)[1])
        self._methods = [(m, n) for m in methods for n in dict.fromkeys((1, multiple_of))]
        self._anatomy = inspect(model, example, progress=False)
        self._latency_model = cache(self._measured)
        self._by_parameters = cache(self._ranked)

    def predicted(self, engine: str, batch: int, network: Candidate) -> float:
        """Milliseconds that a network should take."""
        return float(self._latency_model(_runtime(engine, batch)).counts(network.steps)[-1]) / 1e6

    def more(self, engine: str, batch: int) -> Iterator[Candidate]:
        """The networks for an engine and a batch."""
        runtime = _runtime(engine, batch)
        for method, multiple in self._methods:
            met: list[tuple[str, Encoding]] = []
            for budget in reversed(self._budgets):  # the lowest first: its run has the others
                share = parse(budget, UNITS)[1]
                try:
                    how = {**self._how(method, multiple), "latency": share, "runtime": runtime}
                    run = met[0][1] if met else encode(self._model, self._example, **how)
                except InfeasibleBudget as error:
                    self._note(f"without {method} at {budget} in {runtime}: {first_line(error)}")
                    continue
                met.append((budget, run))
            for budget, run in reversed(met):
                share = parse(budget, UNITS)[1]
                yield self._network(run, run.trajectory, share, method, budget, multiple)
                other = self._by_parameters(method, multiple)
                if other is None:
                    continue
                times = self._latency_model(runtime).counts(other.trajectory.steps)
                timed = replace(other.trajectory, predicted={"latency": times})
                try:
                    yield self._network(other, timed, share, method, f"{budget} by parameters", multiple)
                except InfeasibleBudget as error:
                    self._note(f"without {method} at {budget} by parameters: {first_line(error)}")

    def _network(
        self, run: Encoding, trajectory: Trajectory, share: float, method: str, budget: str, multiple: int
    ) -> Candidate:
        steps = trajectory.steps_to("latency", share)
        made = {"method": method, "budget": budget, "multiple of": multiple}
        facts = {**made, **kept(trajectory, steps), "fidelity": run.fidelity_after(steps)}
        return Candidate(run.at(steps=steps).eval(), facts, trajectory.steps[:steps])

    def _measured(self, runtime: Runtime) -> CostModel:
        where = resolve_runtime(runtime_of(runtime), self._example)
        return latency_model(self._model, self._example, self._anatomy, where)

    def _ranked(self, method: str, multiple: int) -> Encoding | None:
        """The run that is ranked by parameters, down to the lowest tenth that it comes to."""
        for tenth in range(1, 10):
            with suppress(InfeasibleBudget):
                how = self._how(method, multiple)
                return encode(self._model, self._example, params=tenth / 10, **how)
        return None

    def _how(self, method: str, multiple: int) -> dict[str, Any]:
        return {
            "method": method,
            "multiple_of": multiple if multiple > 1 else None,
            "anatomy": self._anatomy,
            "progress": False,
        }


def _runtime(engine: str, batch: int) -> Runtime:
    return Runtime(engine, batch=batch, threads=torch.get_num_threads())
