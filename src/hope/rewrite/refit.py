"""Layer-wise refit: both networks run side by side on the same inputs, and every weight of the small one, in
order of execution, is fitted anew, so that it computes from its present input what the original computed:

    minimise  E‖z + (s − ŝ) − (W'x̂ + c)‖² + λ‖W' − W‖²

with z the original's result, x̂ what the small network reads, and s − ŝ the drift of the stream that the
branch is added to, in units before the branch's BN. c is added to the BN's mean, or the bias. A weight of few
bits is rounded as soon as it is fitted. Both networks have the BN statistics of the inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from hope._util.calls import Example, duplicate, mode, unlabelled
from hope._util.finite import not_finite
from hope._util.notes import note
from hope._util.progress import DREAM, REFIT, bar, busy, run_of
from hope._util.tensors import get
from hope.actions import Action, Rewrite
from hope.actions.absorption import LEAST
from hope.errors import InvalidExample
from hope.methods.calibration import synthetic_batches
from hope.rewrite.apply import cut, finish, kept_places, on_grid, outcome, unfitted
from hope.rewrite.layer_sites import STATISTICS, LayerSite, common, every_row, gain, given_rows, taken
from hope.rewrite.normal_equations import NormalEquations
from hope.rewrite.refit_checkpoint import Fitted
from hope.statistics.bn_recalibration import recalibrated_copy, statistics, transfer_bn_stats
from hope.statistics.input_statistics import InputStatistics
from hope.statistics.observe import check_batch
from hope.statistics.token_weights import counts, mask_of, normed_adds, without_padding
from hope.structure.anatomy import Anatomy
from hope.trace.trace import Trace

# weight, or running mean -> which of the original's outputs the small network still has; all if not named
Rows: TypeAlias = "Mapping[str, Tensor | None]"


class LayerwiseRefit:
    """Two networks side by side, the second being fitted to the first.

    Args:
        rows: the original's sites -> which of its outputs the small network still has.
        fixed: patterns of modules that stay as they are.
        drift: branches make up for what the stream lacks.
        file: what an earlier attempt has fitted.
        rounding: weight -> what rounds it once it is fitted; those that follow are fitted to that, too.

    Attributes:
        before, now: the interpreters of the two.
        there, here: weight -> where it is used, in the one and in the other.
    """

    def __init__(  # noqa: PLR0913
        self,
        original: nn.Module,
        small: nn.Module,
        batches: Sequence[Example],
        rows: Callable[[Collection[LayerSite]], Rows],
        fixed: Collection[str],
        drift: bool,
        trace: Trace,
        file: Fitted | None,
        rounding: Mapping[str, Action],
    ) -> None:
        self.rounding = rounding
        self.masks, self.file = [mask_of(original, batch) for batch in batches], file
        self._variances: dict[str, Tensor] = {}  # variances of what BNs got in the original
        self.before = trace.interpreter(original, batches)
        self.now = trace.interpreter(small, batches, after=self._after)
        there, here = common(self.before.program, self.now.program, fixed)
        self.there, both = there, list(there)
        self.rows = rows(self.there.values())
        self.here = {here[name].position: here[name] for name in both}
        self.drifting = {n for n in both if drift and here[n].residual >= 0 and there[n].residual >= 0}
        adds = normed_adds(self.before.program)
        self.streams = {name: adds[name] for name in both if name in adds and not here[name].bn}
        self.before.keep(self.streams.values())
        self.before.keep(site.position for site in self.there.values())
        self.before.keep(there[name].residual for name in self.drifting)
        self.now.keep(here[name].residual for name in self.drifting)

    def run(self, show: Callable[[float], None]) -> None:
        """Fit every weight, in order."""
        for done, position in enumerate(sorted(self.here)):
            show(done)
            self.now.run_to(position)

    def _after(self, position: int) -> bool:
        """Fit the weight of an operation that has just been run."""
        site = self.here.get(position)
        if site is None:
            return False
        own = {name: get(self.now.model, name) for name in site.tensors}
        known = self.file.tensors if self.file is not None else {}
        same = (name in known and known[name].shape == tensor.shape for name, tensor in own.items())
        if all(same):  # an earlier attempt has come this far
            self._pass(site)
            for name, tensor in own.items():
                tensor.copy_(known[name])
            return True
        changed = self._fit(site)
        if self.file is not None:
            self.file.note(own)
        return changed

    def _pass(self, site: LayerSite) -> None:
        """Take what was kept for a weight that needs no fit: it is not asked for again."""
        self.before.get(self.there[site.weight].position)
        if site.weight in self.drifting:
            self.before.get(self.there[site.weight].residual)
            self.now.get(site.residual)
        if site.weight in self.streams:
            self.before.get(self.streams[site.weight])

    def _fit(self, site: LayerSite) -> bool:
        weight, model = get(self.now.model, site.weight), self.now.model
        read, said = self.now.value(site.reads), self.now.value(site.position)
        lacks = self._lacks(site, weight, said)  # one batch at a time is held
        total = sum(one.numel() for one in said) // max(1, len(weight))
        sums = NormalEquations(self.now.program[site.position], weight, total, seed=site.position)
        for x, lack, count in zip(read, lacks, self._counts(site, said), strict=True):
            sums.add(x, lack, count)
        rounding, constant = self.rounding.get(site.weight), bool(site.bn or site.bias)
        if rounding is None and not bool(sums.xr.any()) and not bool(sums.r.any()):
            return False  # it computes what the original computes
        change, shift = sums.solve(constant=constant)
        weight += change.reshape(weight.shape).to(weight)
        if rounding is not None:
            rounded = rounding.round_fitted(weight, sums.moments(constant=constant))
            shift -= sums.mean(rounded - weight)
            weight.copy_(rounded)
        if site.bn:
            mean = get(model, f"{site.bn}.running_mean")
            mean -= shift.to(mean)
            if site.weight not in self.drifting:
                self._repair(site, sums.variance(weight))
        elif site.bias:
            bias = get(model, site.bias)
            bias += shift.to(bias)
        return True

    def _counts(self, site: LayerSite, said: Sequence[Tensor]) -> list[Tensor | None]:
        """What each place counts, batch by batch (see `statistics/token_weights.py`)."""
        known: list[Tensor | None] = [None] * len(said)
        if site.weight in self.streams:
            streams = self.before.get(self.streams[site.weight])
            known = [counts(s).reshape(one.shape[:-1]) for s, one in zip(streams, said, strict=True)]
        together = zip(known, self.masks, said, strict=True)
        return [without_padding(count, mask, one.shape[:-1]) for count, mask, one in together]

    def _repair(self, site: LayerSite, variance: Tensor) -> None:
        """What a BN says keeps the deviation that the next layers expect: its variance follows."""
        before = self._variances[site.weight]
        alive = (before > 0) & (variance > LEAST * before)
        known = get(self.now.model, f"{site.bn}.running_var")
        known *= torch.where(alive, variance / before.clamp(min=1e-300), 1.0).to(known)

    def _lacks(self, site: LayerSite, weight: Tensor, said: Sequence[Tensor]) -> Iterator[Tensor]:
        """What the results of an operation lack, batch by batch, in the units of the original's."""
        there, rows = self.there[site.weight], self.rows.get(site.weight)
        channel = 1 if weight.ndim > 2 else -1
        self._restore(site, there, rows)
        wanted = self.before.get(there.position)
        if site.bn:
            self._variances[site.weight] = statistics(taken(wanted, rows, channel))[-1]
        lacks = (z - one for z, one in zip(taken(wanted, rows, channel), said, strict=True))
        if site.weight not in self.drifting:
            return lacks
        before, now = taken(self.before.get(there.residual), rows, channel), self.now.get(site.residual)
        state = self.now.model.state_dict()
        unit = gain(state, site).to(said[0])
        return (
            lack + (a - b) * unit.reshape([-1 if d == channel % a.ndim else 1 for d in range(a.ndim)])
            for lack, a, b in zip(lacks, before, now, strict=True)
        )

    def _restore(self, site: LayerSite, there: LayerSite, rows: Tensor | None) -> None:
        """The original's statistics in the BN after a weight, and its bias where that is added there."""
        names = [(f"{there.bn}.{one}", f"{site.bn}.{one}") for one in STATISTICS[1] if site.bn and there.bn]
        names += [(there.bias, site.bias)] if site.apart and there.apart else []
        for ours, theirs in names:
            old, new = get(self.before.model, ours), get(self.now.model, theirs)
            new.copy_(old if rows is None else old[rows])


def refit_layers(  # noqa: PLR0913
    original: nn.Module,
    small: nn.Module,
    batches: Sequence[Example],
    rows: Callable[[Collection[LayerSite]], Rows],
    *,
    fixed: Collection[str] = (),
    drift: bool = True,
    synthetic: bool = False,
    checkpoint: Path | None = None,
    settings: object = None,
    rounding: Mapping[str, Action] | None = None,
    trace: Trace | None = None,
    progress: bool | None = None,
) -> None:
    """Fit a small network to the original, in place.

    Args:
        batches: inputs for both.
        rows, fixed, drift, rounding: see `LayerwiseRefit`.
        synthetic: the inputs are (see `statistics/bn_recalibration.py`).
        checkpoint: a file to note what is fitted in; what an earlier attempt has noted is taken from it.
        settings: what else an attempt depends on.
    """
    trace, file = trace or Trace(), None
    if checkpoint is not None:
        file = Fitted.of(checkpoint, (original, small), batches, (sorted(fixed), drift, synthetic, settings))
        if file.whole:
            small.load_state_dict(file.tensors)
            return
    with run_of((REFIT,), progress):
        with busy(REFIT):
            stand = recalibrated_copy(original, batches, synthetic, trace)
        run = LayerwiseRefit(stand, small, batches, rows, fixed, drift, trace, file, rounding or {})
        norms = {f"{site.bn}.running_mean": run.rows.get(name) for name, site in run.there.items() if site.bn}
        left = {**norms, **run.rows}
        with mode(stand, training=False), mode(small, training=False), torch.no_grad():
            transfer_bn_stats(small, original, stand, left)
            with bar(REFIT, len(run.here)) as show:
                run.run(show)
            transfer_bn_stats(small, stand, original, left)
    if file is not None:
        file.finish({name: one for name, one in small.state_dict().items() if isinstance(one, Tensor)})


def compressed(  # noqa: PLR0913
    model: nn.Module,
    anatomy: Anatomy,
    steps: Sequence[Action],
    *,
    input_statistics: Mapping[str, InputStatistics] | None = None,
    rewrite: Rewrite | None = None,
    inputs: Sequence[Example] = (),
    fixed: Collection[str] = (),
    checkpoint: Path | None = None,
    progress: bool | None = None,
) -> nn.Module:
    """A smaller copy of a model, refitted if there are inputs for that.

    Args:
        model, anatomy, steps, input_statistics, rewrite: as `hope.cut` takes them.
        inputs: to fit weights on.
        fixed: patterns of modules that are not fitted.
        checkpoint: as `refit_layers` takes it.
    """
    cuts: dict[str, Any] = {"input_statistics": input_statistics, "rewrite": rewrite}
    small, ready = unfitted(model, anatomy, steps, **cuts), set[str]()
    if steps and inputs and rewrite is not None and rewrite.refit:
        kept = kept_places(anatomy, outcome(anatomy, steps)).items()
        rows = {tensor: left for (tensor, dim), left in kept if dim == 0}
        how: dict[str, Any] = {"synthetic": rewrite.synthetic, "checkpoint": checkpoint, "progress": progress}
        how["rounding"] = {step.name: step for step in steps if step.weight_grid is not None}
        how["settings"] = [(name, step.weight_grid) for name, step in how["rounding"].items()] or None
        refit_layers(model, small, inputs, lambda _: rows, fixed=fixed, trace=anatomy.trace, **how)
        lost = not_finite(small.state_dict(), [name for name, _ in small.named_parameters()])
        if lost is not None:
            note(f"{lost} would be NaN or infinite after the refit, so no weight is refitted")
            return cut(model, anatomy, steps, **cuts)
        ready = on_grid(small, steps)
    finish(small, anatomy, steps, **cuts, ready=ready)
    return small


def refit(
    original: nn.Module,
    small: nn.Module,
    inputs: Iterable[Example] | str,
    *,
    example: Example | None = None,
    kept: Mapping[str, Sequence[int]] | None = None,
    exclude: Sequence[str] = (),
    checkpoint: str | PathLike[str] | None = None,
    progress: bool | None = None,
) -> nn.Module:
    """Refit a pruned network to the original, whichever tool pruned it: layer-wise regression of every
    weight, in order of execution, onto the original's activations. No labels, no gradients. Neither model is
    changed.

    Args:
        original: the network before pruning.
        small: the pruned network: the same code, fewer channels in some layers. The kept channels are found
            by comparing BN parameters and biases, or filters.
        inputs: a few unlabelled batches; or without data, "patterns" or "dream", as in `hope.Absorb`.
        example: an input that the networks run on, for synthetic inputs.
        kept: for layers whose weights changed too much for that: module -> the kept positions of the
            original's outputs, in their order.
        exclude: patterns (`*`, `?`) of modules that are not changed.
        checkpoint: a file for the state of an interrupted refit, which resumes with the same networks and
            inputs. It is deleted when the refit is finished.
        progress: show a progress bar; by default on a terminal or in a notebook.

    Returns:
        A refitted copy of `small`. BNs after refitted weights have the original's statistics.

    Raises:
        InvalidAction: the kept outputs of a layer cannot be identified.

    Example:
        >>> import torch, hope
        >>> net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        >>> x = torch.randn(64, 4)
        >>> small = hope.cut(net, hope.inspect(net, x), [hope.Prune("0", [5, 6, 7])])
        >>> fitted = hope.refit(net, small, [x])
        >>> bool((fitted(x) - net(x)).square().sum() < (small(x) - net(x)).square().sum())
        True
    """
    synthetic, trace = isinstance(inputs, str), Trace()
    with run_of((DREAM, REFIT) if synthetic else (REFIT,), progress):
        if isinstance(inputs, str):
            inputs = synthetic_batches(inputs, original, example, trace, progress=progress)
        batches = list(unlabelled(original, inputs))
        if not batches:
            raise InvalidExample("inputs must have at least one batch for a refit, got none: give some")
        for number, batch in enumerate(batches):
            check_batch(batch, number, "refit")
        fitted, given = duplicate(small), given_rows(original, kept or {})
        refit_layers(
            original,
            fitted,
            batches,
            lambda sites: every_row(original, small, sites, given),
            fixed=exclude,
            synthetic=synthetic,
            checkpoint=None if checkpoint is None else Path(checkpoint),
            settings=sorted((name, list(rows)) for name, rows in (kept or {}).items()),
            trace=trace,
        )
    if checkpoint is not None:
        Path(checkpoint).unlink(missing_ok=True)
    return fitted
