"""Save a fine-tuned small network: its weights, with the structure of its run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from torch import Tensor, nn

from hope._util.locks import locked
from hope.actions import Action
from hope.errors import CannotWrite, CheckpointMismatch
from hope.rewrite.apply import outcome, shapes_after
from hope.storage.arrays import state
from hope.storage.record import PLAN
from hope.storage.run import Run, read_run, write_run
from hope.structure.anatomy import Anatomy
from hope.trace.blocks import Block, Replace

WRAPPERS = ("module.", "_orig_mod.")  # prefixes of DataParallel and torch.compile


def save_trained(folder: Path, run: Run, steps: int, small: nn.Module) -> Path:
    """Save a fine-tuned network, which must have the shapes of the run after so many steps.

    Raises:
        CheckpointMismatch: it has others; the message names the first.
    """
    weights = _unwrapped(state(small))
    _check_shapes(run.anatomy, run.trajectory.steps[:steps], weights, type(small).__name__)
    with locked(folder):
        if (folder / PLAN).exists() and not read_run(folder).record.trained:
            raise CannotWrite(
                f"{folder} contains a run, whose other budgets would be lost: save the trained network in "
                "its own folder"
            )
        trained = replace(run, held=None).changed(steps=steps, trained=True)
        return write_run(folder, trained, weights)


def _unwrapped(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights by their names without a wrapper around the model."""
    for prefix in WRAPPERS:
        if weights and all(name.startswith(prefix) for name in weights):
            return _unwrapped({name.removeprefix(prefix): value for name, value in weights.items()})
    return dict(weights)


def _check_shapes(
    anatomy: Anatomy, steps: Sequence[Action], weights: Mapping[str, Tensor], kind: str
) -> None:
    """Refuse weights whose shapes differ from the run's."""
    wanted = shapes_after(anatomy, steps)
    evicted = outcome(anatomy, steps).evicted
    left = {_bias(anatomy.block(name)) for name, bias in evicted.items() if bias is not None}
    found = {name: tuple(tensor.shape) for name, tensor in weights.items()}
    for name in [*found, *(name for name in wanted if name in anatomy.parameters)]:
        if name not in left and found.get(name) != wanted.get(name):
            have, want = (f"{some[name]}" if name in some else "not there" for some in (found, wanted))
            raise CheckpointMismatch(
                f"this {kind} must be the run's small network, got {name} {have} instead of {want}: save "
                "what was trained at the run's own budget, or name its budget (params=…)"
            )


def _bias(block: Block) -> str:
    """The name of the bias that an evicted block leaves."""
    way = block.way
    return f"{way.module if isinstance(way, Replace) else way.modules[-1]}.bias"
