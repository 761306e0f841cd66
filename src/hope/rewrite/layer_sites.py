"""Where a program uses its weights, and which of the original's outputs a smaller network's weights still
have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hope import ops
from hope.errors import InvalidAction
from hope.ops.norm import bn_of, is_bn
from hope.ops.uses import added_biases
from hope.ops.weight import is_weight
from hope.rewrite.apply import Outcome, lost_places
from hope.rewrite.resize import get
from hope.structure.anatomy import Anatomy
from hope.trace.blocks import Block, Replace
from hope.trace.program import Operation, Program, Ref, module_of, readers_of

FITTED = ("conv1d", "conv2d", "conv3d", "linear")
STATISTICS = (("weight", "bias"), ("running_mean", "running_var"))  # by which channels are told apart


@dataclass(frozen=True)
class LayerSite:
    """Where a program uses a weight.

    Attributes:
        position: of the operation.
        reads: position of what it reads.
        weight, bias, bn: names, "" for none; the BN is the one right behind it.
        eps: of the BN.
        beside: position of what its result is added to, behind the BN; -1 for nothing.
        apart: whether the bias is added by an operation of its own, so that the result does not have it.
    """

    position: int
    reads: int
    weight: str
    bias: str
    bn: str
    eps: float
    beside: int
    apart: bool = False

    @property
    def tensors(self) -> tuple[str, ...]:
        """What a fit changes."""
        numbers = (f"{self.bn}.running_mean", f"{self.bn}.running_var") if self.bn else (self.bias,)
        return (self.weight, *(name for name in numbers if name))


def spots(program: Program) -> dict[str, LayerSite]:
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
        behind = readers.get(end, [])
        if len(behind) == 1 and behind[0].position in norms:
            end = behind[0].position
            bn, eps = bn_of(behind[0]), norms[end].values[0]
        weight, bias = operation.tensors["weight"], operation.tensors.get("bias", "")
        apart = weight in added
        if apart:
            bias, end = added[weight]
        beside = _beside(program, end, readers.get(end, []))
        found[weight] = LayerSite(operation.position, form.inputs[0], weight, bias, bn, eps, beside, apart)
    return found


def _beside(program: Program, end: int, behind: Sequence[Operation]) -> int:
    """What a result is added to, if nothing else happens to it."""
    if len(behind) != 1 or behind[0].operator != "add" or behind[0].arguments.get("alpha") != 1:
        return -1
    sides = [behind[0].arguments.get(name) for name in ("self", "other")]
    others = [side.position for side in sides if isinstance(side, Ref) and side.position != end]
    same = len(others) == 1 and program[others[0]].shape == program[end].shape
    return others[0] if same else -1


def gain(tensors: Mapping[str, Tensor], spot: LayerSite) -> Tensor:
    """What a unit behind the BN of a weight is in front of it; 0 where nothing comes through."""
    if not spot.bn:
        return torch.ones(len(tensors[spot.weight]))
    deviation = torch.sqrt(tensors[f"{spot.bn}.running_var"] + spot.eps)
    scale = tensors.get(f"{spot.bn}.weight", torch.ones_like(deviation))
    heard = scale.abs() > 1e-6 * scale.abs().max()
    return torch.where(heard, deviation / torch.where(heard, scale, torch.ones_like(scale)), 0.0)


def given_rows(original: nn.Module, kept: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """What a caller says is left, by modules of the original."""
    modules = dict(original.named_modules())
    for name in kept:
        if name not in modules:
            raise InvalidAction(f"kept names {name!r}, which is no module of the original")
    return {name: torch.as_tensor(list(places)) for name, places in kept.items()}


def kept_rows(
    original: nn.Module, small: nn.Module, spot: LayerSite, given: Mapping[str, Tensor]
) -> Tensor | None:
    """The original's outputs that a small network's weight still has; None for all."""
    old, new = get(original, spot.weight), get(small, spot.weight)
    module = module_of(spot.weight)
    if module in given:
        rows = given[module]
        if len(rows) != len(new) or not bool(((rows >= 0) & (rows < len(old))).all()):
            raise InvalidAction(f"kept[{module!r}] must name {len(new)} of {len(old)} outputs")
        return rows
    if len(old) == len(new):
        return None
    told: list[tuple[str, ...]] = []
    if spot.bn:
        told = [tuple(f"{spot.bn}.{name}" for name in some) for some in STATISTICS]
    if spot.bias:
        told.append((spot.bias,))
    if old.shape[1:] == new.shape[1:]:
        told.append((spot.weight,))
    for names in told:
        found = _matched(original, small, names)
        if found is not None:
            return found
    raise InvalidAction(
        f"which outputs of {module} are left cannot be told from its numbers: "
        f"give kept={{{module!r}: [...]}}, {len(new)} places out of {len(old)}"
    )


def every_row(
    original: nn.Module, small: nn.Module, found: Iterable[LayerSite], given: Mapping[str, Tensor]
) -> dict[str, Tensor | None]:
    """Name of a weight, or of a BN's running mean -> the original's outputs that are left; None for all."""
    rows: dict[str, Tensor | None] = {}
    for spot in found:
        rows[spot.weight] = left = kept_rows(original, small, spot, given)
        if spot.bn:
            rows[f"{spot.bn}.running_mean"] = left
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
                f"which channels of {module} are left cannot be told from its numbers: "
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


def outcome_of(
    original: nn.Module, small: nn.Module, anatomy: Anatomy, given: Mapping[str, Tensor]
) -> Outcome:
    """What was done to a network, as its numbers tell.

    Args:
        given: module -> the places of the original's outputs that are left, where numbers do not tell.
    """
    there = dict([*small.named_parameters(), *small.named_buffers()])
    gone = [name for name in anatomy.shapes if name not in there]
    blocks = [block for block in anatomy.blocks if block.residual and any(map(block.removes, gone))]
    evicted = {
        block.name: _left_behind(there, block)
        for block in blocks
        if not any(other.contains(block) for other in blocks if other is not block)
    }
    unknown = [name for name in gone if not any(block.removes(name) for block in blocks)]
    if unknown:
        raise InvalidAction(
            f"the small network has no {unknown[0]}, which no evicted residual block explains"
        )
    removed = {}
    uses = spots(anatomy.program)
    for unit in anatomy.layers:
        weight = next((w for w in unit.written if not any(block.removes(w) for block in blocks)), "")
        part, spot = unit.at(weight, "out"), uses.get(weight)
        if part is None or spot is None:
            continue
        rows = kept_rows(original, small, spot, given)
        if rows is not None:
            if bool((rows.diff() <= 0).any()):
                raise InvalidAction(f"the outputs of {unit.name} stand in another order than the original's")
            lost = ~torch.isin(torch.from_numpy(part.index), rows).all(dim=1)
            removed[unit.name] = tuple(lost.nonzero()[:, 0].tolist())
    for block in (anatomy.block(name) for name, bias in evicted.items() if bias is not None):
        left, gone_too = iter(evicted[block.name] or ()), lost_places(anatomy, block, removed)
        evicted[block.name] = tuple(0.0 if k in gone_too else next(left) for k in range(block.channels))
    return Outcome(removed, evicted)


def _left_behind(there: Mapping[str, Tensor], block: Block) -> tuple[float, ...] | None:
    """The bias that an evicted block left."""
    where = (way.module for way in [block.way] if isinstance(way, Replace))
    names = [f"{module}.bias" for module in (*where, *getattr(block.way, "modules", ())[-1:])]
    found = next((there[name] for name in names if name in there), None)
    return None if found is None else tuple(found.detach().double().flatten().tolist())
