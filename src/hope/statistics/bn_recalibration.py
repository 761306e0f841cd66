"""A network in the statistics of the inputs that it is shown.

The means and deviations of a few inputs differ from those that BNs remember: by chance, and of synthetic
inputs for other reasons. A fit to them would repair that difference instead of the effect of compression. So
the refit compares with a recalibrated copy, whose BNs have the statistics of exactly these inputs, layer
after layer: its signals have the scale that they have on real data. Afterwards the original's statistics are
put back.

On a user's inputs only the difference that chance does not explain is kept: chance makes the moments of N
independent inputs differ by about 1.5/N of the variance; of a larger difference d, the recalibrated copy
takes the part that chance explains.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from hope import ops
from hope._util.calls import Example, as_call, duplicate, mode
from hope._util.disk_cache import cached
from hope._util.hashing import hash_inputs
from hope.errors import InvalidExample
from hope.ops.norm import bn_of, is_bn, uses_of_bns
from hope.statistics.measured import PLACES
from hope.statistics.observe import check_batch, running
from hope.trace.interpreter import Interpreter
from hope.trace.trace import Trace

MEAN, VARIANCE = "running_mean", "running_var"
CHANCE = 1.5  # /N: what means and deviations of N independent inputs differ by, of the variance


def recalibrated_copy(
    model: nn.Module, batches: Sequence[Example], synthetic: bool = False, trace: Trace | None = None
) -> nn.Module:
    """A copy of a network whose BNs have the statistics of these inputs, all batches together, as far as they
    differ from what the BNs remember by chance. BNs that are used more than once stay as they are.

    Args:
        synthetic: they are, so that they differ in any case; what the BN remembers counts as one more input.
        trace: the network's captured graphs.

    >>> _ = torch.manual_seed(1)
    >>> net = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2)).eval()
    >>> out = recalibrated_copy(net, [torch.randn(128, 1, 8, 8)], synthetic=True)(torch.randn(99, 1, 8, 8))
    >>> out.var(dim=(0, 2, 3)).round().tolist()
    [1.0, 1.0]
    """
    for number, batch in enumerate(batches):
        check_batch(batch, number)
    copied = duplicate(model)
    name = f"recalibrated-{hash_inputs(list(batches))}-{synthetic}"
    found = cached(name, lambda: _recalibrated(copied, batches, synthetic, trace or Trace()))
    with torch.no_grad():
        for buffer, value in copied.named_buffers():
            if buffer in found:
                value.copy_(found[buffer])
    return copied


def _recalibrated(
    copied: nn.Module, batches: Sequence[Example], synthetic: bool, trace: Trace
) -> dict[str, Tensor]:
    """The statistics of a network's BNs after they were recalibrated, in place."""
    tensors = dict([*copied.named_parameters(), *copied.named_buffers()])
    changed: dict[str, Tensor] = {}
    with mode(copied, training=False), torch.no_grad():
        execution = _laid(copied, batches, trace, lambda position: recalibrate(position))
        uses = uses_of_bns(execution.program)
        norms = [
            (form.operation.position, form.inputs[0], bn_of(form.operation))
            for form in ops.forms(execution.program)
            if is_bn(form) and uses[bn_of(form.operation)] == 1
        ]
        waiting: dict[int, list[str]] = {}  # what BNs read -> these BNs, which are still to be run
        for _, reads, bn in norms:
            waiting.setdefault(reads, []).append(bn)

        def recalibrate(position: int) -> None:
            if position not in waiting:
                return
            bns, (inputs, counted, mean, variance) = waiting[position], statistics(execution.value(position))
            if not bool((mean.isfinite() & variance.isfinite()).all()):
                raise InvalidExample(
                    f"the inputs of {bns[0]} must be finite, got NaN or infinite ones: leave such inputs out"
                )
            for bn in bns:
                known = [tensors[f"{bn}.{name}"] for name in (MEAN, VARIANCE)]
                part = counted / (counted + 1)
                if not synthetic:
                    part = min(1.0, CHANCE / inputs / max(1e-12, _apart(mean, variance, *known)))
                for old, found in zip(known, (mean, variance), strict=True):
                    old += part * (found.to(old) - old)
                changed.update(
                    {f"{bn}.{name}": old for name, old in zip((MEAN, VARIANCE), known, strict=True)}
                )

        for position in sorted(position for position, _, _ in norms):
            execution.run_to(position)
    return changed


def _laid(
    copied: nn.Module, batches: Sequence[Example], trace: Trace, after: Callable[[int], None]
) -> Interpreter:
    """A network on its way; a batch that it cannot run on is named."""
    try:
        return trace.interpreter(copied, batches, after=after)
    except Exception:
        for number, batch in enumerate(batches):
            args, kwargs = as_call(batch)
            with running(f"batch {number}"):
                copied(*args, **kwargs)
        raise


def statistics(batches: Iterable[Tensor]) -> tuple[int, float, Tensor, Tensor]:
    """How many inputs there are, how many samples count, and mean and variance of every channel."""
    total = square = torch.zeros((), dtype=torch.float64)
    count = inputs = 0
    for batch in batches:
        rows = batch.transpose(0, 1).flatten(1)
        variance, mean = torch.var_mean(rows.float(), dim=1, correction=0)
        mean, variance = mean.double().cpu(), variance.double().cpu()
        total, square = total + rows.shape[1] * mean, square + rows.shape[1] * (variance + mean**2)
        count, inputs = count + rows.shape[1], inputs + len(batch)
    mean = total / count
    counted = inputs * max(1.0, count / inputs / PLACES)
    return inputs, counted, mean, (square / count - mean**2).clamp(min=0)


def _apart(mean: Tensor, variance: Tensor, known_mean: Tensor, known_variance: Tensor) -> float:
    """How far statistics are from what a BN remembers, in units of its variances, on average."""
    wanted, was = known_variance.double().cpu(), known_mean.double().cpu()
    alive = wanted > 1e-12 * wanted.max()
    gaps = (mean - was) ** 2 + (variance.sqrt() - wanted.sqrt()) ** 2
    return float((gaps / wanted)[alive].mean()) if bool(alive.any()) else 0.0


@torch.no_grad()
def transfer_bn_stats(
    small: nn.Module, before: nn.Module, after: nn.Module, rows: Mapping[str, Tensor | None]
) -> None:
    """Give the BNs of a network the statistics of another, in place; what sets them apart from the first's
    stays: differences of means, ratios of variances.

    Args:
        rows: name of a running mean -> which of its entries the small network still has; all by default.
    """
    old, new = dict(before.named_buffers()), dict(after.named_buffers())
    here = dict(small.named_buffers())
    for name in here.keys() & old.keys():
        module, _, last = name.rpartition(".")
        left = rows.get(f"{module}.{MEAN}" if module else MEAN)
        if last not in (MEAN, VARIANCE):
            continue
        a, b = (v if left is None else v[left.to(v.device)] for v in (old[name], new[name]))
        value = here[name]
        if last == MEAN:
            moved = value + (b - a)
        else:
            moved = torch.where(a > 0, value * (b / torch.where(a > 0, a, torch.ones_like(a))), value)
        value.copy_(torch.where(value == a, b, moved))
