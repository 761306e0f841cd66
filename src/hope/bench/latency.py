"""How much faster a compressed network answers: the original and its compressed forms, side by side.

All networks are measured in one process and in turns, so that whatever else the machine does meets all of
them: in every repeat each network runs once, and who is first changes from repeat to repeat. What counts is
the ratio of medians, not a time. Where one thread does everything, the processor's time counts: others do not
prolong it.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from hope.bench.budgets import Candidate
from hope.bench.latency_candidates import LatencyCandidate
from hope.bench.results import versions
from hope.errors import EnginesDisagree, InvalidExample, first_line
from hope.latency.runtime import ENGINES, Runtime, runtime_of
from hope.latency.stopwatch import Runner, Stopwatch, in_turns, typical

FORMAT, VERSION = "hope-bench-latency", 1
WARM_UPS = 3
TOLERANCE = 1e-3  # between the engines, in units of the largest answer


def runner(engine: str, model: nn.Module, inputs: Tensor, folder: Path) -> Runner:
    """The network in an engine, once its answers are known to be torch's."""
    runtime = runtime_of(Runtime(engine, batch=len(inputs), threads=torch.get_num_threads()))
    run = Stopwatch(runtime).runner(model, inputs, folder)
    if engine == "torch":
        return run
    with torch.inference_mode():
        want = model(inputs)
    if not isinstance(want, Tensor):
        raise InvalidExample(
            f"the model must return one tensor, got {type(want).__name__}: measure it with --engines torch"
        )
    got, largest = torch.from_numpy(run()[0]), float(want.abs().max())
    if want.shape != got.shape or not torch.allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE * largest):
        raise EnginesDisagree(
            f"answers of onnxruntime must be those of torch within {TOLERANCE:g} of the largest "
            f"({largest:.3g}), got others; nothing was timed: measure with --engines torch"
        )
    return run


def repeated(runners: Sequence[Runner], repeats: int, *, warm: bool = False) -> list[list[float]]:
    """Seconds of each runner in every repeat, in turns."""
    for _ in range(WARM_UPS):
        for run in runners:
            run()
    return in_turns(runners, 0.0, warm=warm, rounds=(repeats, repeats))


def summary(times: Sequence[float], original: Sequence[float]) -> dict[str, float]:
    """Median and quartiles in milliseconds, and the original's median over this one.

    >>> summary([0.001, 0.002, 0.003], [0.004, 0.004, 0.004])["speed-up"]
    2.0
    """
    low, middle, high = statistics.quantiles(times, n=4, method="inclusive")
    return {
        "median ms": 1e3 * middle,
        "lower quartile ms": 1e3 * low,
        "upper quartile ms": 1e3 * high,
        "speed-up": statistics.median(original) / middle,
    }


def check(batches: Sequence[int], repeats: int) -> None:
    """Refuse what cannot be measured, before any work."""
    if repeats < 2 or min(batches, default=0) < 1:
        raise InvalidExample(
            f"{repeats} repeats of batches {list(batches)} cannot be measured: give 2 repeats or more, and "
            "batches of 1 or more"
        )


def measure(
    networks: Sequence[Candidate],
    example: Tensor,
    *,
    batches: Sequence[int] = (1, 32),
    repeats: int = 30,
    engines: Sequence[str] = ENGINES,
    by_latency: LatencyCandidate | None = None,
    note: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Time the networks, the original first among them, on batches of noise.

    Args:
        networks: what `hope.bench.budgets.candidates` gives.
        example: an input; a batch has its shape but for the first dimension.
        repeats: how often each network runs, at least 2.
        engines: "torch" (eager), "onnxruntime". If the latter is missing, `note` is called with the reason.
        by_latency: further networks for each engine and batch, and what is predicted of all.
    """
    check(batches, repeats)
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for engine in engines:
        for batch in batches:
            generator = torch.Generator().manual_seed(batch)
            inputs = torch.randn(batch, *example.shape[1:], generator=generator)
            measured = list(networks)
            with tempfile.TemporaryDirectory() as folder:
                try:
                    if by_latency is not None:
                        measured += by_latency.more(engine, batch)
                    runners = [runner(engine, one.model, inputs, Path(folder)) for one in measured]
                except (EnginesDisagree, InvalidExample):
                    raise
                except Exception as error:  # a missing package, or an error of the exporter
                    notes.append(f"without {engine}: {first_line(error)}")
                    note(notes[-1])
                    break
                times = repeated(runners, repeats, warm=by_latency is not None)  # as predictions are meant
            for network, own in zip(measured, times, strict=True):
                row = {"engine": engine, "batch": batch, **network.facts, **summary(own, times[0])}
                if by_latency is not None:
                    row["fastest ms"] = 1e3 * typical(own)  # what is predicted
                    row["predicted ms"] = by_latency.predicted(engine, batch, network)
                rows.append(row)
    return {
        "format": FORMAT,
        "version": VERSION,
        "versions": versions("onnx", "onnxruntime"),
        "threads": torch.get_num_threads(),
        "input": list(example.shape[1:]),
        "repeats": repeats,
        "warm": by_latency is not None,
        "notes": notes,
        "rows": rows,
    }
