"""What is measured of the networks of a run: fidelities and times, each when it is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from functools import cached_property

from torch import nn

from hope._util.calls import Example
from hope._util.memo import Memo
from hope.evaluate.fidelity import Fidelity, images_for
from hope.latency.runtime import Runtime
from hope.latency.stopwatch import Stopwatch
from hope.rewrite.export import Integers
from hope.structure.anatomy import Anatomy


class Measurements:
    """Fidelities and times of the networks of one run, by number of steps: the memo of a run, which grows as
    they are asked for, and no part of its value.

    Attributes:
        fidelities: steps -> predicted fidelity, as far as measured.
        scores: steps -> the user's score, as far as measured.
        times: steps -> nanoseconds, as far as measured; the original's at 0.
    """

    def __init__(
        self,
        original: nn.Module,
        example: Example | None,
        anatomy: Anatomy,
        inputs: Sequence[Example] = (),
        progress: bool | None = False,
    ) -> None:
        self._original, self._example, self._anatomy = original, example, anatomy
        self._inputs, self._progress = inputs, progress
        self._count = images_for(anatomy.size().macs)
        self.fidelities: Memo[int, float] = Memo()
        self.scores: Memo[int, float] = Memo()
        self.times: dict[int, int] = {}
        self._by_output: Memo[int, dict[str, float]] = Memo()

    @cached_property
    def on_probes(self) -> Fidelity:
        """Compares networks with the original, without data."""
        program, trace = self._anatomy.program, self._anatomy.trace
        return Fidelity(
            self._original, self._example, program, self._count, trace=trace, progress=self._progress
        )

    @cached_property
    def on_inputs(self) -> Fidelity:
        """The same on the inputs of the run; on probes if it has none."""
        if not self._inputs:
            return self.on_probes
        return Fidelity(self._original, self._example, count=self._count, inputs=self._inputs)

    def renewed(self) -> Measurements:
        """For other weights of the same sizes: the same times, no fidelity and no score yet."""
        found = copy(self)
        found.fidelities, found.scores, found._by_output = Memo(), Memo(), Memo()
        return found

    def by_output(self, steps: int, network: Callable[[], nn.Module]) -> dict[str, float]:
        """Output -> its fidelity without data, of the network after so many steps; computed once."""
        return self._by_output.of(steps, lambda: self.on_probes.by_output(network()))

    def least(self, steps: int, network: Callable[[], nn.Module]) -> float:
        """The fidelity of the worst output."""
        return min(self.by_output(steps, network).values())

    def time(
        self,
        steps: int,
        network: Callable[[], nn.Module],
        runtime: Runtime,
        integers: Callable[[], Integers | None] | None = None,
    ) -> tuple[int, int]:
        """Nanoseconds of the original and of the network after so many steps, measured side by side."""
        if steps not in self.times:
            models, rounded = [self._original, network()], integers() if integers is not None else None
            found = Stopwatch(runtime).networks(models, self._example, [None, rounded])
            self.times |= dict(zip((0, steps), map(round, found), strict=True))
        return self.times[0], self.times[steps]
