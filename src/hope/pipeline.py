"""From an anatomy to an encoding: statistics, search space, schedule, rewrite; each stage makes a value that
the next one reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any

from torch import nn

from hope._util.calls import Example, duplicate
from hope._util.digest import digest_of
from hope._util.disk_cache import DiskCache, using
from hope._util.hashing import hash_inputs
from hope._util.memory import PART, allowed, share_weights, size_of
from hope._util.progress import MEASURE, TIME, busy
from hope.actions import Action
from hope.encoding import Encoding
from hope.errors import UnknownMethod
from hope.evaluate.along import least_score, score
from hope.evaluate.estimate import Estimate, estimate
from hope.evaluate.eviction_search import ordered, with_evictions
from hope.evaluate.measurements import Measurements
from hope.evaluate.sensitivity import with_sensitivities
from hope.evaluate.stream_choice import choose_streams, without_streams
from hope.invariants import check_run
from hope.latency.latency_model import LatencyModel
from hope.latency.measure import latency_model, runtime_for
from hope.latency.runtime import Runtime, machine
from hope.latency.timing import Timing
from hope.methods import Method, named
from hope.methods.calibration import has_data
from hope.methods.method import NetworkStatistics
from hope.rewrite.apply import outcome
from hope.rewrite.config import configured, groups_of
from hope.schedule.bit_options import BitOptions, bits_for
from hope.schedule.bits import check_readers, groups_note, readers, roundings, with_readers
from hope.schedule.budget import Budget
from hope.schedule.cost_model import CostModel
from hope.schedule.resume import Resume, RunCheckpoint
from hope.schedule.run_to_budget import Collected, run_to_budget
from hope.schedule.search_space import SearchSpace, check_patterns, search_space
from hope.schedule.width_constraints import check_multiple, check_uniform
from hope.storage.run import Details, Run, fingerprint
from hope.structure.anatomy import Anatomy

NOT_LOADABLE = (
    "config.json cannot express per-layer widths, so from_pretrained would fail: "
    "use encoding.save and hope.load, or uniform=True"
)


@dataclass(frozen=True)
class Options:
    """What a run is asked for besides its budget, checked. See `hope.encode`."""

    method: Method
    evict: bool = True
    streams: bool = False
    exclude: tuple[str, ...] = ()
    multiple_of: int | None = None
    uniform: bool = False
    runtime: Runtime | None = None
    executor: Executor | None = None
    progress: bool | None = None
    bits: BitOptions = field(default_factory=BitOptions)
    evaluate: Callable[[nn.Module], float] | None = None

    @classmethod
    def of(  # noqa: PLR0913
        cls,
        budget: Budget | None,
        example: Example | None,
        *,
        method: Method | str = "absorb",
        evict: bool = True,
        exclude: Sequence[str] = (),
        runtime: Runtime | str | None = None,
        bits: int | Sequence[int] | str | None = "auto",
        group: int | None = None,
        round: str = "feedback",
        **rest: Any,
    ) -> Options:
        """Options as they are given; what does not go together is refused.

        Raises:
            UnknownMethod: there is no such method, runtime or option.
        """
        _check_evaluate(budget, rest.get("evaluate"))
        multiple_of = rest.get("multiple_of")
        check_multiple(1 if multiple_of is None else multiple_of)
        uniform = check_uniform(rest.get("uniform", False), rest.get("streams", False))
        patterns = (exclude,) if isinstance(exclude, str) else tuple(exclude)
        where = runtime_for(budget, runtime, example) if budget is not None else None
        engine = where.engine if where is not None else ""
        counts = bits_for(budget, bits, named(method).quantises, engine)
        rounded = BitOptions(counts, 0 if group is None else group, round)
        how: dict[str, Any] = {"exclude": patterns, "runtime": where, "bits": rounded}
        return cls(named(method), evict and not uniform, **how, **rest)

    def estimate(
        self, model: nn.Module, example: Example | None, anatomy: Anatomy, unit: str, evaluations: int
    ) -> Estimate | None:
        """What the run needs; None where a model does not run on several inputs."""
        with suppress(Exception):  # whatever the model's forward raises; the run reports it where it matters
            how: dict[str, Any] = {"evict": self.evict, "bits": len(self.bits.counts), "unit": unit}
            return estimate(model, example, anatomy, self.method, evaluations=evaluations, **how)
        return None


def _check_evaluate(budget: Budget | None, evaluate: object) -> None:
    """Refuse a score that cannot be computed, and a budget of a score without one."""
    if evaluate is not None and not callable(evaluate):
        raise UnknownMethod(
            f"evaluate must be a function of a model, got {type(evaluate).__name__}: def evaluate(model): "
            "return accuracy"
        )
    if evaluate is None and budget is not None and budget.kind.scored:
        raise UnknownMethod(
            "drop must have a score, got no evaluate=: pass a function of a model that returns its score, "
            "or fidelity=0.9"
        )


def compress(
    model: nn.Module,
    example: Example | None,
    anatomy: Anatomy,
    budget: Budget | None,
    options: Options,
    *,
    statistics: NetworkStatistics | None = None,
    checkpoint: Path | None = None,
) -> Encoding:
    """Compress a network whose structure is known: statistics, search space, schedule, rewrite.

    Args:
        budget: None rounds every weight and removes nothing.
        statistics: what `Method.collect` returned for this network, to save collecting it again.
    """
    identity = fingerprint(model)
    cache = None
    if checkpoint is not None:
        cache = DiskCache(
            checkpoint, cache_settings(identity, example, options, given=statistics is not None)
        )
    with using(cache):
        return _compress(model, example, anatomy, budget, options, statistics, identity, cache)


def cache_settings(original: str, example: Example | None, options: Options, *, given: bool) -> str:
    """A hash of what the values of a run depend on; one that no other run has, if that cannot be hashed.

    Args:
        given: whether statistics were passed in.
    """
    depends = {**vars(options), "method": options.method.to_dict(), "example": hash_inputs([example])}
    depends |= {"executor": None, "progress": None, "evaluate": None, "original": original}
    unknown = given or depends["method"].get("calibration") == "batches"
    return digest_of({"depends": repr(sorted(depends.items())), "only": token_hex() if unknown else ""})


def _compress(
    model: nn.Module,
    example: Example | None,
    anatomy: Anatomy,
    budget: Budget | None,
    options: Options,
    statistics: NetworkStatistics | None,
    identity: str,
    cache: DiskCache | None,
) -> Encoding:
    check_patterns(model, anatomy, options.exclude)
    if budget is None:
        check_readers(readers(anatomy, options.exclude))
    if statistics is None:
        with busy(MEASURE, options.progress):
            statistics = options.method.collect(model, example, anatomy, progress=options.progress)
    space, unused = priced(model, example, statistics, budget, options)
    budget = budget or Budget("steps", sum(len(one.steps) for one in space.roundings))
    space.check(budget, options.multiple_of or 1)
    large = size_of(model) > allowed() / PART
    original = share_weights(model) if large else duplicate(model)
    measurements = Measurements(original, example, anatomy, statistics.inputs, options.progress)
    if budget.kind.scored and options.evaluate is not None:  # it is refused before the run
        measurements.scores[0] = score(options.evaluate, duplicate(original))
        least_score(budget, measurements.scores[0])
    settings = settings_of(options, space)
    file = run_checkpoint(cache.path if cache is not None else None, identity, settings, space)
    found, notes = schedule(original, space, budget, options, measurements, file)
    if budget.is_measured and options.multiple_of is None:
        settings["widths"] = "chosen"
    settings["multiple_of"] = found.multiple_of
    run = Run.of(
        identity,
        found.trajectory,
        space.method.to_dict(),
        steps=0,
        held=space.statistics.input_statistics,
        details=Details(space.measures(), space.left_alone, settings=settings),
        timing=Timing(options.runtime, machine(options.runtime)) if options.runtime is not None else None,
    )
    encoding = Encoding(
        run,
        space.method,
        original,
        example,
        (*space.notes(found.multiple_of), *unused, *notes),
        statistics.inputs,
        measurements,
        cache,
        large,
        options.evaluate,
    )
    encoding = finished(encoding, budget, found.multiple_of, options.progress)
    check_run(encoding.run, model, cache)
    return encoding


def priced(
    model: nn.Module,
    example: Example | None,
    statistics: NetworkStatistics,
    budget: Budget | None,
    options: Options,
) -> tuple[SearchSpace, tuple[str, ...]]:
    """What may be removed and rounded, with its costs, and notes; without a budget nothing is removed."""
    anatomy, method = statistics.anatomy, options.method.resolve(statistics)
    groups = groups_of(model, anatomy) if options.uniform else None
    weights = readers(anatomy, options.exclude) if options.bits.counts else {}
    how: dict[str, Any] = {"synthetic": method.rewrite.synthetic, "progress": options.progress}
    statistics = with_readers(statistics, weights, model, **how)
    share = method.share_of(statistics)
    rounding = roundings(statistics, weights, options.bits, share, progress=options.progress)
    notes = groups_note(anatomy, weights, options.bits.group)
    if budget is None:
        return SearchSpace(anatomy, method, statistics, roundings=tuple(rounding)), notes
    cost = cost_model(model, example, anatomy, budget, replace(options, method=method), statistics.inputs)
    if rounding and isinstance(cost, LatencyModel):
        rounding, notes = [], (f"weights are not rounded: {options.runtime} is not faster with integers",)
    how = {"evict": options.evict, "exclude": options.exclude, "groups": groups}
    return search_space(statistics, method, cost=cost, roundings=tuple(rounding), **how), notes


def run_checkpoint(
    path: Path | None, original: str, settings: Mapping[str, Any], space: SearchSpace
) -> RunCheckpoint | None:
    """The file for an interrupted run, resumed only by a run with the same settings."""
    if path is None:
        return None
    costs = space.cost.to_list() if space.cost is not None else []
    return RunCheckpoint(path, {"original": original, **settings, **({"latencies": costs} if costs else {})})


def cost_model(
    model: nn.Module,
    example: Example | None,
    anatomy: Anatomy,
    budget: Budget,
    options: Options,
    inputs: Sequence[Any] = (),
) -> CostModel | None:
    """What savings are counted by: the budget's resource where it is measured or the method ranks by it; else
    None, which counts parameters.
    """
    if options.runtime is not None:
        real = has_data(options.method)
        how: dict[str, Any] = {"integers": bool(options.bits.counts), "inputs": inputs if real else ()}
        return latency_model(model, example, anatomy, options.runtime, progress=options.progress, **how)
    resource = budget.resource
    if resource is None or not budget.ranks(options.method.by_budget):
        return None
    return resource.cost_model(model, example, anatomy)


def settings_of(options: Options, space: SearchSpace) -> dict[str, Any]:
    """What a run depends on besides its network, as plain data."""
    found: dict[str, Any] = {"method": space.method.to_dict(), "evict": options.evict}
    found["exclude"] = list(options.exclude)
    found |= {name: True for name in ("streams", "uniform") if getattr(options, name)}
    found |= options.bits.to_dict()
    if options.runtime is not None:
        return {**found, "runtime": options.runtime.to_dict()}
    return {**found, **({"ranked": space.cost.resource} if space.cost is not None else {})}


def schedule(
    model: nn.Module,
    space: SearchSpace,
    budget: Budget,
    options: Options,
    measurements: Measurements,
    file: RunCheckpoint | None,
) -> tuple[Collected, tuple[str, ...]]:
    """The actions that meet a budget, in order, and notes on the choice of streams."""
    progress = options.progress
    resume = file.read(space.anatomy, len(space.branches)) if file is not None else Resume()
    undecided = space.searches_evictions and (not resume.steps or resume.evictions is not None)
    unpriced = undecided and not ordered(resume)
    if space.method.needs_sensitivity and (unpriced or not space.searches_evictions):
        space = with_sensitivities(model, space, measurements.on_inputs, progress=progress)
    done: Sequence[Action] = resume.steps
    if undecided:
        fidelity = measurements.on_probes
        done = with_evictions(model, space, fidelity, resume, options.executor, file, progress)
    more: Iterator[Action] = iter(())
    if not space.searches_evictions:
        more = space.steps(executor=options.executor, done=done)
    multiples: Sequence[int] = (options.multiple_of or 1,)
    if space.cost is not None and options.multiple_of is None:
        multiples = space.cost.multiples
    how: dict[str, Any] = {"cost": space.cost, "groups": space.groups, "progress": progress}
    how["roundings"] = space.roundings
    found = run_to_budget(space.anatomy, more, budget, done, multiples, file, **how)
    if not (options.streams and space.method.evictions == "searched" and budget.is_cost):
        return found, ()
    some, rest = tuple(without_streams(space, found.steps)), without_streams(space, more)
    other = partial(run_to_budget, space.anatomy, rest, budget, some, multiples, **how)
    return choose_streams(model, space, budget, found, other, measurements.on_inputs)


def finished(encoding: Encoding, budget: Budget, multiple_of: int, progress: bool | None) -> Encoding:
    """A run ended at its budget, with notes if it could not end exactly there, or if transformers cannot load
    the result; measured where it was made for a latency.
    """
    encoding = encoding.truncated(budget, multiple_of, progress=progress)
    notes, model = [*encoding.notes], encoding.original
    if (
        encoding.run.details.settings.get("uniform")
        and budget.kind.counts_steps
        and encoding.steps != budget.value
    ):
        notes.append(f"{budget} is no stop of this run, whose layers go together: {encoding.steps} are taken")
    done = outcome(encoding.anatomy, encoding.trajectory.steps[: encoding.steps])
    if configured(model) and done.config_fields(model, encoding.anatomy) is None:
        notes.append(NOT_LOADABLE)
    encoding = replace(encoding, notes=tuple(notes))
    if (timing := encoding.run.record.timing) is not None:
        with busy(TIME, progress):
            encoding.measure_latency(timing.runtime)
    return encoding
