"""`inspect`, `encode`, `capacities`, `save_finetuned`: from a model to a smaller one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from os import PathLike
from pathlib import Path
from typing import Any, Unpack

import torch
from torch import Tensor, nn

from hope._util.calls import Example
from hope._util.disk_cache import remove_checkpoint
from hope._util.finite import check_finite
from hope._util.progress import READ, busy, expect, run_of
from hope.encoding import Encoding
from hope.errors import InvalidExample, UnsupportedModel
from hope.evaluate.dry_run import verify
from hope.evaluate.estimate import Estimate
from hope.latency.runtime import Runtime
from hope.methods import Method, Paper, with_calibration
from hope.methods.method import NetworkStatistics
from hope.pipeline import Options, compress
from hope.schedule.budget import Budget, ReplayBudget, RunBudget, lists_budgets, optional_budget, run_budget
from hope.schedule.search_space import SearchSpace, usable, waiting
from hope.storage.finetuned import save_trained
from hope.storage.run import read_run
from hope.structure.analyse import read_model
from hope.structure.anatomy import Anatomy
from hope.trace.capture import check_readable


def inspect(
    model: nn.Module, example: Example | None = None, *, streams: bool = False, progress: bool | None = None
) -> Anatomy:
    """Analyse a network: neurons, blocks and streams, with a reason for everything that is kept.

    The model is not changed; it runs in evaluation mode, and its mode is restored.

    Args:
        model: any module that `torch.export` can capture.
        example: an input it can run on: a tensor, a tuple of positional inputs or a dict of keyword inputs.
        streams: whether channels of residual streams are prunable; such streams are then among the layers.
        progress: show progress on standard error; by default on a terminal or in a notebook.

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
    with busy(READ, progress):
        anatomy, candidates = read_model(model, example, streams=streams, progress=progress)
        return verify(model, example, anatomy, candidates)


@lists_budgets(RunBudget)
def encode(  # noqa: PLR0913
    model: nn.Module,
    example: Example | None = None,
    *,
    method: Method | str = "absorb",
    calibration: Iterable[Any] | str | None = None,
    evict: bool = True,
    streams: bool = False,
    exclude: Sequence[str] = (),
    multiple_of: int | None = None,
    uniform: bool = False,
    runtime: Runtime | str | None = None,
    executor: Executor | None = None,
    anatomy: Anatomy | None = None,
    statistics: NetworkStatistics | None = None,
    checkpoint: str | PathLike[str] | None = None,
    progress: bool | None = None,
    bits: int | Sequence[int] | str | None = "auto",
    group: int | None = None,
    round: str = "feedback",
    evaluate: Callable[[nn.Module], float] | None = None,
    **budget: Unpack[RunBudget],
) -> Encoding:
    """Compress a network to a budget, without data if it has batch norm. The model is not changed.

    Give exactly one budget: a fraction of the original (a float up to 1), or an amount.

    Args:
        model: a trained model that `hope.inspect` can analyse.
        example: an input it can run on.
        density: share (or number) of prunable neurons to keep.
        params: share (or number) of parameters to keep.
        macs: share (or number) of multiply-accumulates to keep; absorption then ranks steps by them.
        size: share of the bytes of all parameters and buffers to keep, or an amount: "10MB".
        latency: share of the original's time on the example, or a time: "12ms". Steps are ranked by the time
            that they save. Operators are measured once on this machine (and cached in `$HOPE_CACHE` or
            `~/.cache/hope`); the result is measured at the end (`encoding.latency`).
        steps: number of steps.
        fidelity: the smallest predicted fidelity (see `hope.fidelity`): the longest run that never falls
            below it, evaluated at 20 steps and then refined.
        drop: how much of the score of `evaluate` may be lost: the longest run that never loses more, found
            in the same way. `drop=0.01` of an accuracy is one point. A drop of the whole score is refused.
        method: `hope.Absorb()` (the remaining neurons compensate for removed ones), `hope.Paper()`, or a
            baseline, `hope.Score("l1-in")`. A name stands for a method with default options: "absorb",
            "paper", "l1-in", "l1-joint", "bn-scale", "random".
        calibration: what the method collects statistics on: a few unlabelled batches, "patterns", or "dream";
            short for `method=hope.Absorb(calibration=...)`.
        evict: whether blocks may be evicted: residual ones, and under `hope.Paper` those without a skip.
        streams: whether channels of residual streams are prunable. At a budget in parameters, MACs, bytes or
            time absorption prunes them only if that gives the higher fidelity; otherwise it adds a note.
        exclude: patterns (`*`, `?`) of module names that are not changed, neither inputs nor outputs.
        multiple_of: keep widths that are multiples of this (8, 16, 32). By default any width, or with
            `latency` multiples that suit the runtime.
        uniform: keep one width for all corresponding layers (the same layer of every block), so that a
            configuration can express it and `from_pretrained` loads what `encoding.model.save_pretrained`
            writes. Nothing is evicted then, and layers without a field in the configuration are kept. The
            widths minimise the sum of the layers' costs.
        runtime: the runtime of `latency`: "torch" (the default), "onnxruntime", or a `hope.Runtime` with a
            batch size and a number of threads.
        executor: any `concurrent.futures.Executor` that computes the units' paths; the result is the same.
        anatomy: the result of `hope.inspect`, to avoid a second analysis.
        statistics: the result of `method.collect(model, example, anatomy)`, to avoid collecting it again.
        checkpoint: a file for the state of an interrupted run; what is expensive is kept in files next to it.
            If it has the start of the same run, the run resumes. All are deleted when the run is finished.
        progress: show a progress bar; by default on a terminal or in a notebook.
        bits: the numbers of bits (2, 3, 4, 5, 6, 8) that weights may be rounded to. Without a budget
            nothing is removed, and every weight is rounded: `bits=8`. With `size`, neurons and bits are
            ranked by the bytes that they save; by default any number of bits, with None only neurons. Weights
            stay numbers of the model's type; the saved folder and ONNX files hold integers.
        group: how many inputs of a rounded weight share a scale: 32, 64 or 128, for language models. By
            default, and where it does not divide a weight's inputs, all inputs of an output do.
        round: "feedback" compensates for the error of each rounded entry in the entries that are not rounded
            yet; "nearest" rounds every entry on its own.
        evaluate: your own score: a function that takes a network and returns a number, larger for better
            ones, such as the accuracy on a validation set. `encoding.score`, `encoding.scores()`, the
            summary, the figure and the report then have it. It may compute gradients: decorate it with
            `@torch.no_grad()` if it does not need them.

    Raises:
        InfeasibleBudget: the budget cannot be reached; the message says what can.
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
        >>> hope.encode(net, torch.zeros(1, 3, 8, 8), size="1.5kB", bits=None).size.neurons
        5
        >>> encoding = hope.encode(net, torch.zeros(1, 3, 8, 8), latency=0.9)  # doctest: +SKIP
        >>> encoding.latency.predicted, encoding.latency.measured, encoding.latency.original  # doctest: +SKIP
        (0.031, 0.032, 0.038)
        >>> hope.encode(net, torch.zeros(1, 3, 8, 8), density=0.5, method=hope.Paper(merge="sum")).steps
        4
    """
    encoding = encode_resumable(
        model,
        example,
        run_budget(bits, budget),
        bits=bits,
        group=group,
        round=round,
        evaluate=evaluate,
        method=with_calibration(method, calibration),
        evict=evict,
        streams=streams,
        exclude=exclude,
        multiple_of=multiple_of,
        uniform=uniform,
        runtime=runtime,
        executor=executor,
        anatomy=anatomy,
        statistics=statistics,
        checkpoint=checkpoint,
        progress=progress,
    )
    if checkpoint is not None:
        _ = encoding.model  # a refit can be resumed, too
        remove_checkpoint(Path(checkpoint))
    return encoding


def encode_resumable(
    model: nn.Module,
    example: Example | None,
    budget: Budget | None,
    *,
    anatomy: Anatomy | None = None,
    statistics: NetworkStatistics | None = None,
    checkpoint: str | PathLike[str] | None = None,
    evaluations: int = 0,
    on_estimate: Callable[[Estimate], object] | None = None,
    **given: Any,
) -> Encoding:
    """`encode` that keeps its checkpoint until the run is saved.

    Args:
        evaluations: how many networks of the run are compared with the original afterwards.
        on_estimate: called with an estimate of the time and memory, before the work starts.
    """
    options = Options.of(budget, example, **given)
    _check_numbers(model)
    anatomy = usable(model, anatomy, options.streams)
    file = Path(checkpoint) if checkpoint is not None else None
    with run_of((READ,), options.progress) as run:
        if anatomy is None:
            anatomy = inspect(model, example, streams=options.streams)
        if run.visible or on_estimate is not None:
            found = options.estimate(model, example, anatomy, budget.unit if budget else "steps", evaluations)
            expect(found.seconds if found is not None else {})
            if found is not None and on_estimate is not None:
                on_estimate(found)
        return compress(model, example, anatomy, budget, options, statistics=statistics, checkpoint=file)


def _check_numbers(model: nn.Module) -> None:
    """Refuse inputs that the model cannot read, and parameters that are not finite."""
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
    """The capacity ‖f_i‖ of every neuron, per layer.

    Args:
        model: a trained model that `hope.inspect` can analyse.
        example: an input it can run on.
        calibration: a few unlabelled batches to measure input statistics on, as in `hope.Paper`. Layers
            without BN have no capacities without them.
        progress: show progress on standard error; by default on a terminal or in a notebook.

    Raises:
        InvalidExample: there is neither a BN nor calibration, so no capacity is known.

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
    space = SearchSpace.of(model, example, anatomy, method, evict=False, progress=progress)
    advice = waiting(anatomy, space.left_alone)
    if advice and not space.states:
        raise InvalidExample(f"{advice}: pass a few inputs, hope.capacities(..., calibration=batches)")
    found = space.measures()
    return {name: torch.tensor(values, dtype=torch.float64) for name, values in found.items()}


@lists_budgets(ReplayBudget)
def save_finetuned(
    folder: str | PathLike[str],
    source: Encoding | str | PathLike[str],
    small: nn.Module,
    **budget: Unpack[ReplayBudget],
) -> Path:
    """Save a compressed and fine-tuned network; `hope.load(folder, fresh_model)` loads it. Such a folder has
    one budget.

    Args:
        folder: the target: its own folder, not that of the run. An earlier save of this kind is replaced.
        source: the run of the network: the `Encoding`, or the folder it was saved in.
        small: the fine-tuned network, with the shapes of the run: a head with another number of
            outputs is refused.
        **budget: the network's budget (see `hope.encode`), if not the run's own.

    Raises:
        CheckpointMismatch: the network has other shapes than the run; the message names the first difference.
        CannotWrite: the folder contains a run, whose other budgets would be lost.

    Example:
        >>> import tempfile, torch, hope
        >>> linear, bn = torch.nn.Linear(3, 8), torch.nn.BatchNorm1d(8)
        >>> net = torch.nn.Sequential(linear, bn, torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()
        >>> encoding = hope.encode(net, torch.zeros(2, 3), density=0.25)
        >>> small = encoding.model.train()
        >>> small(torch.randn(16, 3)).square().sum().backward()
        >>> torch.optim.SGD(small.parameters(), lr=0.1).step()
        >>> folder = hope.save_finetuned(tempfile.mkdtemp(), encoding, small)
        >>> torch.equal(hope.load(folder, net)[0].weight, small[0].weight)
        True
    """
    run = source.as_run() if isinstance(source, Encoding) else read_run(source)
    asked = optional_budget(**budget)
    taken = run.steps if asked is None else run.trajectory.steps_at(asked)
    return save_trained(Path(folder), run, taken, small)
