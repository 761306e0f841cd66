"""`hope.encode`: compress a network to a budget. `hope.capacities`: the analysis on its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hope._util.calls import Example, duplicate
from hope._util.tables import grid, text
from hope.anatomy.anatomy import Anatomy, Size
from hope.anatomy.reasons import Reason
from hope.errors import HopeError, InfeasibleBudget
from hope.inspection import inspect
from hope.judge.evictions import decide
from hope.judge.fidelity import Judge, images_for
from hope.methods.plan import METHODS, Plan
from hope.methods.state import LayerState, View
from hope.run.checkpoint import Checkpoint, settings
from hope.run.collect import collect
from hope.run.merge import Choice
from hope.run.trajectory import Trajectory, one_budget
from hope.signals.dream import dream
from hope.storage.run import Details, fingerprint, save_trajectory
from hope.surgery.apply import operate

GRID, REFINEMENTS = 20, 6  # looks at a run's fidelity
GROWTH = 4.0  # times the original's largest entry: beyond it, weights are reported as grown


class UnknownMethod(HopeError, ValueError):
    """There is no method, merge or kernel of that name."""


@dataclass(frozen=True, eq=False)
class Encoding:
    """A run: one trajectory, and the network at any moment of it. `print` it for a summary.

    Attributes:
        anatomy: the network that was encoded.
        trajectory: every step, with its cost and the size after it.
        steps: how many of them the budget took.
        method: how they were chosen.
        left_alone: layers and blocks that the method could not price, with the reason.
        views: moments of what weights read, for absorption.
        notes: what else there is to know.
        capacities: layer -> ‖f_i‖ of its neurons before the first step (a baseline's scores).

    Example:
        >>> import torch, hope
        >>> linear, bn = torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8)
        >>> net = torch.nn.Sequential(linear, bn, torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> encoding = hope.encode(net, torch.zeros(2, 3), density=0.25)
        >>> encoding.steps, encoding.size.neurons, encoding.trajectory[0].density
        (6, 2, 0.875)
        >>> encoding.at(density=0.5)[0]
        Linear(in_features=3, out_features=4, bias=True)
    """

    anatomy: Anatomy
    trajectory: Trajectory
    steps: int
    method: str
    left_alone: Mapping[str, Reason]
    views: Mapping[str, View] = field(repr=False)
    notes: tuple[str, ...]
    original: nn.Module = field(repr=False)
    example: Example | None = field(repr=False)
    capacities: Mapping[str, Sequence[float]] = field(default_factory=dict, repr=False)
    _judge: Judge | None = field(default=None, repr=False)
    _looked: dict[int, float] = field(default_factory=dict, repr=False)
    _settings: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @cached_property
    def model(self) -> nn.Module:
        """The compressed model: same class, smaller layers."""
        return self._after(self.steps)

    def at(
        self,
        *,
        density: float | None = None,
        params: float | None = None,
        macs: float | None = None,
        steps: int | None = None,
    ) -> nn.Module:
        """The network at another moment of the same run, from the original weights; nothing is computed
        again.
        """
        unit, budget = one_budget(density=density, params=params, macs=macs, steps=steps)
        return self._after(self.trajectory.steps_to(unit, budget))

    def _after(self, steps: int) -> nn.Module:
        small = duplicate(self.original)
        operate(small, self.anatomy, self.trajectory.actions[:steps], views=self.views)
        return small

    @cached_property
    def judge(self) -> Judge:
        """Compares networks with the original, without data."""
        if self._judge is not None:
            return self._judge
        count = images_for(self.anatomy.size().macs)
        return Judge(self.original, self.example, self.anatomy.program, count)

    @cached_property
    def fidelity(self) -> float:
        """The predicted fidelity of the compressed model (see `hope.fidelity`)."""
        return self._fidelity(self.steps)

    def _fidelity(self, steps: int) -> float:
        if steps not in self._looked:
            self._looked[steps] = self.judge(self.model if steps == self.steps else self._after(steps))
        return self._looked[steps]

    @cached_property
    def growth(self) -> dict[str, float]:
        """Weights that absorption made larger: name -> largest entry now, in units of the largest before."""
        before, after = (dict(net.named_parameters()) for net in (self.original, self.model))
        return {
            name: float(after[name].detach().abs().max() / before[name].detach().abs().max())
            for name in self.views
            if name in after and bool(before[name].any())
        }

    def fidelities(self, points: int = 10) -> list[tuple[int, float]]:
        """(steps, predicted fidelity) at evenly spaced moments of the run, and at the budget."""
        steps = {round(len(self.trajectory) * k / points) for k in range(points + 1)}
        return [(k, self._fidelity(k)) for k in sorted(steps | {self.steps})]

    @property
    def size(self) -> Size:
        """Neurons, parameters and MACs at the budget."""
        return self.trajectory.size(self.steps)

    def save(self, folder: str | PathLike[str], *, source: Mapping[str, str] | None = None) -> Path:
        """Save the run: the trajectory as JSON, the compressed weights as safetensors. Fidelities that were
        looked at are saved along, for reports.

        Args:
            folder: where to.
            source: "model", "weights" and "input" on the command line, for `hope report` to repeat.
        """
        return save_trajectory(
            folder,
            self.original,
            self.model,
            self.anatomy,
            self.trajectory,
            self.steps,
            self.method,
            self.views,
            Details(
                self.capacities,
                {name: str(reason) for name, reason in self.left_alone.items()},
                source or {},
                sorted(self._looked.items()),
                self._settings,
            ),
        )

    def __str__(self) -> str:
        before, after = self.trajectory.size(0), self.size
        mix = ", ".join(f"{count} {kind}s" for kind, count in self.trajectory.mix(self.steps).items())
        table = grid(
            f"{self.anatomy.model} by {self.method}: {self.steps} steps ({mix})",
            " ",
            "before",
            "after",
            "kept",
        )
        for name in ("neurons", "parameters", "macs"):
            old, new = getattr(before, name), getattr(after, name)
            table.add_row(name, f"{old:,}", f"{new:,}", f"{new / old:.1%}" if old else "")
        parts: list[object] = [table]
        if self.example is not None:
            parts.append(f"fidelity {self.fidelity:.3f} (predicted without data; 1 is the original)")
        parts += self.notes
        grown = {name: times for name, times in self.growth.items() if times > GROWTH}
        if grown:
            worst = max(grown, key=lambda name: grown[name])
            parts.append(
                f"{len(grown)} weights grew by more than {GROWTH:g} times, "
                f"most {worst}: {grown[worst]:.1f} times"
            )
        if self.left_alone:
            reasons = grid("Left alone by this method", " what", " why")
            for name, reason in list(self.left_alone.items())[:12]:
                reasons.add_row(name, str(reason))
            more = len(self.left_alone) - 12
            parts += ["", reasons, *([f"and {more} more (encoding.left_alone)"] if more > 0 else [])]
        return text(*parts)


def encode(
    model: nn.Module,
    example: Example | None = None,
    *,
    density: float | None = None,
    params: float | None = None,
    macs: float | None = None,
    steps: int | None = None,
    fidelity: float | None = None,
    method: str = "hope",
    merge: str | None = "pair",
    kernel: str = "zero-bias",
    evict: bool = True,
    static_release: bool = True,
    exclude: Sequence[str] = (),
    multiple_of: int = 1,
    calibration: Iterable[Any] | str | None = None,
    executor: Executor | None = None,
    anatomy: Anatomy | None = None,
    checkpoint: str | PathLike[str] | None = None,
    progress: bool | None = None,
) -> Encoding:
    """Compress a network to a budget, without data. The model is not changed.

    Exactly one budget is given: a fraction of the original (a float up to 1), or a count.

    Args:
        model: a trained model that `hope.inspect` can read.
        example: an input it can run on.
        density: share (or number) of compressible neurons to keep.
        params: share (or number) of parameters to keep.
        macs: share (or number) of multiply-accumulates to keep.
        steps: how many actions to take.
        fidelity: the least predicted fidelity (see `hope.fidelity`): the longest run that never dips below,
            looked at in 20 places and then refined.
        method: "hope" (the paper), "absorb" (what a removed neuron did, its survivors take over), or a
            baseline: "l1-in", "l1-joint", "bn-scale", "random".
        merge: "pair" as in the paper, "sum" (two neurons are replaced by one that stands for their sum), or
            None.
        kernel: "zero-bias" as in the paper, or "exact".
        evict: whether residual blocks may be evicted.
        static_release: rank actions by what they release in the original network, as the paper does.
        exclude: patterns (`*`, `?`) of module names that must stay untouched, inputs and outputs.
        multiple_of: keep widths that are multiples of this (8, 16, 32: what hardware likes). A removal that
            would only break a multiple is not made.
        calibration: a few unlabelled batches, to measure moments instead of deriving them (absorb only); or
            "dream": still without data, measured on what `hope.dream` makes up. Slower and more accurate.
        executor: any `concurrent.futures.Executor` to work out the layers' paths on; the result is the same.
        anatomy: what `hope.inspect` returned, to save reading the model again.
        checkpoint: a file to note the run in while it is under way; if it has the beginning of the same run,
            the run goes on from there. It is gone when the run is finished.
        progress: show a progress bar; by default on a terminal only.

    Raises:
        InfeasibleBudget: the budget cannot be met; the message says what can.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Conv2d(8, 4, 3)
        ... ).eval()
        >>> encoding = hope.encode(net, torch.zeros(1, 3, 8, 8), density=0.5)
        >>> encoding.model[0]
        Conv2d(3, 4, kernel_size=(3, 3), stride=(1, 1))
        >>> encoding.at(steps=1)[0]
        Conv2d(3, 7, kernel_size=(3, 3), stride=(1, 1))
    """
    unit, budget = one_budget(density=density, params=params, macs=macs, steps=steps, fidelity=fidelity)
    _check_options(method, merge, kernel, calibration, multiple_of)
    if anatomy is None:
        anatomy = inspect(model, example, progress=progress)
    batches = dream(model, example, progress=progress) if isinstance(calibration, str) else calibration
    plan = Plan(model, anatomy, method, evict=evict, exclude=exclude, calibration=batches)
    plan.check(unit, budget)
    made_with = settings(
        method=method,
        merge=merge,
        kernel=kernel,
        evict=evict,
        static_release=static_release,
        exclude=exclude,
        calibration=calibration,
    )
    file = None
    if checkpoint is not None:
        file = Checkpoint(Path(checkpoint), {"original": fingerprint(model), **made_with})
    begun = file.read() if file is not None else ([], [], [], [])
    judge: Judge | None = None
    deciding = method == "absorb" and bool(plan.blocks) and not begun[0]
    if unit == "fidelity" or deciding:
        judge = Judge(model, example, anatomy.program, images_for(anatomy.size().macs))
    if method == "absorb" and plan.blocks and begun[0]:  # what was decided is the whole run
        stream: Iterator[Choice] = iter(())
    else:
        stream = plan.stream(
            merge=merge, kernel=kernel, executor=executor, static_release=static_release, done=begun[0]
        )
    if deciding:
        assert judge is not None
        woven = decide(model, plan, list(stream), judge, progress=progress)
        if file is not None:  # all of it: deciding is what takes time here
            actions = [plan.action(choice) for choice in woven]
            left = [choice.move.capacity if choice.move else 0.0 for choice in woven]
            file.write(actions, [c.cost for c in woven], [c.release for c in woven], left, now=True)
        stream = iter(woven)
    trajectory = collect(
        plan, stream, unit, budget, begun, multiple_of, None if deciding else file, progress=progress
    )
    if file is not None:
        file.remove()
    original = duplicate(model)
    encoding = Encoding(
        anatomy,
        trajectory,
        0,
        method,
        plan.left_alone,
        plan.views,
        tuple(plan.notes),
        original,
        example,
        plan.capacities(),
        judge,
        _settings={**made_with, "multiple_of": multiple_of},
    )
    if unit == "fidelity":
        return replace(encoding, steps=_longest(encoding, budget))
    return replace(encoding, steps=_steps_to(trajectory, unit, budget, multiple_of))


def _steps_to(trajectory: Trajectory, unit: str, budget: float, multiple_of: int) -> int:
    """The steps to a budget, in a run that went as far as it could."""
    try:
        return trajectory.steps_to(unit, budget)
    except InfeasibleBudget as error:
        less = "fewer steps" if unit == "steps" else "a larger budget"
        widths, way = "", f"take {less}"
        if multiple_of > 1:
            widths, way = f" with multiple_of={multiple_of}", f"take a smaller multiple_of, or {less}"
        raise InfeasibleBudget(
            f"{unit}={budget:g} cannot be met{widths}: the run {trajectory.reach(unit)}; {way}"
        ) from error


def _longest(encoding: Encoding, least: float) -> int:
    """The longest prefix that never dips below a fidelity, on a grid of steps that is then refined."""
    total = len(encoding.trajectory)
    looks = sorted({round(total * k / GRID) for k in range(1, GRID + 1)})
    low = 0
    for steps in looks:
        if encoding._fidelity(steps) < least:
            high = steps
            break
        low = steps
    else:
        return total
    for _ in range(REFINEMENTS):
        if high - low <= 1:
            break
        middle = (low + high) // 2
        if encoding._fidelity(middle) < least:
            high = middle
        else:
            low = middle
    return encoding.trajectory.steps_to("steps", low)


def capacities(
    model: nn.Module, example: Example | None = None, *, progress: bool | None = None
) -> dict[str, Tensor]:
    """The capacity ‖f_i‖ of every neuron, per layer: the analysis on its own.

    Example:
        >>> import torch, hope
        >>> linear, bn = torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5)
        >>> net = torch.nn.Sequential(linear, bn, torch.nn.ReLU(), torch.nn.Linear(5, 2))
        >>> {name: tuple(values.shape) for name, values in hope.capacities(net, torch.zeros(2, 3)).items()}
        {'0': (5,)}
    """
    plan = Plan(model, inspect(model, example, progress=progress), "hope", evict=False)
    return {state.name: state.capacities for state in plan.layers if isinstance(state, LayerState)}


def _check_options(
    method: str, merge: str | None, kernel: str, calibration: object, multiple_of: int
) -> None:
    for name, value, known in (
        ("method", method, METHODS),
        ("merge", merge, ("pair", "sum", None)),
        ("kernel", kernel, ("zero-bias", "exact")),
    ):
        if value not in known:
            raise UnknownMethod(f"there is no {name} {value!r}: choose from {', '.join(map(str, known))}")
    if calibration is not None and method != "absorb":
        raise UnknownMethod(f'method {method!r} uses no calibration: choose method="absorb"')
    if isinstance(calibration, str) and calibration != "dream":
        raise UnknownMethod(f'calibration {calibration!r} is not known: give batches of inputs, or "dream"')
    if multiple_of < 1:
        raise UnknownMethod(f"multiple_of={multiple_of} makes no sense: give 8, 16 or 32, or 1 for any width")
