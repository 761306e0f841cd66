"""The measured surrogate: moments of what weights read, from one pass over a few unlabelled inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from hope._util.calls import as_call, mode
from hope._util.progress import bar
from hope.anatomy.anatomy import Anatomy
from hope.errors import InvalidExample, first_line
from hope.geometry.matrices import tap_distances
from hope.geometry.projection import variances
from hope.ops.reading import DEFAULT_DECAY
from hope.ops.weight import spatial
from hope.signals.intake import Intake, behind, stored


class _Sums:
    """First and second moments of a module's input, gathered batch by batch, and how neighbours relate."""

    def __init__(self, repeat: int, spatial: int) -> None:
        self.repeat, self.spatial = repeat, spatial
        self.count = 0
        self.total = self.square = torch.zeros(())
        self.near = self.own = 0.0

    def add(self, x: Tensor) -> None:
        x = x.detach().double().cpu()
        if self.spatial:
            self._neighbours(x)
            x = x.movedim(-self.spatial - 1, -1)
        if self.repeat > 1:
            x = x.reshape(*x.shape[:-1], -1, self.repeat).transpose(-1, -2)
        rows = x.reshape(-1, x.shape[-1])
        self.total = self.total + rows.sum(dim=0)
        self.square = self.square + rows.T @ rows
        self.count += len(rows)

    def _neighbours(self, x: Tensor) -> None:
        over = tuple(d for d in range(x.ndim) if d != x.ndim - self.spatial - 1)
        centred = x - x.mean(dim=over, keepdim=True)
        if x.shape[-1] > 1:
            self.near += float((centred[..., 1:] * centred[..., :-1]).mean())
            self.own += float((centred**2).mean())

    @property
    def mean(self) -> Tensor:
        return self.total / self.count

    @property
    def covariance(self) -> Tensor:
        return self.square / self.count - torch.outer(self.mean, self.mean)

    @property
    def decay(self) -> float:
        return min(0.99, max(0.0, self.near / self.own)) if self.own > 0 else DEFAULT_DECAY


def measured_intakes(
    model: nn.Module,
    anatomy: Anatomy,
    inputs: Iterable[Any],
    known: Mapping[str, Intake],
    *,
    total: int | None = None,
    progress: bool | None = None,
) -> dict[str, Intake]:
    """What every weight reads, measured on a few inputs.

    Args:
        inputs: batches as `example` takes them.
        known: intakes of the propagated surrogate, kept where nothing could be measured.
        total: how many batches there are, if that is known.
        progress: show how far it is; None shows it on a terminal.
    """
    sums: dict[str, _Sums] = {}
    handles = []
    for weight, (repeat, space) in _readers(model, anatomy).items():
        sums[weight] = one = _Sums(repeat, space)
        module = model.get_submodule(weight.rpartition(".")[0])
        handles.append(module.register_forward_pre_hook(lambda _, args, one=one: one.add(args[0])))
    count = 0
    try:
        with mode(model, training=False), torch.no_grad(), bar("measuring", total, progress) as show:
            for batch in inputs:
                _run(model, batch, count)
                count += 1
                show(count)
    finally:
        for handle in handles:
            handle.remove()
    if not count:
        raise InvalidExample("calibration: there were no inputs; give an iterable of batches")
    found = dict(known)
    for weight, one in sums.items():
        if one.count and not bool(one.square.isfinite().all()):
            raise InvalidExample(f"calibration: what {weight} reads is NaN or infinite on these inputs")
        if one.count:
            found[weight] = _intake(weight, one, model, anatomy, known.get(weight))
    return found


def _run(model: nn.Module, batch: Any, number: int) -> None:
    """Run a model on one batch, or say why that cannot be."""
    args, kwargs = as_call(batch)
    for value in (*args, *kwargs.values()):
        if isinstance(value, Tensor) and not bool(value.isfinite().all()):
            raise InvalidExample(
                f"calibration: batch {number} has entries that are NaN or infinite: leave such inputs out"
            )
    try:
        model(*args, **kwargs)
    except Exception as error:  # whatever the user's forward raises
        raise InvalidExample(
            f"calibration: the model cannot run on batch {number}: {first_line(error)}; "
            "give batches as the model takes them, without labels"
        ) from error


def _readers(model: nn.Module, anatomy: Anatomy) -> dict[str, tuple[int, int]]:
    """Weights whose modules can be listened to -> (places per channel, spatial dimensions)."""
    found = {}
    for layer in anatomy.layers:
        for part in layer.places:
            owner, _, attribute = part.tensor.rpartition(".")
            if part.role != "in" or attribute != "weight":
                continue
            module = model.get_submodule(owner)
            space = spatial(module)
            if space:
                found[part.tensor] = (1, space)
            elif space == 0 or len(anatomy.shapes[part.tensor]) == 2:
                repeat = part.index.shape[1] if layer.channels == 1 else 1
                found[part.tensor] = (repeat, 0)
    return found


def _intake(weight: str, one: _Sums, model: nn.Module, anatomy: Anatomy, known: Intake | None) -> Intake:
    part = next(p for layer in anatomy.layers for p in layer.places if p.tensor == weight and p.role == "in")
    tensor = dict(model.named_parameters())[weight]
    owner = weight.rpartition(".")[0]
    bn, bias = behind(anatomy).get(weight, ("", ""))
    if not bias and getattr(model.get_submodule(owner), "bias", None) is not None:
        bias = f"{owner}.bias"
    if known is not None:
        bn, bias = known.bn, known.bias
    taps = one.decay ** tap_distances(tuple(tensor.shape[2:]) if one.spatial else one.repeat)
    blank = torch.zeros(0)
    intake = Intake(
        weight, part.dim, stored(one.mean), stored(one.covariance), stored(taps), blank, one.repeat, bn, bias
    )
    return replace(
        intake, variance=stored(variances(intake.laid(tensor.cpu()), intake.taps, intake.covariance))
    )
