"""One pass over a few unlabelled batches, observing a captured network: all that is measured."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sized
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hope._util.calls import as_call, evaluation, unlabelled
from hope._util.notes import note
from hope._util.progress import MEASURE, bar
from hope._util.tokens import check_tokens, unmasked
from hope.errors import InvalidExample, first_line
from hope.trace.program import Program
from hope.trace.trace import Observer, Trace


def observe(  # noqa: PLR0913
    model: nn.Module,
    program: Program,
    inputs: Iterable[Any],
    wanted: Collection[str],
    observer: Observer,
    *,
    trace: Trace,
    begin: Callable[[Any], None] = lambda _: None,
    total: int | None = None,
    synthetic: bool = False,
    progress: bool | None = None,
) -> None:
    """Run a network on batches in evaluation; the observer gets what the wanted operations return.

    Args:
        program: the network's.
        inputs: batches as the model takes them, or pairs of inputs and labels; labels are left out.
        observer: called with a name and a result, as soon as that is there.
        trace: the network's captured graphs.
        total: how many batches there are, where `inputs` has no length.
        synthetic: the batches are: no token of theirs is padding.
        progress: show how far it is; None shows it on a terminal or in a notebook.
    """
    batches, count = unlabelled(model, inputs), 0
    total = len(inputs) if isinstance(inputs, Sized) else total
    with evaluation(model), torch.no_grad(), bar(MEASURE, total, progress) as show:
        for batch in batches:
            check_batch(batch, count)
            check_tokens(model, batch, f"calibration: batch {count}")
            if not count and not synthetic and (words := unmasked(model, batch)):
                note(f"calibration: {words}")
            begin(batch)
            with running(f"batch {count}"):
                trace.observe(model, program, batch, wanted, observer)
            count += 1
            show(count)
    if not count:
        raise InvalidExample(
            "calibration must have at least one batch, got none: give an iterable of batches"
        )


def check_batch(batch: Any, number: int, what: str = "calibration") -> None:
    """Refuse a batch with entries that are not finite."""
    for value in pytree.tree_leaves(as_call(batch)):
        if isinstance(value, Tensor) and not bool(value.isfinite().all()):
            raise InvalidExample(
                f"{what}: batch {number} must have finite entries, got NaN or infinite ones: leave such "
                "inputs out"
            )


@contextmanager
def running(what: str, why: str = "calibration") -> Iterator[None]:
    """Whatever the user's forward raises, in words."""
    try:
        yield
    except Exception as error:
        raise InvalidExample(
            f"{why} must be batches that the model runs on, got {what} ({first_line(error)}): give "
            "them as the model takes them, without labels"
        ) from error
