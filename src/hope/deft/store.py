"""Save a tuning as its differences from the source model, and load it: JSON and safetensors, no pickle.

A folder holds `adapter.json` and `adapter-….safetensors`. Of every parameter only trainable entries, and
those that merging and severing rewrote, are stored, and of the statistics those that differ; the rest is in
the source checkpoint, identified by its hash. The new head is stored as a whole. (Severing by absorption
rewrites all inputs of core neurons, so the folder is then about as large as the model.) The JSON is written
last and names the arrays by their hash, so a folder is either unchanged or complete.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from hope._util.calls import duplicate
from hope._util.notes import note
from hope._util.tensors import get
from hope.deft.grow import Growth
from hope.deft.heads import (
    build,
    check_recipe,
    head_differences,
    head_of,
    known_recipe,
    new_head,
    plain_recipe,
    tensors_of,
)
from hope.deft.masks import in_head
from hope.deft.penalty import Penalty
from hope.deft.tuning import Tuning
from hope.errors import CheckpointMismatch, DamagedFolder, InvalidHead
from hope.storage.adapter import ADAPTER, PLAN, AdapterRecord, Head, read_adapter, write_adapter
from hope.storage.arrays import fingerprint, read_arrays
from hope.storage.codec import SENSELESS, damaged

__all__ = ["PLAN", "load", "save"]


def save(tuning: Tuning, folder: str | PathLike[str]) -> Path:
    """Write a tuning; see `Tuning.save_pretrained`."""
    folder = Path(folder)
    tensors = {
        **_moved(tuning),
        **_heads(tuning),
        **_statistics(tuning),
        **_penalised(tuning),
        **_bits(tuning),
        **_grown(tuning),
    }
    new, penalty = head_of(tuning.model, tuning.head), tuning._penalty
    write_adapter(
        folder,
        {name: value.detach().cpu().clone() for name, value in tensors.items()},
        method=tuning.method,
        original=tuning.original,
        head=Head(
            name=tuning.head,
            kind=type(new).__name__,
            recipe=plain_recipe(new),
            shapes={name: list(value.shape) for name, value in tensors_of(new).items()},
        ),
        frozen={name: _outline(mask) for name, mask in tuning.frozen.items()},
        columns={name: _outline(mask) for name, mask in tuning.columns.items()},
        masks_source=tuning.masks_source,
        holds_statistics=tuning.holds_statistics,
        anchored=sorted(penalty.anchors) if penalty is not None else [],
        notes=list(tuning.notes),
        cost=tuning.cost,
        shares_head=tuning.shares_head,
    )
    whole = sum(tensor.nbytes for tensor in [*tuning.model.parameters(), *tuning.model.buffers()])
    stored = sum(file.stat().st_size for file in folder.glob("adapter*"))
    note(f"{folder}: {stored:,} bytes, {stored / max(1, whole):.0%} of the model's")
    return folder


def _moved(tuning: Tuning) -> dict[str, Tensor]:
    """The trainable or rewritten entries of parameters, and their positions if not all."""
    found: dict[str, Tensor] = {}
    for name, parameter in tuning.model.named_parameters():
        if in_head(name, tuning.head):
            continue
        value = parameter.detach().cpu()
        stored = (~tuning.frozen[name]).expand(value.shape)
        if name in tuning.rewritten:
            stored = stored | tuning.rewritten[name]
        if bool(stored.any()):
            found[f"values/{name}"] = value[stored]
            if not bool(stored.all()):
                found[f"places/{name}"] = _pack(stored)
    return found


def _heads(tuning: Tuning) -> dict[str, Tensor]:
    """The new head, and the source's if it was rewritten or compensates for slack."""
    new = head_of(tuning.model, tuning.head)
    found = {f"head/{name}": value for name, value in tensors_of(new).items()}
    for name, value in tuning.source_head.state_dict().items():
        mask = tuning.rewritten.get(f"{tuning.head}.{name}")
        if mask is not None:
            found[f"source values/{name}"] = value.detach().cpu()[mask]
            found[f"source places/{name}"] = _pack(mask)
    found |= {f"absorbed head/{name}": value for name, value in tuning.absorbed_head.items()}
    return found


def _statistics(tuning: Tuning) -> dict[str, Tensor]:
    """Running statistics: the source's if they were rewritten, the present ones if they differ."""
    found: dict[str, Tensor] = {}
    for name, value in tuning.statistics.items():
        if name in tuning.rewritten:
            found[f"statistics/{name}"] = value
        if not in_head(name, tuning.head):
            buffer = get(tuning.model, name).detach()
            if bool((buffer != value.to(buffer.device)).any()):
                found[f"buffers/{name}"] = buffer
    return found


def _penalised(tuning: Tuning) -> dict[str, Tensor]:
    """The weight of each entry in the penalty."""
    importance = tuning._penalty.importance if tuning._penalty is not None else {}
    return {f"importance/{name}": weight for name, weight in importance.items()}


def _grown(tuning: Tuning) -> dict[str, Tensor]:
    """The positions of a wider network."""
    positions = tuning.growth.positions if tuning.growth is not None else {}
    return {f"grown/{dim}/{tensor}": old for (tensor, dim), old in positions.items()}


def _bits(tuning: Tuning) -> dict[str, Tensor]:
    """The masks with two values."""
    kinds = {"frozen": tuning.frozen, "columns": tuning.columns}
    return {
        f"{kind}/{name}": _pack(mask)
        for kind, masks in kinds.items()
        for name, mask in masks.items()
        if _varies(mask)
    }


def load(folder: str | PathLike[str], model: nn.Module, *, head: nn.Module | None = None) -> Tuning:
    """Rebuild a saved tuning on top of its source model; see `Tuning.from_pretrained`.

    Example:
        >>> import tempfile, torch, hope
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
        ... )
        >>> part = hope.deft.partition(net, torch.zeros(2, 4), percentile=20)
        >>> tuning = hope.deft.prepare(net, part, head=2)
        >>> folder = tuning.save_pretrained(tempfile.mkdtemp())
        >>> again = hope.deft.load(folder, net)
        >>> x = torch.randn(5, 4)
        >>> torch.equal(again.model.eval()(x), tuning.model.eval()(x))
        True

    Raises:
        DamagedFolder: the folder is incomplete, altered, not one of ours, or from a newer version.
        CheckpointMismatch: the model is not the source model that was prepared.
        InvalidHead: the head is not like the saved one.
    """
    folder = Path(folder)
    record = read_adapter(folder)
    if fingerprint(model) != record.original:
        raise CheckpointMismatch(
            f"this {type(model).__name__} must have the weights that {folder} was made from, got others: "
            "load the source checkpoint first"
        )
    try:
        arrays = read_arrays(folder, record.arrays)
    except DamagedFolder:  # unless another save has replaced the tuning and removed its file meanwhile
        if read_adapter(folder) == record:
            raise
        return load(folder, model, head=head)
    try:
        for name, array in arrays.items():
            if not bool(array.isfinite().all()):
                raise ValueError(f"{name} must be finite, got NaN or infinite entries")
        places = {key.partition("/"): old for key, old in _under(arrays, "grown").items()}
        grown = Growth({(key[2], int(key[0])): old for key, old in places.items()}) if places else None
        base = duplicate(model) if grown is None else grown.widen(model)
        _check_masks(record, arrays, base)
        new = _head(record.head, arrays, base, head)
        return _rebuild(record, arrays, base, new, grown)
    except InvalidHead:
        raise
    except SENSELESS as error:
        raise damaged(folder / PLAN, ADAPTER, error) from error


def _check_masks(record: AdapterRecord, arrays: Mapping[str, Tensor], model: nn.Module) -> None:
    """Refuse masks that do not broadcast to the model's tensors, before any is created.

    Raises:
        LookupError, AttributeError: there is no such tensor.
    """
    prefix = f"{record.head.name}."
    for kind, head, outlines in (("frozen", "", record.frozen), ("columns", prefix, record.columns)):
        for name, outline in outlines.items():
            if isinstance(outline, bool):
                continue
            shape, bits = get(model, f"{head}{name}").shape, arrays[f"{kind}/{name}"]
            fits = len(outline) == len(shape) and all(
                m in (1, n) for m, n in zip(outline, shape, strict=True)
            )
            if not fits or bits.numel() != -(-math.prod(outline) // 8):
                raise ValueError(
                    f"a mask of {name} must broadcast to {tuple(shape)}, got {reprlib.repr(outline)}"
                )


@torch.no_grad()
def _write(tensor: Tensor, values: Tensor, places: Tensor | None) -> None:
    """Write values at their positions; everywhere without any."""
    mask = torch.ones(tensor.shape, dtype=torch.bool) if places is None else _unpack(places, tensor.shape)
    tensor.masked_scatter_(mask.to(tensor.device), values.to(tensor))


def _rebuild(
    record: AdapterRecord,
    arrays: Mapping[str, Tensor],
    model: nn.Module,
    head: nn.Module,
    growth: Growth | None,
) -> Tuning:
    originals = {name: value.detach().clone() for name, value in model.named_parameters()}
    rewritten = _rewrite(model, record.head.name, arrays, originals)
    importance = _under(arrays, "importance")
    penalty = None
    if importance:
        penalty = Penalty(model, importance, {name: originals[name] for name in record.anchored})
    tuning = Tuning(
        model,
        method=record.method,
        head=record.head.name,
        new_head=head,
        frozen=_masks(arrays, "frozen", record.frozen),
        columns=_masks(arrays, "columns", record.columns),
        freeze_statistics=record.holds_statistics,
        original=record.original,
        masks_source=record.masks_source,
        rewritten=rewritten,
        penalty=penalty,
        absorbed_head=_under(arrays, "absorbed head"),
        notes=record.notes,
        cost=record.cost,
        growth=growth,
        shares_head=record.shares_head,
    )
    with torch.no_grad():
        for name, value in _under(arrays, "head").items():
            get(model, f"{record.head.name}.{name}").copy_(value)
        for name, value in _under(arrays, "buffers").items():
            get(model, name).copy_(value)
    return tuning


@torch.no_grad()
def _rewrite(
    model: nn.Module, head: str, arrays: Mapping[str, Tensor], originals: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """Write the differences into a source model; returns their positions."""
    rewritten: dict[str, Tensor] = {}
    for name, values in _under(arrays, "values").items():
        _write(get(model, name), values, arrays.get(f"places/{name}"))
        rewritten[name] = (get(model, name) != originals[name]).cpu()
    for name, values in _under(arrays, "source values").items():
        tensor, places = get(model, f"{head}.{name}"), arrays[f"source places/{name}"]
        _write(tensor, values, places)
        rewritten[f"{head}.{name}"] = _unpack(places, tensor.shape)
    for name, values in _under(arrays, "statistics").items():
        buffer = get(model, name)
        rewritten[name] = buffer.cpu() != values
        buffer.copy_(values)
    return rewritten


def _head(saved: Head, arrays: Mapping[str, Tensor], source: nn.Module, given: nn.Module | None) -> nn.Module:
    """The given module, or one built like the saved one; refused if it differs from the saved one."""
    old = head_of(source, saved.name)
    if not saved.name:
        return new_head(old, given, saved.name, source)
    known = known_recipe(saved, old)
    if given is None and known is None:
        raise InvalidHead(
            f"head must be given, since the saved head is a custom {saved.kind}: pass a module built like "
            "it with head="
        )
    if given is None:
        check_recipe(known or {}, _under(arrays, "head"))
    made = build(known or {}, old) if given is None else new_head(old, given, saved.name, source)
    wrong = head_differences(saved, known, made)
    if wrong:
        raise InvalidHead(
            f"head must be built like the saved {saved.kind}, got other parts ({'; '.join(wrong)}): pass "
            "such a module with head="
        )
    return made


def _under(arrays: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {k.partition("/")[2]: value for k, value in arrays.items() if k.partition("/")[0] == kind}


def _varies(mask: Tensor) -> bool:
    return bool(mask.any()) and not bool(mask.all())


def _outline(mask: Tensor) -> list[int] | bool:
    """The shape of a stored mask, and its value if it has only one."""
    return list(mask.shape) if _varies(mask) else bool(mask.any())


def _masks(
    arrays: Mapping[str, Tensor], kind: str, outlines: Mapping[str, list[int] | bool]
) -> dict[str, Tensor]:
    return {
        name: torch.tensor(outline)
        if isinstance(outline, bool)
        else _unpack(arrays[f"{kind}/{name}"], outline)
        for name, outline in outlines.items()
    }


def _pack(mask: Tensor) -> Tensor:
    """A mask as bits."""
    return torch.from_numpy(np.packbits(mask.cpu().flatten().numpy()))


def _unpack(bits: Tensor, shape: Any) -> Tensor:
    count = math.prod(shape)
    return torch.from_numpy(np.unpackbits(bits.numpy(), count=count).astype(bool)).reshape(tuple(shape))
