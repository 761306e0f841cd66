"""What must hold of every run, whatever the network, checked while it is made. A violation is an error of
this package: it names a file with the steps, versions and hashes that reproduce it.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from hope._util.allocation import is_allocation
from hope._util.calls import Example, as_call, duplicate, evaluation
from hope._util.digest import digest_of, sealed
from hope._util.disk_cache import DiskCache
from hope._util.files import write_file
from hope._util.memory import size_of
from hope._version import __version__
from hope.actions import Action, Prune
from hope.errors import InvariantViolated, first_line
from hope.evaluate.fidelity import float_outputs
from hope.methods.method import Method
from hope.rewrite.apply import cut, outcome
from hope.storage.run import Run, fingerprint

LARGEST = 250_000_000  # bytes of a model that is run on a probe
WORK = 5_000_000_000  # its multiply-accumulates
CLOSE = 1e-3  # of the largest output
ROUNDING = -1e-9  # costs are no less


def check_run(run: Run, model: nn.Module, cache: DiskCache | None = None) -> None:
    """Costs are finite and not negative, and the model has the numbers that it had before the run.

    Args:
        cache: of a run with a checkpoint, next to which the file about a violation is written; otherwise it
            is in the temporary folder.

    Raises:
        InvariantViolated: they are not.
    """
    for number, step in enumerate(run.trajectory.steps):
        if not (isfinite(step.cost) and step.cost >= ROUNDING):
            raise _violated(
                f"costs must be finite and at least 0, got {step.cost} at step {number}", run, cache
            )
    if fingerprint(model) != run.record.original:
        raise _violated("the original must be as it was before the run, got other numbers", run, cache)


class Built(Protocol):
    """What a network was built from: an `Encoding`."""

    @property
    def run(self) -> Run:
        """Its steps."""

    @property
    def original(self) -> nn.Module:
        """The network before."""

    @property
    def example(self) -> Example | None:
        """An input of both."""

    @property
    def method(self) -> Method:
        """What chose the steps, and whether weights were fitted after them."""

    @property
    def cache(self) -> DiskCache | None:
        """See `check_run`."""


def checked(built: Built, small: nn.Module) -> nn.Module:
    """The small network, which has the size that the trajectory says. Cutting is silencing: on a random probe
    the outputs are those of the original in which nothing reads the removed neurons.

    The probe is left out for networks of more than 250 MB or 5 billion multiply-accumulates, without an
    example, and for channels of streams and evicted blocks. Where the remaining neurons compensate, what is
    probed is the cut before compensation.

    Raises:
        InvariantViolated: that is not so.
    """
    run, original, example, cache = built.run, built.original, built.example, built.cache
    steps, anatomy = run.trajectory.steps[: run.steps], run.anatomy
    found, wanted = sum(one.numel() for one in small.parameters()), run.trajectory.size(run.steps).parameters
    if found != wanted:
        raise _violated(
            f"the network after {run.steps} steps must have {wanted:,} parameters, got {found:,}", run, cache
        )
    size = anatomy.size()
    if example is None or not steps or size_of(original) > LARGEST or size.macs > WORK:
        return small
    removed = outcome(anatomy, steps).removed
    prunes = [Prune(name, neurons) for name, neurons in removed.items() if _is_plain(run, name, len(neurons))]
    exact = (
        not built.method.rewrite.refit
        and len(prunes) == len(removed)
        and all(_only_removes(run, step) for step in steps)
    )
    plain = small if exact else cut(duplicate(original), anatomy, prunes, shared=True)
    differs = _difference(original, plain, run, prunes, example)
    if differs:
        raise _violated(
            f"the cut network must equal the original whose removed neurons nothing reads, got {differs}",
            run,
            cache,
        )
    return small


def _is_plain(run: Run, name: str, neurons: int) -> bool:
    """Whether a neuron that nothing reads might as well be missing: no norm runs over it, and some are left,
    which an eviction of a segment of a chain does not promise.
    """
    unit = run.anatomy.unit(name)
    return (
        neurons < unit.neurons
        and unit.kind != "stream"
        and all(part.role != "norm" and part.even for part in unit.places)
    )


def _only_removes(run: Run, step: Action) -> bool:
    changes = step.compensates or step.weight_grid is not None or step.parent is not None
    return not changes and step.evicts is None and not step.entry_bits(run.anatomy)


def _difference(
    original: nn.Module, cut: nn.Module, run: Run, prunes: Sequence[Prune], example: Example
) -> str:
    """How the outputs differ on two probes; "" if they agree on one, or cannot be compared."""
    try:
        unread = duplicate(original).double()
        tensors = {**dict(unread.named_parameters()), **dict(unread.named_buffers())}
        with torch.no_grad():
            for prune in prunes:
                for part in run.anatomy.unit(prune.name).places:
                    if part.role == "in":
                        places = torch.from_numpy(part.index[list(prune.removed)].ravel())
                        tensors[part.tensor].index_fill_(part.dim, places.to(tensors[part.tensor].device), 0)
        small, said = duplicate(cut).double(), ""
        for seed in range(2):  # a router may flip at a tie, but not twice
            call = _probe(example, seed)
            want = _outputs(unread, call)
            if not all(bool(one.isfinite().all()) for one in want.values()):
                return ""
            said = _compared(small, call, want)
            if not said:
                return ""
        return said
    except Exception:  # the original's own, in double precision or on noise
        return ""


def _compared(small: nn.Module, call: Any, want: dict[str, Tensor]) -> str:
    try:
        got = _outputs(small, call)
    except Exception as error:
        if is_allocation(error):
            raise
        return f"an error: {first_line(error)}"
    for name, one in want.items():
        there = got.get(name)
        if there is None or there.shape != one.shape:
            return f"another shape of output {name or 0}"
        scale, off = float(one.abs().max()), float((there - one).abs().max())
        if not off <= CLOSE * scale:
            return f"a difference of {off:.1e} where the largest output is {scale:.1e}"
    return ""


def _probe(example: Example, seed: int) -> Any:
    """The example with noise in place of its numbers; whole numbers and masks stay."""
    generator = torch.Generator().manual_seed(seed)

    def noise(path: Any, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor) or not leaf.is_floating_point() or "mask" in pytree.keystr(path):
            return leaf
        return torch.randn(leaf.shape, generator=generator, dtype=torch.float64).to(leaf.device)

    return pytree.tree_map_with_path(noise, as_call(example))


def _outputs(model: nn.Module, call: Any) -> dict[str, Tensor]:
    args, kwargs = pytree.tree_map_only(Tensor, torch.clone, call)  # a forward may write into its input
    with evaluation(model), torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return {
            name: one.double() for name, one in float_outputs(model(*args, **kwargs)).items() if one.numel()
        }


def _violated(words: str, run: Run, cache: DiskCache | None) -> InvariantViolated:
    """The error, with a file of what reproduces it: plain data."""
    data = {
        "format": "hope-violation",
        "violated": words,
        "versions": {"hope": __version__, "torch": torch.__version__},
        "model": run.anatomy.model,
        "original": run.record.original,
        "settings": json.loads(msgspec.json.encode(dict(run.details.settings))),
        "taken": run.steps,
        "steps": json.loads(msgspec.json.encode(list(run.trajectory.steps))),
    }
    folder = cache.path.parent if cache is not None else Path(tempfile.gettempdir())
    path = folder / f"hope-violation-{digest_of(data)[:12]}.json"
    write_file(path, sealed(data, indent=1))
    return InvariantViolated(f"{words}: this must be a bug, so report it with {path}, which has the steps")
