"""`heal`: distil a small network towards its original, without labels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor, nn

from hope._util.calls import Example, duplicate
from hope._util.notes import note
from hope._util.numbers import plural
from hope._util.progress import bar, run_of
from hope.actions import Action
from hope.errors import InvalidExample, UnknownMethod
from hope.geometry.rounding import BITS, grid_of
from hope.healing.distillation import Distillation
from hope.healing.inputs import INPUTS, Inputs, synthetic
from hope.healing.loop import Duration, Loop
from hope.rewrite.apply import kept_places, outcome
from hope.rewrite.refit_checkpoint import Fitted
from hope.structure.anatomy import Anatomy

HEALING = "healing"
GROUPS = (0, 32, 64, 128)  # columns that share a scale, of rounded weights that are recognised


class HealOptions(TypedDict, total=False):
    """Options of `heal`."""

    minutes: float | None
    steps: int | None
    augment: bool
    checkpoint: str | PathLike[str] | None
    progress: bool | None


@dataclass(frozen=True)
class Settings:
    """What else is known of a small network.

    Attributes:
        example: an input, for synthetic ones.
        exclude: patterns of modules that are not changed.
        rows: module -> the channels of its result that are kept.
    """

    example: Example | None = None
    exclude: Sequence[str] = ()
    rows: Mapping[str, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls, anatomy: Anatomy, steps: Sequence[Action], example: Example | None, exclude: Sequence[str]
    ) -> Settings:
        """Of a network after steps of a run."""
        return cls(example, exclude, stream_rows(anatomy, steps))


@dataclass(frozen=True, eq=False)
class Healed:
    """A healed network. `print` it for a line.

    Attributes:
        model: the network; if nothing was gained, a copy of the input.
        before, after: its fidelity on the held-out inputs (1 is the original).
        steps: how many steps were taken.
        inputs, held: how many inputs it was trained on, and how many were held out.
        stopped: why it was stopped before its budget was used; "" otherwise.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> healed = hope.heal(net, net, [torch.randn(64, 4)], steps=5)  # there is nothing to heal
        >>> healed.steps, healed.inputs, healed.held
        (0, 56, 8)
    """

    model: nn.Module
    before: float
    after: float
    steps: int
    inputs: int
    held: int
    stopped: str = ""

    def __str__(self) -> str:
        what = f"held-out fidelity {self.before:.3f} -> {self.after:.3f}"
        if not self.after > self.before:
            what = f"nothing was gained (held-out fidelity {self.before:.3f}): the network is unchanged"
        end = f"; {self.stopped}" if self.stopped else ""
        return (
            f"healed: {what}, {plural(self.steps, 'step')}, {plural(self.inputs, 'input')} and {self.held} "
            f"held out{end}"
        )


def heal(  # noqa: PLR0913
    original: nn.Module,
    small: nn.Module,
    batches: Iterable[Any] | None = None,
    *,
    minutes: float | None = None,
    steps: int | None = None,
    example: Example | None = None,
    augment: bool = True,
    exclude: Sequence[str] = (),
    checkpoint: str | PathLike[str] | None = None,
    progress: bool | None = None,
) -> Healed:
    """Distil a small network towards its original by gradient descent, without labels. Neither is changed.

    The loss is the KL divergence of the outputs at a temperature, the deviation of the original's outputs
    (1 for tokens), plus the squared error at the ends of stages, where both networks have modules of the
    same names and shapes. Each of the two is divided by its value at the start, and rates are relative to the
    size of each weight, so that no weight of the loss and no rate is to be chosen. BN statistics are frozen,
    nothing is dropped. One input of eight is held out; the best state by the fidelity on these is kept. If
    none is better than the start, the result is a copy of the small network.

    Rounded weights stay on their grid. In processes of `torchrun` or `accelerate launch`, each takes a part
    of every batch.

    Args:
        original: the network before compression.
        small: the small network, of any origin, with the same outputs.
        batches: unlabelled batches, at least 16 inputs of one shape; a DataLoader of pairs (x, y) works.
            Without them synthetic inputs are made: four times as many as `hope.dream` makes by default, or
            texts that a language model writes.
        minutes, steps: how long; one of them is required. It stops earlier if nothing is gained.
        example: an input, for synthetic ones.
        augment: whether images are flipped, shifted and mixed at random.
        exclude: patterns (`*`, `?`) of modules that are not changed. Parameters that do not require gradients
            are not changed either.
        checkpoint: a file for the state of an interrupted call. The same call resumes it, and with `steps`
            and one thread gives the same result to the bit. It is deleted at the end.
        progress: show a progress bar; by default on a terminal or in a notebook. Ctrl-C ends the call
            with the best network so far.

    Raises:
        InvalidExample: the inputs are too few or of different shapes, or the outputs of the two networks are.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> small = hope.cut(net, hope.inspect(net, torch.zeros(1, 4)), [hope.Prune("0", [5, 6, 7])])
        >>> healed = hope.heal(net, small, [torch.randn(64, 4)], steps=50)
        >>> healed.after >= healed.before
        True
    """
    options: HealOptions = {"minutes": minutes, "steps": steps, "augment": augment}
    options |= {"checkpoint": checkpoint, "progress": progress}
    return distilled(original, small, batches, Settings(example, exclude), **options)


def budget_of(minutes: float | None, steps: int | None) -> Duration:
    """The budget, given in minutes or in steps."""
    if (minutes is None) == (steps is None):
        raise UnknownMethod(
            "heal must have minutes= or steps=, got both or none: give minutes=10, or steps=1000"
        )
    if minutes is not None:
        number = isinstance(minutes, (int, float)) and not isinstance(minutes, bool)
        if not number or not 0 < minutes < math.inf:
            raise UnknownMethod(f"minutes must be a number above 0, got {minutes!r}: give minutes=10")
        return Duration(seconds=60.0 * minutes)
    if type(steps) is not int or steps < 1:
        raise UnknownMethod(f"steps must be a whole number from 1, got {steps!r}: give steps=1000")
    return Duration(steps=steps)


def distilled(  # noqa: PLR0913
    original: nn.Module,
    small: nn.Module,
    batches: Iterable[Any] | None,
    settings: Settings,
    *,
    minutes: float | None = None,
    steps: int | None = None,
    augment: bool = True,
    checkpoint: str | PathLike[str] | None = None,
    progress: bool | None = None,
) -> Healed:
    """What `heal` returns."""
    budget = budget_of(minutes, steps)
    with run_of((INPUTS, HEALING) if batches is None else (HEALING,), progress):
        if batches is None:
            batches = synthetic(original, settings.example, progress=progress)
        return _distilled(original, small, batches, settings, budget, augment, checkpoint)


def _distilled(
    original: nn.Module,
    small: nn.Module,
    batches: Iterable[Any],
    settings: Settings,
    budget: Duration,
    augment: bool,
    checkpoint: str | PathLike[str] | None,
) -> Healed:
    inputs, exclude = Inputs.of(original, batches), sorted(settings.exclude)
    train, held = inputs.split()
    file = None
    if checkpoint is not None:
        file = Fitted.of(Path(checkpoint), (original, small), [inputs.values], (exclude, augment, budget))
    healed = duplicate(small)
    with torch.inference_mode(False), torch.enable_grad():
        weights, grids = trainable(healed, exclude), grids_in(healed)
        masters = {
            name: one.detach().float().clone() if name in grids or one.dtype.itemsize < 4 else one
            for name, one in weights.items()
        }
        first = held.taken(torch.arange(2)).on(next(iter(weights.values())).device)
        distillation = Distillation(original, healed, first, settings.rows)
        loop = Loop(healed, distillation, train, held, budget, masters, grids, augment, file)
        with bar(HEALING, 1.0) as show:
            loop.run(show)
    if file is not None and not loop.interrupted:
        file.path.unlink(missing_ok=True)
    state = loop.state
    found = Healed(healed, state.before, state.best, state.steps, len(train), len(held), loop.stopped)
    if found.stopped or not found.after > found.before:
        note(str(found))
    return found


def stream_rows(anatomy: Anatomy, steps: Sequence[Action]) -> dict[str, Tensor]:
    """Module -> the channels of its result that are kept, of residual blocks whose stream is pruned."""
    kept = kept_places(anatomy, outcome(anatomy, steps))
    found = {}
    for block in anatomy.blocks:
        for part in anatomy.ends(block).values():
            if (part.tensor, part.dim) in kept:
                found[block.name] = kept[part.tensor, part.dim]
    return found


def trainable(model: nn.Module, exclude: Sequence[str]) -> dict[str, nn.Parameter]:
    """The parameters that are trained: floating, not frozen by the user, in no excluded module."""
    found = {
        name: one
        for name, one in model.named_parameters()
        if one.requires_grad and one.is_floating_point() and one.numel()
        if not any(fnmatchcase(name.rpartition(".")[0], pattern) for pattern in exclude)
    }
    if not found:
        raise InvalidExample("heal: the small network must have parameters to train, got none: unfreeze some")
    return found


def grids_in(model: nn.Module) -> dict[str, tuple[int, int, Tensor]]:
    """Name -> bits, group and scales of the weights that are rounded to a grid."""
    found = {}
    for name, weight in model.named_parameters():
        if weight.ndim < 2 or not bool(weight.any()):
            continue
        flat = weight.detach().cpu().flatten(1)
        first = flat[flat.any(dim=1)][:1]  # most weights are on no grid: one row shows it
        groups = [group for group in GROUPS if group < flat.shape[1]]
        some = [group for group in groups if grid_of(first, max(BITS), group) is not None]
        grids = ((bits, group, grid_of(flat, bits, group)) for group in some for bits in BITS)
        known = next(((bits, group, grid[1]) for bits, group, grid in grids if grid is not None), None)
        if known is not None:
            bits, group, scale = known
            found[name] = (bits, group, scale.double().to(weight.device))
    return found
