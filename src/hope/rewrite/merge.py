"""Replace two neurons by a parent: linear recipes on live weights."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from hope.errors import InvalidAction
from hope.rewrite.resize import get, owner
from hope.structure.steps import Merge
from hope.structure.units import Unit


def check(action: Merge, layer: Unit, model: nn.Module) -> None:
    """Refuse merges that no parent could stand for."""
    where = f"layer {layer.name}: neurons {action.keep} and {action.drop} cannot be merged"
    if layer.along or layer.channels != 1:
        raise InvalidAction(
            f"{where}: {', '.join(layer.along) or 'several channels'} would have to merge too; prune one"
        )
    paths = [consumer.path for consumer in layer.readers]
    norms = {step.name for path in paths for step in path if step.kind in ("bn", "norm")}
    if len(norms) > 1 or any(step.kind == "norm" for path in paths for step in path):
        raise InvalidAction(
            f"{where}: its consumers see it through {len(norms)} normalisations; prune one instead"
        )
    if layer.bn is not None:
        if any(path[0].kind != "bn" for path in paths):
            raise InvalidAction(
                f"{where}: {layer.bn} does not stand directly behind the filter; prune one instead"
            )
        norm = model.get_submodule(layer.bn)
        if getattr(norm, "weight", None) is None or getattr(norm, "running_var", None) is None:
            raise InvalidAction(f"{where}: {layer.bn} has no scale or statistics to write the parent into")
        if action.spread is None or action.spread < 0:
            raise InvalidAction(
                f"{where}: spread must be given and not negative where a BN follows ({layer.bn})"
            )
    for part in layer.places:
        module, _ = owner(model, part.tensor)
        if isinstance(module, nn.PReLU):
            slopes = get(model, part.tensor)[torch.from_numpy(part.index[[action.keep, action.drop], 0])]
            if slopes[0] != slopes[1]:
                raise InvalidAction(f"{where}: their slopes in {part.tensor} differ")


@torch.no_grad()
def write_parent(model: nn.Module, layer: Unit, action: Merge, *, clamp: bool = False) -> None:
    """Write the parent into the place of `keep`, in place. `drop` is left for the slicing to remove.

    Args:
        clamp: give it the BN numbers that the paper prints (see `Rewrite.clamp`).
    """
    check(action, layer, model)
    i, j = action.keep, action.drop
    own = next(part for part in layer.places if part.role == "out")
    weight = get(model, own.tensor)
    at = [int(own.index[n, 0]) for n in (i, j)]
    rows = [weight.select(own.dim, place).double() for place in at]
    module, attribute = owner(model, own.tensor)
    bias = getattr(module, "bias", None) if attribute == "weight" else None
    shifts = [
        bias[place].double() if isinstance(bias, Tensor) else weight.new_zeros((), dtype=torch.float64)
        for place in at
    ]
    if layer.bn is None:
        _write(weight, own.dim, at[0], _mix(action.rows, rows))
        shift = _mix(action.rows, shifts)
        if isinstance(bias, Tensor):
            bias[at[0]] = shift.to(bias.dtype)
    else:
        _through_bn(
            model.get_submodule(layer.bn),
            action,
            rows,
            shifts,
            [int(_bn_places(layer)[n]) for n in (i, j)],
            weight,
            own.dim,
            at[0],
            clamp,
        )
        if isinstance(bias, Tensor):
            bias[at[0]] = 0
    for part in layer.places:
        if part.role == "in":
            tensor = get(model, part.tensor)
            outs = [
                tensor.index_select(part.dim, torch.from_numpy(part.index[n]).to(tensor.device)).double()
                for n in (i, j)
            ]
            tensor.index_copy_(
                part.dim,
                torch.from_numpy(part.index[i]).to(tensor.device),
                _mix(action.outs, outs).to(tensor.dtype),
            )


def _bn_places(layer: Unit) -> Tensor:
    part = next(part for part in layer.places if part.tensor == f"{layer.bn}.running_var")
    return torch.from_numpy(part.index[:, 0])


def _through_bn(
    bn: nn.Module,
    action: Merge,
    rows: list[Tensor],
    shifts: list[Tensor],
    places: list[int],
    weight: Tensor,
    dim: int,
    at: int,
    clamp: bool,
) -> None:
    """The parent's filter and BN numbers, so that its signal has the mean β and the deviation s asked for.

    w_raw = w_eff, σ² = s², γ = √(s² + ε), μ = β − b. As the paper prints them (`clamp`): γ = s,
    σ² = max(0, s² − ε), and below the clamp no filter at all: the signal is then the constant β.
    """
    assert isinstance(bn, nn.modules.batchnorm._BatchNorm)
    assert bn.running_mean is not None
    assert bn.running_var is not None
    gain = [bn.weight[p].double() / torch.sqrt(bn.running_var[p].double() + bn.eps) for p in places]
    means = [bn.bias[p].double() for p in places]
    effective = [g * row for g, row in zip(gain, rows, strict=True)]
    offsets = [
        b - g * (bn.running_mean[p].double() - s)
        for b, g, p, s in zip(means, gain, places, shifts, strict=True)
    ]
    beta, b = _mix(action.rows, means), _mix(action.rows, offsets)
    square = float(action.spread or 0.0) ** 2
    still = clamp and square < bn.eps
    filters = _mix(action.rows, effective)
    _write(weight, dim, at, torch.zeros_like(filters) if still else filters)
    p = places[0]
    bn.running_var[p] = max(0.0, square - bn.eps) if clamp else square
    bn.weight[p] = square**0.5 if clamp else (square + bn.eps) ** 0.5
    bn.bias[p] = beta.to(bn.bias.dtype)
    bn.running_mean[p] = 0.0 if still else (beta - b).to(bn.running_mean.dtype)


def _mix(recipe: tuple[float, float], both: list[Tensor]) -> Tensor:
    return recipe[0] * both[0] + recipe[1] * both[1]


def _write(tensor: Tensor, dim: int, place: int, value: Tensor) -> None:
    tensor.select(dim, place).copy_(value.to(tensor.dtype))
