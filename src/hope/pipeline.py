"""From an anatomy to an encoding: statistics, search space, schedule, rewrite; each stage makes a value that
the next one reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
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
from hope.evaluate.estimate import Estimate, estimate
from hope.evaluate.eviction_search import ordered, with_evictions
from hope.evaluate.fidelity import Fidelity, images_for
from hope.evaluate.sensitivity import with_sensitivities
from hope.evaluate.stream_choice import choose_streams, without_streams
from hope.latency.latency_model import LatencyModel
from hope.latency.measure import latency_model, runtime_for
from hope.latency.runtime import Runtime
from hope.methods import Method, named
from hope.methods.base import NetworkStatistics
from hope.methods.calibration import has_data
from hope.rewrite.apply import outcome
from hope.rewrite.config import configured, groups_of
from hope.schedule.bits import BitOptions, Rounding, bits_for, readers, roundings, with_readers
from hope.schedule.budget import Budget
from hope.schedule.cost_model import CostModel
from hope.schedule.resume import Resume, RunCheckpoint
from hope.schedule.run_to_budget import Collected, run_to_budget
from hope.schedule.search_space import SearchSpace, check_patterns, search_space
from hope.schedule.width_constraints import check_multiple, check_uniform
from hope.storage.run import fingerprint
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
    only_bits: bool = False
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
        return cls(named(method), evict and not uniform, only_bits=budget is None, **how, **rest)

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
    if evaluate is None and budget is not None and budget.unit == "drop":
        raise UnknownMethod(
            "drop needs evaluate=, a function of a model that returns its score: pass it, or fidelity=0.9"
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
    """Compress a network whose structure is known.

    Args:
        statistics: what `Method.collect` returned for this network, to save collecting it again.
    """
    original = fingerprint(model)
    cache = None
    if checkpoint is not None:
        cache = DiskCache(
            checkpoint, cache_settings(original, example, options, given=statistics is not None)
        )
    with using(cache):
        return _compress(model, example, anatomy, budget, options, statistics, original, cache)


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
    original: str,
    cache: DiskCache | None,
) -> Encoding:
    check_patterns(model, anatomy, options.exclude)
    groups = groups_of(model, anatomy) if options.uniform else None
    if statistics is None:
        with busy(MEASURE, options.progress):
            statistics = options.method.collect(model, example, anatomy, progress=options.progress)
    method = options.method.resolve(statistics)
    weights = readers(anatomy, options.exclude) if options.bits.counts else {}
    statistics = with_readers(statistics, weights)
    rounding = roundings(
        statistics, weights, options.bits, method.share_of(statistics), progress=options.progress
    )
    budget = budget or Budget("steps", sum(len(one.steps) for one in rounding))
    cost = cost_model(model, example, anatomy, budget, replace(options, method=method), statistics.inputs)
    notes: tuple[str, ...] = ()
    if rounding and isinstance(cost, LatencyModel):
        rounding, notes = [], (f"weights are not rounded: {options.runtime} is not faster with integers",)
    space = search_space(
        statistics, method, evict=options.evict, exclude=options.exclude, groups=groups, cost=cost
    )
    if options.only_bits:
        space = replace(space, states=(), branches=(), left_alone={})
    space.check(budget, options.multiple_of or 1, rounding)
    settings = settings_of(options, space)
    file = None
    if cache is not None:
        measured = {"latencies": numbers} if cost is not None and (numbers := cost.to_list()) else {}
        file = RunCheckpoint(cache.path, {"original": original, **settings, **measured})
    judges = Judges(model, example, anatomy, statistics.inputs, options.progress)
    found, more = schedule(model, space, budget, options, judges, file, rounding)
    if budget.is_measured and options.multiple_of is None:
        settings["widths"] = "chosen"
    settings["multiple_of"] = found.multiple_of
    large = size_of(model) > allowed() / PART
    encoding = Encoding(
        anatomy,
        found.trajectory,
        0,
        method,
        space.left_alone,
        statistics.input_statistics,
        (*space.notes(found.multiple_of), *notes, *more),
        share_weights(model) if large else duplicate(model),
        example,
        method.measures(statistics, space.states),
        settings,
        statistics.inputs if method.rewrite.refit else (),
        judges.made,
        runtime=options.runtime,
        evaluate=options.evaluate,
        unchanged=original if large else None,
        cache=cache,
    )
    return finished(encoding, budget, found.multiple_of, options.progress)


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
    if resource is None or not (resource.measured or (resource.ranks and options.method.by_budget)):
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


class Judges:
    """Fidelity to the original, on synthetic probes and on given inputs; each is made when first needed."""

    def __init__(
        self,
        model: nn.Module,
        example: Example | None,
        anatomy: Anatomy,
        inputs: Sequence[Example],
        progress: bool | None,
    ) -> None:
        self._model, self._example, self._anatomy = model, example, anatomy
        self._inputs, self._progress = inputs, progress
        self._count = images_for(anatomy.size().macs)

    @cached_property
    def synthetic(self) -> Fidelity:
        """On probes that need no data."""
        how: dict[str, Any] = {"trace": self._anatomy.trace, "progress": self._progress}
        return Fidelity(self._model, self._example, self._anatomy.program, self._count, **how)

    @cached_property
    def best(self) -> Fidelity:
        """On the given inputs, or without any on probes."""
        if not self._inputs:
            return self.synthetic
        return Fidelity(self._model, self._example, count=self._count, inputs=self._inputs)

    @property
    def made(self) -> Fidelity | None:
        """The one on probes, if it was needed."""
        return self.__dict__.get("synthetic")


def schedule(
    model: nn.Module,
    space: SearchSpace,
    budget: Budget,
    options: Options,
    judges: Judges,
    file: RunCheckpoint | None,
    roundings: Sequence[Rounding] = (),
) -> tuple[Collected, tuple[str, ...]]:
    """The actions that meet a budget, in order, and what a user should know of the choice."""
    progress = options.progress
    begun = file.read(space.anatomy, len(space.branches)) if file is not None else Resume()
    undecided = space.searches_evictions and (not begun.steps or begun.evictions is not None)
    if space.method.needs_sensitivity and (
        not space.searches_evictions or (undecided and not ordered(begun))
    ):
        space = with_sensitivities(model, space, judges.best, progress=progress)
    if undecided:
        steps = with_evictions(model, space, judges.synthetic, begun, options.executor, file, progress)
        begun = Resume(tuple(steps))
    more: Iterator[Action] = iter(())
    if not space.searches_evictions:
        more = space.steps(executor=options.executor, done=begun.steps)
    multiples: Sequence[int] = (options.multiple_of or 1,)
    if space.cost is not None and options.multiple_of is None:
        multiples = space.cost.multiples
    how: dict[str, Any] = {"cost": space.cost, "groups": space.groups, "progress": progress}
    how["roundings"] = roundings
    found = run_to_budget(space.anatomy, more, budget, begun.steps, multiples, file, **how)
    if not (options.streams and space.method.evictions == "searched" and budget.is_cost):
        return found, ()
    some, rest = tuple(without_streams(space, found.steps)), without_streams(space, more)
    other = partial(run_to_budget, space.anatomy, rest, budget, some, multiples, **how)
    return choose_streams(model, space, budget, found, other, judges.best)


def finished(encoding: Encoding, budget: Budget, multiple_of: int, progress: bool | None) -> Encoding:
    """A run ended at its budget, with notes if it could not end exactly there, or if transformers cannot load
    the result; measured where it was made for a latency.
    """
    encoding = encoding.ended_at(budget, multiple_of, progress=progress)
    notes, model = [*encoding.notes], encoding.original
    if encoding.settings.get("uniform") and budget.unit == "steps" and encoding.steps != budget.value:
        notes.append(f"{budget} is no stop of this run, whose layers go together: {encoding.steps} are taken")
    done = outcome(encoding.anatomy, encoding.trajectory.steps[: encoding.steps])
    if configured(model) and done.config_fields(model, encoding.anatomy) is None:
        notes.append(NOT_LOADABLE)
    encoding = replace(encoding, notes=tuple(notes))
    if encoding.runtime is not None:
        with busy(TIME, progress):
            encoding.look_at_latency()
    return encoding
