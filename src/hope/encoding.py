"""`Encoding`: the result of a run, and the network after any number of steps."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from torch import nn

from hope._util.allocation import allocations
from hope._util.calls import Example
from hope._util.disk_cache import DiskCache, fit_file
from hope._util.progress import FIDELITY
from hope._util.tables import html, text
from hope.errors import InfeasibleBudget, InvalidAction
from hope.evaluate.along import Along, growth, growth_note, kept, longest, scored, spaced
from hope.evaluate.fidelity import in_words
from hope.evaluate.measurements import Measurements
from hope.healing.heal import Healed, HealOptions, Settings, distilled
from hope.invariants import checked
from hope.latency.runtime import Runtime
from hope.latency.timing import Latency
from hope.methods.calibration import has_data
from hope.methods.method import Method
from hope.reasons import Reason
from hope.report.accuracies import checked_points
from hope.report.encoding_table import summary
from hope.report.figure import check_matplotlib, draw
from hope.report.page import write_page
from hope.rewrite.export import Exported, Integers, export_onnx, export_program
from hope.rewrite.packed_onnx import Grid
from hope.rewrite.refit import compressed
from hope.rewrite.rounded import grids_of, integers_of, read_grids
from hope.schedule.budget import Budget, ReplayBudget, lists_budgets, replay_budget
from hope.schedule.search_space import calibration
from hope.schedule.trajectory import Trajectory, unreachable
from hope.statistics.input_scale import input_range
from hope.statistics.input_statistics import InputStatistics
from hope.storage.arrays import state
from hope.storage.finetuned import save_trained
from hope.storage.run import Run, fingerprint, write_run
from hope.structure.anatomy import Anatomy
from hope.structure.sizes import Size

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, eq=False, repr=False)
class Encoding:
    """A run: one trajectory, and the network after any number of its steps. `print` it for a summary.

    Attributes:
        run: the run as data: what `save` writes and `hope report` reads.
        method: the method that chose the steps.
        original: the network before compression.
        notes: messages for the user.
        inputs: the inputs that statistics were measured on, at most 512, for the refit, if there is one, and
            to heal on.
        measurements: fidelities and times, each measured when it is first asked for: a memo, the only part
            that changes.
        cache: of a run that can be resumed.
        shares_weights: whether the original was too large to copy.
        evaluate: the user's own score of a network.
        healed: what `heal` did, if it was called.

    Example:
        >>> import torch, hope
        >>> linear, bn = torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8)
        >>> net = torch.nn.Sequential(linear, bn, torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> encoding = hope.encode(net, torch.zeros(2, 3), density=0.25)
        >>> encoding
        <Encoding of Sequential by absorb: 6 of 7 steps, 8 -> 2 neurons, 66 -> 18 parameters>
        >>> encoding.steps, encoding.size.neurons, encoding.trajectory.size(1).neurons
        (6, 2, 7)
    """

    run: Run
    method: Method
    original: nn.Module
    example: Example | None
    notes: tuple[str, ...]
    inputs: Sequence[Any]
    measurements: Measurements
    cache: DiskCache | None = None
    shares_weights: bool = False
    evaluate: Callable[[nn.Module], float] | None = None
    healed: Healed | None = None

    @property
    def anatomy(self) -> Anatomy:
        """The network that was encoded."""
        return self.run.anatomy

    @property
    def trajectory(self) -> Trajectory:
        """Every step, with its cost, and the size after it."""
        return self.run.trajectory

    @property
    def steps(self) -> int:
        """How many steps the budget needs."""
        return self.run.steps

    @property
    def left_alone(self) -> Mapping[str, Reason]:
        """Units and blocks that the method kept, with the reason."""
        return self.run.details.left_alone

    @property
    def measures(self) -> Mapping[str, Sequence[float]]:
        """Unit -> capacity ‖f_i‖, or score, of each neuron before the first step."""
        return self.run.details.measures

    @property
    def settings(self) -> Mapping[str, Any]:
        """The options of the run."""
        return self.run.details.settings

    @property
    def input_statistics(self) -> Mapping[str, InputStatistics]:
        """Input statistics of weights, for absorption."""
        return self.run.held or {}

    @cached_property
    def model(self) -> nn.Module:
        """The compressed model: same class, smaller layers."""
        if self.healed is not None:
            return self.healed.model
        return checked(self, self._after(self.steps, fit_file(self.cache)))

    @lists_budgets(ReplayBudget)
    def at(self, **budget: Unpack[ReplayBudget]) -> nn.Module:
        """The network at another budget of the same run; only the refit is computed again."""
        return self._after(self.trajectory.steps_at(replay_budget(**budget)))

    @allocations()
    def _after(self, steps: int, checkpoint: Path | None = None) -> nn.Module:
        return compressed(
            self._intact(),
            self.anatomy,
            self.trajectory.steps[:steps],
            input_statistics=self.input_statistics,
            rewrite=self.method.rewrite,
            inputs=self.inputs,
            fixed=self.run.details.settings.get("exclude", ()),
            checkpoint=checkpoint,
        )

    def _intact(self) -> nn.Module:
        """The original, if it was not modified."""
        if self.shares_weights and fingerprint(self.original) != self.run.record.original:
            raise InvalidAction("the original (too large to copy) must not be changed, it was: load it again")
        return self.original

    @property
    def fidelity(self) -> float:
        """The predicted fidelity of the compressed model (see `hope.fidelity`)."""
        return self.fidelity_after(self.steps)

    @property
    def fidelity_by_output(self) -> dict[str, float]:
        """Output -> its predicted fidelity (see `hope.fidelity_by_output`); `fidelity` is the least."""
        return self.measurements.by_output(self.steps, partial(self._network, self.steps))

    def fidelity_after(self, steps: int) -> float:
        """The predicted fidelity of the network after so many steps; computed once."""
        return self._fidelities.after(steps)

    def fidelities(self, points: int = 10, *, progress: bool | None = None) -> list[tuple[int, float]]:
        """(steps, predicted fidelity) at evenly spaced steps of the run, and at the budget."""
        return self._fidelities.points(self._spaced(points), progress)

    @property
    def score(self) -> float:
        """The score of the compressed model by `evaluate`."""
        return self.score_after(self.steps)

    def score_after(self, steps: int) -> float:
        """The score by `evaluate` of the network after so many steps; computed once."""
        return self._scores.after(steps)

    def scores(self, points: int = 10, *, progress: bool | None = None) -> list[tuple[int, float]]:
        """(steps, score by `evaluate`) at evenly spaced steps of the run, and at the budget."""
        return self._scores.points(self._spaced(points), progress)

    def _spaced(self, points: int) -> Sequence[int]:  # of a healed run, no other networks
        return spaced(len(self.trajectory), self.steps, points) if self.healed is None else (0, self.steps)

    def heal(self, batches: Iterable[Any] | None = None, **options: Unpack[HealOptions]) -> Encoding:
        """This encoding with its model distilled towards the original (see `hope.heal`), by default on
        the batches of `calibration=`; `save` then saves a trained network, and `at` is not healed.
        """
        given = self.inputs if batches is None and self.inputs and has_data(self.method) else batches
        done = self.trajectory.steps[: self.steps]
        settings = Settings.of(self.anatomy, done, self.example, self.run.details.settings.get("exclude", ()))
        found = distilled(self._intact(), self.model, given, settings, **options)
        return replace(self, healed=found, cache=None, measurements=self.measurements.renewed())

    @cached_property
    def _fidelities(self) -> Along:
        def compute(steps: int) -> float:
            least = partial(self.measurements.least, steps, partial(self._network, steps))
            return kept(self.cache, self.trajectory.steps[:steps], least)

        return Along(FIDELITY, compute, self.measurements.fidelities)

    @cached_property
    def _scores(self) -> Along:
        return scored(self.evaluate, self._network, self.measurements.scores)

    def _network(self, steps: int) -> nn.Module:
        self._intact()
        return self.model if steps == self.steps else self._after(steps)

    @cached_property
    def growth(self) -> dict[str, float]:
        """Weights that absorption enlarged: name -> largest entry now, relative to the largest before."""
        return growth(self._intact(), self.model, self.input_statistics)

    @property
    def size(self) -> Size:
        """Neurons, parameters and MACs at the budget."""
        return self.trajectory.size(self.steps)

    @property
    def latency(self) -> Latency | None:
        """Predicted and measured milliseconds, if the run has a latency budget; else None."""
        timing, times = self.run.record.timing, self.trajectory.times
        if timing is None or times is None:
            return None
        before, after = self.measure_latency(timing.runtime)
        return Latency(timing.runtime, int(times[self.steps]) / 1e6, after / 1e6, before / 1e6)

    def measure_latency(self, runtime: Runtime) -> tuple[int, int]:
        """Nanoseconds of the original and of the compressed model, measured side by side, once."""
        self._intact()
        integers = self._integers if runtime.engine == "onnxruntime" else None
        return self.measurements.time(self.steps, lambda: self.model, runtime, integers)

    def truncated(self, budget: Budget, multiple_of: int = 1, *, progress: bool | None = False) -> Encoding:
        """The same run, stopped where a budget is met; `InfeasibleBudget` says what it reaches instead."""
        if budget.kind.searched:
            after = self.fidelity_after, self.score_after
            steps = longest(budget, len(self.trajectory), *after, progress)
            return replace(self, run=self.run.changed(steps=self.trajectory.steps_to("steps", steps)))
        try:
            return replace(self, run=self.run.changed(steps=self.trajectory.steps_at(budget)))
        except InfeasibleBudget as error:
            advice = calibration(self.anatomy, self.left_alone)
            uniform = bool(self.run.details.settings.get("uniform"))
            raise unreachable(budget, self.trajectory, advice, multiple_of, uniform) from error

    def save(self, folder: str | PathLike[str], *, source: Mapping[str, str] | None = None) -> Path:
        """Save the run: the trajectory, the compressed weights, fidelities and scores computed so far.

        Args:
            source: "model", "weights" and "input" on the command line, for `hope report` to repeat.
        """
        if self.healed is not None:
            return save_trained(Path(folder), self.as_run(folder, source), self.steps, self.model)
        # synthetic inputs are saved, for the refit at other budgets; others are the user's own
        inputs = self.inputs if self.method.rewrite.refit and not has_data(self.method) else ()
        return write_run(Path(folder), self.as_run(folder, source), state(self.model), inputs)

    def report(
        self,
        path: str | PathLike[str],
        *,
        accuracy: Mapping[int, float] | None = None,
        folder: str | PathLike[str] = "run",
        source: Mapping[str, str] | None = None,
    ) -> Path:
        """Write the report of this run, an HTML file that works offline, after computing fidelities.

        Args:
            accuracy: accuracies you measured, {steps: accuracy between 0 and 1}.
            folder: the folder of the saved run, for the report's extraction command.
        """
        if self.example is not None:
            self.fidelities()
        if self.evaluate is not None and accuracy is None:
            self.scores()
        points = checked_points(accuracy or {}, len(self.trajectory), "accuracy")
        return write_page([self.as_run(folder, source)], Path(path), accuracies=[points])

    def plot(self, *, accuracy: Mapping[int, float] | None = None) -> Figure:
        """The figure that `hope plot` draws of a saved run (needs matplotlib): sizes along the run,
        distortion against parameters, and the accuracy, {steps: accuracy between 0 and 1}, or the scores, or
        else the fidelities, computed so far. `.savefig("figure.png")` saves it; notebooks show it.
        """
        check_matplotlib()
        return draw([self.as_run()], [checked_points(accuracy or {}, len(self.trajectory), "accuracy")])

    def as_run(self, folder: str | PathLike[str] = "run", source: Mapping[str, str] | None = None) -> Run:
        """The run as if it had been saved in a folder and read again."""
        self._intact()
        found, timing = self.measurements, self.run.record.timing
        fidelities, scores = sorted(found.fidelities.items()), sorted(found.scores.items())
        details = replace(self.run.details, source=source or {}, fidelities=fidelities, scores=scores)
        if timing is not None:
            timing = replace(timing, measured=tuple(sorted(found.times.items())))
        return replace(self.run, folder=Path(folder)).changed(details=details.rounded(), timing=timing)

    def export_onnx(self, path: str | PathLike[str], *, check: bool = True) -> Exported:
        """Write the compressed model as ONNX, rounded weights as integers (see `hope.export_onnx`)."""
        return export_onnx(self.model, self.example, path, check=check, integers=self._integers())

    def _integers(self) -> Integers | None:
        """What an ONNX file needs to know of rounded weights; ranges come from real inputs only."""
        inputs = self.inputs if has_data(self.method) else ()
        entry = input_range(self.original, self.example, self.anatomy.trace) if self.grids else None
        return integers_of(self.model, self.grids, self.input_statistics, entry, inputs)

    @cached_property
    def grids(self) -> dict[str, Grid]:
        """Rounded weight -> its whole numbers and scales."""
        return read_grids(self.model, grids_of(self.trajectory.steps[: self.steps]))

    def export_program(self, path: str | PathLike[str], *, check: bool = True) -> Exported:
        """Write the compressed model as `.pt2`, for `torch.export.load` (see `hope.export_program`)."""
        return export_program(self.model, self.example, path, check=check)

    def __repr__(self) -> str:
        before, after = self.trajectory.size(0), self.size
        return (
            f"<Encoding of {self.anatomy.model} by {self.method.name}: {self.steps} of "
            f"{len(self.trajectory)} steps, {before.neurons} -> {after.neurons} neurons, "
            f"{before.parameters} -> {after.parameters} parameters>"
        )

    def __str__(self) -> str:
        return text(*self._parts())

    def _repr_html_(self) -> str:
        return html(*self._parts())

    def _parts(self) -> list[object]:
        """The summary, as tables and lines."""
        lines = [str(self.latency or "")]
        if self.example is not None:
            lines.append(in_words(self.fidelity, self.fidelity_by_output))
        if self.evaluate is not None:
            lines.append(f"score {self.score:.4g}; of the original {self.score_after(0):.4g}")
        lines += [str(self.healed or ""), *self.notes, growth_note(self.growth, has_data(self.method))]
        return summary(self.run, self.method.name, lines, self.model)
