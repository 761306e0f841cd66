"""Where a program uses its weights, and which of the original's outputs a smaller network's weights still
have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn

from hope import ops
from hope._util.tensors import get
from hope.errors import InvalidAction
from hope.ops.norm import bn_of, is_bn
from hope.ops.uses import added_biases
from hope.ops.weight import is_weight
from hope.trace.program import Operation, Program, Ref, module_of, readers_of

FITTED = ("conv1d", "conv2d", "conv3d", "linear")
STATISTICS = (("weight", "bias"), ("running_mean", "running_var"))  # that identify channels


@dataclass(frozen=True)
class LayerSite:
    """Where a program uses a weight.

    Attributes:
        position: of the operation.
        reads: position of what it reads.
        weight, bias, bn: names, "" for none; the BN directly follows it.
        eps: of the BN.
        residual: position of what its result is added to, after the BN; -1 for nothing.
        apart: whether the bias is added by an operation of its own, so that the result does not have it.
        places: the result's sizes but for inputs and channels.
    """

    position: int
    reads: int
    weight: str
    bias: str
    bn: str
    eps: float
    residual: int
    apart: bool = False
    places: tuple[int, ...] = ()

    @property
    def tensors(self) -> tuple[str, ...]:
        """What a fit changes."""
        numbers = (f"{self.bn}.running_mean", f"{self.bn}.running_var") if self.bn else (self.bias,)
        return (self.weight, *(name for name in numbers if name))


def layer_sites(program: Program) -> dict[str, LayerSite]:
    """Weight -> where it is used. Weights that are used more than once are left out."""
    forms = [form for form in ops.forms(program) if form is not None]
    norms = {form.operation.position: form for form in forms if is_bn(form)}
    readers = readers_of(program)
    used = Counter(name for op in program for key, name in op.tensors.items() if key)
    found: dict[str, LayerSite] = {}
    added = added_biases(program)
    for form in forms:
        operation = form.operation
        if not is_weight(form) or operation.operator not in FITTED or used[operation.tensors["weight"]] > 1:
            continue
        end, bn, eps = operation.position, "", 0.0
        users = readers.get(end, [])
        if len(users) == 1 and users[0].position in norms:
            end = users[0].position
            bn, eps = bn_of(users[0]), norms[end].values[0]
        weight, bias = operation.tensors["weight"], operation.tensors.get("bias", "")
        apart = weight in added
        if apart:
            bias, end = added[weight]
        residual = _residual(program, end, readers.get(end, []))
        places = tuple(n for d, n in enumerate(operation.output) if d not in (0, form.channel))
        own = (operation.position, form.inputs[0], weight, bias, bn, eps, residual, apart, places)
        found[weight] = LayerSite(*own)
    return found


def common(before: Program, now: Program, fixed: Iterable[str]) -> list[dict[str, LayerSite]]:
    """The sites of two networks whose results can be compared, without those that match a pattern: what mixes
    the places of channels that were cut has fewer results.
    """
    there, here = layer_sites(before), layer_sites(now)
    both = (name for name in here.keys() & there.keys() if here[name].places == there[name].places)
    names = [name for name in both if not any(fnmatchcase(module_of(name), pattern) for pattern in fixed)]
    return [{name: sites[name] for name in names} for sites in (there, here)]


def _residual(program: Program, end: int, users: Sequence[Operation]) -> int:
    """What a result is added to, if nothing else happens to it."""
    if len(users) != 1 or users[0].operator != "add" or users[0].arguments.get("alpha") != 1:
        return -1
    sides = [users[0].arguments.get(name) for name in ("self", "other")]
    others = [side.position for side in sides if isinstance(side, Ref) and side.position != end]
    same = len(others) == 1 and program[others[0]].shape == program[end].shape
    return others[0] if same else -1


def taken(values: Sequence[Any], rows: Tensor | None, channel: int) -> Iterator[Tensor]:
    """What is left of the original's channels."""
    return (v if rows is None else v.index_select(channel, rows.to(v.device)) for v in values)


def gain(tensors: Mapping[str, Tensor], site: LayerSite) -> Tensor:
    """What one unit after the BN of a weight is before it; 0 where the BN's scale is 0."""
    if not site.bn:
        return torch.ones(len(tensors[site.weight]))
    deviation = torch.sqrt(tensors[f"{site.bn}.running_var"] + site.eps)
    scale = tensors.get(f"{site.bn}.weight", torch.ones_like(deviation))
    nonzero = scale.abs() > 1e-6 * scale.abs().max()
    return torch.where(nonzero, deviation / torch.where(nonzero, scale, torch.ones_like(scale)), 0.0)


def given_rows(original: nn.Module, kept: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """What a caller says is left, by modules of the original."""
    modules = dict(original.named_modules())
    for name in kept:
        if name not in modules:
            raise InvalidAction(
                f"kept must name modules of the original, got {name!r}: see original.named_modules()"
            )
    return {name: torch.as_tensor(list(places)) for name, places in kept.items()}


def kept_rows(
    original: nn.Module, small: nn.Module, site: LayerSite, given: Mapping[str, Tensor]
) -> Tensor | None:
    """The original's outputs that a small network's weight still has; None for all."""
    old, new = get(original, site.weight), get(small, site.weight)
    module = module_of(site.weight)
    if module in given:
        rows = given[module]
        if len(rows) != len(new) or not bool(((rows >= 0) & (rows < len(old))).all()):
            raise InvalidAction(
                f"kept[{module!r}] must be {len(new)} of {len(old)} outputs, got {rows.tolist()[:8]}: give "
                "the positions that were kept"
            )
        return rows
    if len(old) == len(new):
        return None
    identifying: list[tuple[str, ...]] = []
    if site.bn:
        identifying = [tuple(f"{site.bn}.{name}" for name in some) for some in STATISTICS]
    if site.bias:
        identifying.append((site.bias,))
    if old.shape[1:] == new.shape[1:]:
        identifying.append((site.weight,))
    for names in identifying:
        found = _matched(original, small, names)
        if found is not None:
            return found
    raise InvalidAction(
        f"the kept outputs of {module} must be found by its numbers, got no clear match: "
        f"give kept={{{module!r}: [...]}}, {len(new)} places out of {len(old)}"
    )


def every_row(
    original: nn.Module, small: nn.Module, found: Iterable[LayerSite], given: Mapping[str, Tensor]
) -> dict[str, Tensor | None]:
    """Name of a weight, or of a BN's running mean -> the original's outputs that are left; None for all."""
    rows: dict[str, Tensor | None] = {}
    for site in found:
        rows[site.weight] = left = kept_rows(original, small, site, given)
        if site.bn:
            rows[f"{site.bn}.running_mean"] = left
    old, new = dict(original.named_buffers()), dict(small.named_buffers())
    for name in new.keys() & old.keys() - rows.keys():
        module, _, last = name.rpartition(".")
        if last != "running_mean" or new[name].shape == old[name].shape:
            continue
        sets = [tuple(f"{module}.{number}" for number in some) for some in STATISTICS]
        matches = (given.get(module), *(_matched(original, small, names) for names in sets))
        rows[name] = next((match for match in matches if match is not None), None)
        if rows[name] is None:
            raise InvalidAction(
                f"the kept channels of {module} must be found by its numbers, got no clear match: "
                f"give kept={{{module!r}: [...]}}, {len(new[name])} places out of {len(old[name])}"
            )
    return rows


def _matched(original: nn.Module, small: nn.Module, names: Sequence[str]) -> Tensor | None:
    """Where the rows of some tensors of the small network stand in the original's; None if not every one of
    them stands in one place.
    """
    every = [dict([*net.named_parameters(), *net.named_buffers()]) for net in (original, small)]
    if not all(name in tensors for tensors in every for name in names):
        return None
    before, now = (
        torch.cat([tensors[name].detach().reshape(len(tensors[name]), -1) for name in names], dim=1)
        for tensors in every
    )
    same = torch.stack([(before == row).all(dim=1) for row in now])
    return same.double().argmax(dim=1) if bool((same.sum(dim=1) == 1).all()) else None
