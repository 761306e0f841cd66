"""`inspect`, `encode`, `capacities`: the way of the data, from a model to a smaller one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hope._util.calls import Example, duplicate
from hope._util.finite import check_finite
from hope._util.memory import PART, allowed, beside, size_of
from hope._util.progress import busy
from hope.encoding import Encoding
from hope.errors import InvalidExample, UnsupportedModel
from hope.evaluate.dry_run import verify
from hope.evaluate.eviction_search import judged, ordered
from hope.evaluate.fidelity import Fidelity, images_for
from hope.evaluate.sensitivity import weigh
from hope.evaluate.stream_choice import better, without_streams
from hope.latency.measure import clock_of, runtime_for
from hope.latency.runtime import Runtime
from hope.methods import Method, Paper, named
from hope.rewrite.apply import outcome
from hope.rewrite.config import configured, groups_of
from hope.schedule.budget import RESOURCES, Budget, one_budget
from hope.schedule.cost_model import MacCost
from hope.schedule.plan import Plan, usable, waiting
from hope.schedule.resume import Resume, RunCheckpoint
from hope.schedule.run_to_budget import collect
from hope.schedule.width_constraints import check_multiple, check_uniform
from hope.storage.run import fingerprint
from hope.structure.analyse import read_model
from hope.structure.anatomy import Anatomy
from hope.trace.capture import check_readable

NOT_TOLD = (
    "its configuration cannot tell these widths: what save_pretrained writes, from_pretrained does not load; "
    "use encoding.save and hope.load, or give uniform=True"
)


def inspect(
    model: nn.Module, example: Example | None = None, *, streams: bool = False, progress: bool | None = None
) -> Anatomy:
    """Read a network as neurons, blocks and streams, with a reason for everything that is left alone.

    The model is not changed; it is read in evaluation mode and put back in the mode it was in.

    Args:
        model: any module that `torch.export` can capture.
        example: an input it can run on: a tensor, a tuple of positional inputs or a dict of keyword inputs.
        streams: whether channels of residual streams may go; those that can are then among the layers.
        progress: show what is being done on standard error; by default on a terminal only.

    Returns:
        An `Anatomy`: `.layers`, `.blocks`, `.streams`, `.skipped`; `print` it for a table.

    Raises:
        InvalidExample: there is no example, or the model cannot run on it.
        UnsupportedModel: the model cannot be captured or its parameters cannot be cut; the message says what
            to do.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> anatomy = hope.inspect(net, torch.zeros(1, 4))
        >>> [(layer.name, layer.neurons, layer.activation) for layer in anatomy.layers]
        [('0', 8, 'relu')]
        >>> str(anatomy.skipped[0].reason)
        'it is an output of the model'
    """
    anatomy, candidates = read_model(model, example, streams=streams, progress=progress)
    with busy(f"trying {anatomy.model} without data", progress):
        return verify(model, example, anatomy, candidates)


def encode(
    model: nn.Module,
    example: Example | None = None,
    *,
    density: float | None = None,
    params: float | None = None,
    macs: float | None = None,
    size: float | str | None = None,
    latency: float | str | None = None,
    steps: int | None = None,
    fidelity: float | None = None,
    method: Method | str = "absorb",
    evict: bool = True,
    streams: bool = False,
    exclude: Sequence[str] = (),
    multiple_of: int | None = None,
    uniform: bool = False,
    runtime: Runtime | str | None = None,
    executor: Executor | None = None,
    anatomy: Anatomy | None = None,
    checkpoint: str | PathLike[str] | None = None,
    progress: bool | None = None,
) -> Encoding:
    """Compress a network to a budget, without data where it has batch norm. The model is not changed.

    Exactly one budget is given: a fraction of the original (a float up to 1), or a count.

    Args:
        model: a trained model that `hope.inspect` can read.
        example: an input it can run on.
        density: share (or number) of compressible neurons to keep.
        params: share (or number) of parameters to keep.
        macs: share (or number) of multiply-accumulates to keep; absorption then ranks steps by them.
        size: share of the bytes of all parameters and buffers to keep, or how many: "10MB".
        latency: share of the time that the original takes on the example, or how long: "12ms". Steps are
            ranked by the time that they save. What operators take on this machine is measured once and kept
            (in `$HOPE_CACHE` or `~/.cache/hope`); the result is measured in the end (`encoding.latency`).
        steps: how many steps to take.
        fidelity: the least predicted fidelity (see `hope.fidelity`): the longest run that never dips below,
            looked at in 20 places and then refined.
        method: `hope.Absorb()` (what a removed neuron did, its survivors take over), `hope.Paper()`, or a
            baseline, `hope.Score("l1-in")`; with their usual options they also go by their names: "absorb",
            "hope", "l1-in", "l1-joint", "bn-scale", "random".
        evict: whether blocks may be evicted: residual ones, and under `hope.Paper` those without a skip.
        streams: whether channels of residual streams may go, too. At a budget in parameters, MACs, bytes or
            time absorption lets them go only if more of the answers is kept by it; a note tells if not.
        exclude: patterns (`*`, `?`) of module names that must stay untouched, inputs and outputs.
        multiple_of: keep widths that are multiples of this (8, 16, 32); removals that would only break one
            are not made. By default any width, or with `latency` multiples that the runtime likes.
        uniform: keep one width for all layers that are alike (the same layer of every block), so that a
            configuration can tell it: `encoding.model.save_pretrained(folder)` writes what others load with
            `from_pretrained`. Nothing is evicted then, and layers that the configuration has no field for
            stay. Widths are chosen so that the sum of the layers' costs is least.
        runtime: where `latency` counts: "torch" (the default), "onnxruntime", or a `hope.Runtime` with a
            batch and a number of threads.
        executor: any `concurrent.futures.Executor` to work out the units' paths on; the result is the same.
        anatomy: what `hope.inspect` returned, to save reading the model again.
        checkpoint: a file to note the run in while it is under way (and one beside it, while weights are
            fitted); if it has the beginning of the same run, the run goes on from there. It is gone when the
            run is finished.
        progress: show a progress bar; by default on a terminal only.

    Raises:
        InfeasibleBudget: the budget cannot be met; the message says what can.
        UnknownMethod: there is no such method, runtime or option.
        MissingExtra: the runtime is not installed.
        CannotExport: the runtime cannot run the model.

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
        >>> hope.encode(net, torch.zeros(1, 3, 8, 8), size="1.5kB").size.neurons
        5
        >>> encoding = hope.encode(net, torch.zeros(1, 3, 8, 8), latency=0.9)  # doctest: +SKIP
        >>> encoding.latency.predicted, encoding.latency.measured, encoding.latency.original  # doctest: +SKIP
        (0.031, 0.032, 0.038)
        >>> hope.encode(net, torch.zeros(1, 3, 8, 8), density=0.5, method=hope.Paper(merge="sum")).steps
        4
    """
    budget = one_budget(
        density=density, params=params, macs=macs, size=size, latency=latency, steps=steps, fidelity=fidelity
    )
    encoding = work(
        model,
        example,
        budget,
        method=method,
        evict=evict,
        streams=streams,
        exclude=exclude,
        multiple_of=multiple_of,
        uniform=uniform,
        runtime=runtime,
        executor=executor,
        anatomy=anatomy,
        checkpoint=checkpoint,
        progress=progress,
    )
    if checkpoint is not None:
        _ = encoding.model  # fitting is part of what can be gone on with
        Path(checkpoint).unlink(missing_ok=True)
    return encoding


def work(
    model: nn.Module,
    example: Example | None,
    budget: Budget,
    *,
    method: Method | str = "absorb",
    evict: bool = True,
    streams: bool = False,
    exclude: Sequence[str] = (),
    multiple_of: int | None = None,
    uniform: bool = False,
    runtime: Runtime | str | None = None,
    executor: Executor | None = None,
    anatomy: Anatomy | None = None,
    checkpoint: str | PathLike[str] | None = None,
    progress: bool | None = None,
) -> Encoding:
    """What `encode` does, but the checkpoint stays: until the run is saved, it is all there is of it."""
    method = named(method)
    exclude = [exclude] if isinstance(exclude, str) else list(exclude)
    check_multiple(1 if multiple_of is None else multiple_of)
    evict = evict and not check_uniform(uniform, streams)
    where = runtime_for(budget, runtime, example)
    _check_numbers(model)
    large = size_of(model) > allowed() / PART
    anatomy = usable(model, anatomy, streams)
    if anatomy is None:
        anatomy = inspect(model, example, streams=streams, progress=progress)
    groups = groups_of(model, anatomy) if uniform else None
    plan = Plan(
        model, example, anatomy, method, evict=evict, exclude=exclude, groups=groups, progress=progress
    )
    method = plan.method
    settings = {"method": method.told(), "evict": evict, "exclude": exclude}
    settings |= {name: True for name, value in (("streams", streams), ("uniform", uniform)) if value}
    told: dict[str, Any] = {"original": fingerprint(model), **settings}
    clock = None
    if where is not None:
        plan.pace = clock = clock_of(model, example, anatomy, where, progress=progress)
        settings["runtime"] = told["runtime"] = where.told()
        told["clock"] = clock.told()
    elif budget.unit == "macs" and method.by_budget:
        plan.pace, settings["ranked"], told["ranked"] = MacCost(anatomy), "macs", "macs"
    plan.check(budget, multiple_of or 1)
    file = RunCheckpoint(Path(checkpoint), told) if checkpoint is not None else None
    begun = file.read() if file is not None else Resume()
    judge: Fidelity | None = None
    undecided = plan.judged and (not begun.steps or begun.deciding is not None)
    looking = method.looks and (not plan.judged or (undecided and not ordered(begun)))
    count, seen = images_for(anatomy.size().macs), plan.known.inputs
    choosing = streams and method.evictions == "judged" and budget.unit in RESOURCES
    if budget.unit == "fidelity" or undecided or ((looking or choosing) and not seen):
        judge = Fidelity(model, example, anatomy.program, count, progress=progress)
    eye = Fidelity(model, example, count=count, inputs=seen) if seen and (looking or choosing) else judge
    if looking:
        assert eye is not None
        weigh(model, plan, eye, progress=progress)
    if undecided:
        assert judge is not None
        begun = Resume(judged(model, plan, judge, executor, file, begun, progress))
    more = iter(()) if plan.judged else plan.steps(executor=executor, done=begun.steps)
    how: dict[str, Any] = {"pace": clock, "groups": plan.groups, "progress": progress}
    multiples: Sequence[int] = (multiple_of or 1,)
    if clock is not None and multiple_of is None:
        multiples, settings["widths"] = clock.multiples, "chosen"
    found = collect(anatomy, more, budget, begun.steps, multiples, file, **how)
    stay: tuple[str, ...] = ()
    if choosing:
        assert eye is not None
        some, rest = list(without_streams(plan, begun.steps)), without_streams(plan, more)
        others = partial(collect, anatomy, rest, budget, some, multiples, **how)
        found, stay = better(model, plan, budget, found, others, eye)
    trajectory, multiple_of = found
    encoding = Encoding(
        anatomy,
        trajectory,
        0,
        method,
        plan.left_alone,
        plan.known.intakes,
        (*plan.notes(multiple_of), *stay),
        beside(model) if large else duplicate(model),
        example,
        method.measures(plan.known, plan.states),
        {**settings, "multiple_of": multiple_of},
        plan.known.inputs if method.rewrite.refit else (),
        judge,
        runtime=where,
        unchanged=told["original"] if large else None,
        fitting=file.path.with_name(f"{file.path.name}.fit") if file is not None else None,
    )
    encoding = _noted(encoding.ended_at(budget, multiple_of, progress=progress), budget)
    if where is not None:
        with busy("measuring the result", progress):
            encoding.look_at_latency()
    return encoding


def _noted(encoding: Encoding, budget: Budget) -> Encoding:
    """The same, with notes if it could not end where it was told to, and if others cannot load the result of
    a model of transformers.
    """
    notes, model = [*encoding.notes], encoding.original
    if encoding.settings.get("uniform") and budget.unit == "steps" and encoding.steps != budget.value:
        notes.append(f"{budget} is no stop of this run, whose layers go together: {encoding.steps} are taken")
    done = outcome(encoding.anatomy, encoding.trajectory.steps[: encoding.steps])
    if configured(model) and done.told(model, encoding.anatomy) is None:
        notes.append(NOT_TOLD)
    return replace(encoding, notes=tuple(notes))


def _check_numbers(model: nn.Module) -> None:
    """Refuse what cannot be read, and numbers that nothing follows from."""
    check_readable(model)
    tensors = dict([*model.named_parameters(), *model.named_buffers()])
    check_finite(tensors, {name for name, _ in model.named_parameters()}, UnsupportedModel)


def capacities(
    model: nn.Module,
    example: Example | None = None,
    *,
    calibration: Iterable[Any] | str | None = None,
    progress: bool | None = None,
) -> dict[str, Tensor]:
    """The capacity ‖f_i‖ of every neuron, per layer: the analysis on its own.

    Args:
        model: a trained model that `hope.inspect` can read.
        example: an input it can run on.
        calibration: a few unlabelled batches, to measure signals on, as `hope.Paper` takes them. Layers
            without BN have no capacities without it.
        progress: show what is being done on standard error; by default on a terminal only.

    Raises:
        InvalidExample: nothing says how large any signal is: there is no BN and no calibration.

    Example:
        >>> import torch, hope
        >>> linear, bn = torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5)
        >>> net = torch.nn.Sequential(linear, bn, torch.nn.ReLU(), torch.nn.Linear(5, 2))
        >>> {name: tuple(values.shape) for name, values in hope.capacities(net, torch.zeros(2, 3)).items()}
        {'0': (5,)}
        >>> plain = torch.nn.Sequential(linear, torch.nn.ReLU(), torch.nn.Linear(5, 2))
        >>> list(hope.capacities(plain, torch.zeros(2, 3), calibration=[torch.randn(64, 3)]))
        ['0']
    """
    _check_numbers(model)
    anatomy = inspect(model, example, progress=progress)
    method = Paper(merge=None, calibration=calibration)
    plan = Plan(model, example, anatomy, method, evict=False, progress=progress)
    advice = waiting(anatomy, plan.left_alone)
    if advice and not plan.states:
        raise InvalidExample(f"{advice}: give a few inputs, hope.capacities(..., calibration=batches)")
    found = plan.method.measures(plan.known, plan.states)
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}
