"""`hope encode --curve`: fidelities and scores along a run, also of one that was saved before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from hope.encoding import Encoding

POINTS = 10


def draw(encoding: Encoding) -> None:
    """Compute the fidelities along a run, and the scores if it has a function for them."""
    encoding.fidelities(POINTS)
    if encoding.evaluate is not None:
        encoding.scores(POINTS)


def complete(
    out: Path, model: nn.Module, example: Any, method: Any, evaluate: Callable[[nn.Module], float] | None
) -> None:
    """Add what a finished run lacks to its record. Scores are computed again, since a function may have been
    changed. The networks of a trained run cannot be made again: its record stays as it is.

    Args:
        method: with the calibration batches of the run.
    """
    from hope._util.calls import unlabelled
    from hope._util.progress import EVALUATE, FIDELITY, run_of
    from hope.api import inspect
    from hope.encoding import Encoding
    from hope.evaluate.along import spaced
    from hope.evaluate.measurements import Measurements
    from hope.methods import method_from_dict
    from hope.methods.calibration import has_data
    from hope.storage.codec import write_record
    from hope.storage.record import PLAN, RUN
    from hope.storage.run import read_run

    run = read_run(out, model)
    known = dict(run.details.fidelities)
    lacks = not set(spaced(len(run.trajectory), run.steps, POINTS)) <= known.keys()
    if run.record.trained or not (lacks or evaluate):
        return
    with run_of((FIDELITY, EVALUATE) if evaluate else (FIDELITY,)):
        measured = Measurements(model, example, inspect(model, example))
        measured.fidelities |= known
        made_by = method_from_dict(run.record.method) or method
        data = list(unlabelled(model, method.calibration)) if has_data(method) else run.inputs()
        inputs = data if made_by.rewrite.refit else ()
        held = replace(run, held=run.input_statistics())
        encoding = Encoding(held, made_by, model, example, (), inputs, measured, evaluate=evaluate)
        draw(encoding)
    found = encoding.as_run(out, run.details.source).details
    if evaluate is None:
        found = replace(found, scores=run.details.scores)
    write_record(out / PLAN, RUN, run.changed(details=found).record)
