"""The configuration of a model of transformers after a cut: what others build the smaller model from.

Nothing of transformers is imported: a model that has a `config` and a `save_pretrained` is one. Whether a
configuration is right is tried: the model's class builds a model from it, without data, and the shapes
are compared.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice, product
from typing import Any, TypeAlias

import torch
from torch import nn

from hope._util.calls import configs
from hope.ops.attention import CONFIG_HEADS, HEAD_WIDTH, SHARED_HEADS, head_width
from hope.rewrite.experts import open_named, opened_in
from hope.schedule.width_constraints import Group, alike
from hope.structure.anatomy import Anatomy
from hope.trace.labels import Shape

WIDTHS = ("intermediate_size", "n_inner", "ffn_dim", "d_ff", "hidden_dim", "ffn_hidden_size", "d_inner")
BUILDS = 64  # models that are built at most

Fields: TypeAlias = (
    "dict[tuple[str, str], int]"  # (a configuration within the model's, or "", field) -> value
)
Change: TypeAlias = (
    "tuple[int, int, int]"  # of alike layers: neurons, channels of each, neurons that are left
)


def configured(model: nn.Module) -> bool:
    """Whether others build the model from its configuration."""
    return hasattr(model, "save_pretrained") and hasattr(getattr(model, "config", None), "to_dict")


def loadable(model: nn.Module) -> bool:
    """Whether others can load what `save_pretrained` writes: the configuration determines all shapes."""
    tensors = [*model.named_parameters(), *model.named_buffers()]
    return configured(model) and _builds(model, {}, {name: tuple(one.shape) for name, one in tensors})


def fields_after(model: nn.Module, anatomy: Anatomy, removed: Mapping[str, int]) -> Fields | None:
    """What the model's configuration must say after a cut; None if it cannot express it.

    Args:
        model: the original, or what was cut: its configuration is still the original's.
        removed: unit -> how many of its neurons go.
    """
    changes = _changes(anatomy, removed)
    parts = [part for name in removed for part in anatomy.unit(name).places]
    if changes is None or not configured(model) or not all(part.even for part in parts):
        return None
    shapes = _shapes(anatomy, removed)
    for fields in islice(_settings(model.config, changes), BUILDS) if changes else [{}]:
        if _builds(model, fields, shapes):
            return fields
    return None


def rewrite(small: nn.Module, fields: Fields | None) -> None:
    """Bring the configuration of a cut model up to date. It must be the model's own: a copy of a model has a
    copy of its configuration.
    """
    for (path, field), value in (fields or {}).items():
        target: Any = getattr(small.config, path) if path else small.config
        old = getattr(target, field, None)
        held = [getattr(module, "config", None) for module in small.modules()]
        for config in [target, *held]:  # a part may hold a copy of its own
            if type(config) is type(target) and getattr(config, field, None) == old:
                setattr(config, field, value)


def groups_of(model: nn.Module, anatomy: Anatomy) -> list[Group]:
    """Layers that are to keep one width, so that others can load the result: those that are alike, and all
    that one field of the configuration is for. Layers without a field are in no group.
    """
    groups = alike(anatomy)
    if not configured(model):
        return groups
    found = [_configurable(model, anatomy, group.names) for group in groups]
    other: dict[tuple[int, int], list[str]] = {}
    for group, configurable in zip(groups, found, strict=True):
        if configurable is None:
            unit = anatomy.unit(group.names[0])
            other.setdefault((unit.neurons, unit.channels), []).extend(group.names)
    found += [_configurable(model, anatomy, names) for names in other.values()]
    return [group for group in found if group is not None]


def _configurable(model: nn.Module, anatomy: Anatomy, names: Sequence[str]) -> Group | None:
    """These layers as a group, if config.json can express that they are narrower. Some classes of
    transformers accept only numbers of heads that divide the width of the stream.
    """
    unit = anatomy.unit(names[0])
    heads = _are_heads(model.config, (unit.neurons, unit.channels, unit.neurons - 1))
    tried = range(1, unit.neurons if heads else min(2, unit.neurons))
    counts = [n for n in tried if fields_after(model, anatomy, dict.fromkeys(names, n)) is not None]
    return Group(tuple(names), frozenset(counts) if heads else None) if counts else None


def _changes(anatomy: Anatomy, removed: Mapping[str, int]) -> set[Change] | None:
    """How alike layers change; None if they change differently."""
    found = set()
    for group in alike(anatomy):
        lost = {removed.get(name, 0) for name in group.names}
        if len(lost) > 1:
            return None
        unit, count = anatomy.unit(group.names[0]), lost.pop()
        if count:
            found.add((unit.neurons, unit.channels, unit.neurons - count))
    return found


def _shapes(anatomy: Anatomy, removed: Mapping[str, int]) -> dict[str, Shape]:
    """The shapes of all parameters and buffers after a cut."""
    shapes = {name: list(shape) for name, shape in anatomy.shapes.items()}
    for name, count in removed.items():
        for part in anatomy.unit(name).places:
            shapes[part.tensor][part.dim] -= part.each * count
    return {name: tuple(shape) for name, shape in shapes.items()}


def _settings(config: Any, changes: set[Change]) -> Iterator[Fields]:
    """What the configuration might say, the likeliest first; unchanged, it expresses no change."""
    slots: list[list[Fields]] = []
    for path, one in zip(["", *_paths(config)], configs(config), strict=True):
        for field, value in (one.to_dict() if one is not None else {}).items():
            if field.endswith(WIDTHS) and (value is None or isinstance(value, int)):
                slots.append([{(path, field): width} for change in sorted(changes)
                              for width in _widths(change, value)])  # fmt: skip
        slots += [_heads(one, path, field, changes) for field in CONFIG_HEADS if _whole(one, field)]
    yield from (
        {place: value for some in chosen for place, value in some.items()}
        for chosen in product(*[[*slot, {}] for slot in slots if slot])
        if any(chosen)
    )


def _widths(change: Change, value: int | None) -> list[int]:
    """What a field of this value might say: of a gate and values in one weight, a neuron has two channels."""
    old, each, left = change
    found = {old: left, old * each: left * each}
    return [found[value]] if value in found else [left * each] if value is None else []


def _are_heads(config: Any, change: Change) -> bool:
    """Whether alike layers are as many, and as wide, as heads of attention."""
    found = [
        _heads(one, "", field, {change})
        for one in configs(config)
        for field in CONFIG_HEADS
        if _whole(one, field)
    ]
    return change[1] > 1 and any(found)


def _heads(config: Any, path: str, field: str, changes: set[Change]) -> list[Fields]:
    """Fewer heads, in groups: those that share their keys and values."""
    heads = getattr(config, field)
    shared = next((name for name in SHARED_HEADS if _whole(config, name)), None)
    groups = getattr(config, shared) if shared else heads
    width = head_width(config, heads)
    found = []
    for old, each, left in sorted(changes):
        if old == groups and width and each % width == 0:
            fields = {(path, field): heads // groups * left, (path, HEAD_WIDTH): width}
            found.append(fields | ({(path, shared): left} if shared else {}))
    return found


def _whole(config: Any, field: str) -> bool:
    value = getattr(config, field, None)
    return isinstance(value, int) and value > 0


def _paths(config: Any) -> list[str]:
    return list(getattr(type(config), "sub_configs", None) or {})


def _builds(model: nn.Module, fields: Fields, shapes: Mapping[str, Shape]) -> bool:
    """Whether the model's class builds these shapes from its configuration with these fields."""
    config: Any = copy.deepcopy(model.config)
    for (path, field), value in fields.items():
        setattr(getattr(config, path) if path else config, field, value)
    found = _built(_Recipe(type(model), repr(config.to_dict()), opened_in(model), config))
    return found is not None and all(found.get(name, shape) == shape for name, shape in shapes.items())


@dataclasses.dataclass(frozen=True)
class _Recipe:
    """What a model is built from."""

    kind: type[nn.Module]
    text: str  # of the configuration
    opened: frozenset[str]
    config: Any = dataclasses.field(compare=False)


@lru_cache(maxsize=BUILDS)
def _built(recipe: _Recipe) -> Mapping[str, Shape] | None:
    """The shapes of a model that is built without data, once; None if its class refuses the numbers."""
    try:
        if hasattr(recipe.config, "validate"):  # as whoever saves it does
            recipe.config.validate()
        with torch.random.fork_rng(devices=[]), torch.device("meta"):
            built = recipe.kind(recipe.config)
            open_named(built, recipe.opened)
    except Exception:  # whatever a class says to such numbers
        return None
    every = [*built.named_parameters(remove_duplicate=False), *built.named_buffers(remove_duplicate=False)]
    return {name: tuple(tensor.shape) for name, tensor in every}
