"""Save a tuning as what differs from the source model, and load it again: JSON and safetensors, no pickle.

A folder holds `adapter.json` and `adapter-….safetensors`. Of every parameter only the entries that could
move, or that merging and severing rewrote, are stored, and of the statistics those that differ; the rest is
the source checkpoint's, named by its hash. The new head is stored as a whole. (Severing by absorption
rewrites all that core neurons hear, so a folder is then about as large as the model.) The JSON is written
last and names the arrays by theirs, so a folder is either as it was or complete.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save as to_bytes
from torch import Tensor, nn

from hope._util.calls import duplicate
from hope._util.files import write_file
from hope.deft.heads import PLAIN, build, new_head, recipe
from hope.deft.masks import in_head
from hope.deft.tuning import Penalty, Tuning
from hope.errors import CheckpointMismatch, DamagedFolder, InvalidHead
from hope.storage.run import digest_of, fingerprint, read_plan, read_tensors
from hope.surgery.resize import get

FORMAT = "hope-deft"
VERSION = 1
PLAN = "adapter.json"


def save(tuning: Tuning, folder: str | PathLike[str]) -> Path:
    """Write a tuning; see `Tuning.save_pretrained`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Tensor] = {}
    for name, parameter in tuning.model.named_parameters():
        value = parameter.detach().cpu()
        if in_head(name, tuning.head):
            continue
        stored = (~tuning.frozen[name]).expand(value.shape)
        if name in tuning.rewritten:
            stored = stored | tuning.rewritten[name]
        if bool(stored.any()):
            arrays[f"values/{name}"] = value[stored]
            if not bool(stored.all()):
                arrays[f"places/{name}"] = _pack(stored)
    new = tuning.model.get_submodule(tuning.head)
    for name, value in _tensors(new).items():
        arrays[f"head/{name}"] = value.detach().cpu().clone()
    head = tuning.source_head
    for name, value in head.state_dict().items():
        mask = tuning.rewritten.get(f"{tuning.head}.{name}")
        if mask is not None:
            arrays[f"source values/{name}"] = value.detach().cpu()[mask]
            arrays[f"source places/{name}"] = _pack(mask)
    for name, value in tuning.statistics.items():
        if name in tuning.rewritten:
            arrays[f"statistics/{name}"] = value.detach().cpu().clone()
        if not in_head(name, tuning.head):
            buffer = get(tuning.model, name).detach()
            if bool((buffer != value.to(buffer.device)).any()):
                arrays[f"buffers/{name}"] = buffer.cpu().clone()
    for name, value in tuning.absorbed_head.items():
        arrays[f"absorbed head/{name}"] = value.detach().cpu().clone()
    penalty = tuning._penalty
    for name, weight in (penalty.importance if penalty is not None else {}).items():
        arrays[f"importance/{name}"] = weight.detach().cpu().clone()
    for kind, masks in (("frozen", tuning.frozen), ("columns", tuning.columns)):
        for name, mask in masks.items():
            if _varies(mask):
                arrays[f"{kind}/{name}"] = _pack(mask)
    data = to_bytes({name: value.contiguous() for name, value in arrays.items()})
    digest = hashlib.sha256(data).hexdigest()
    plan: dict[str, Any] = {
        "format": FORMAT,
        "version": VERSION,
        "method": tuning.method,
        "original": tuning.original,
        "arrays": {"file": f"adapter-{digest[:12]}.safetensors", "sha256": digest},
        "head": {
            "name": tuning.head,
            "kind": type(new).__name__,
            "recipe": _recipe(new),
            "shapes": {name: list(value.shape) for name, value in _tensors(new).items()},
        },
        "frozen": {name: _outline(mask) for name, mask in tuning.frozen.items()},
        "columns": {name: _outline(mask) for name, mask in tuning.columns.items()},
        "masks_source": tuning.masks_source,
        "holds_statistics": tuning.holds_statistics,
        "anchored": sorted(penalty.anchors) if penalty is not None else [],
        "notes": list(tuning.notes),
    }
    plan["sha256"] = digest_of(plan)
    write_file(folder / plan["arrays"]["file"], data)
    write_file(folder / PLAN, json.dumps(plan, separators=(",", ":")).encode())
    for stale in folder.glob("adapter-*.safetensors"):
        if stale.name != plan["arrays"]["file"]:
            stale.unlink(missing_ok=True)
    return folder


def load(folder: str | PathLike[str], model: nn.Module, *, head: nn.Module | None = None) -> Tuning:
    """Rebuild a saved tuning on top of its source model; see `Tuning.from_pretrained`.

    Example:
        >>> import tempfile, torch, hope
        >>> net = torch.nn.Sequential(
        ...     torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
        ... )
        >>> tuning = hope.deft.prepare(net, hope.deft.partition(net, torch.zeros(2, 4)), head=2)
        >>> folder = tuning.save_pretrained(tempfile.mkdtemp())
        >>> again = hope.deft.load(folder, net)
        >>> x = torch.randn(5, 4)
        >>> torch.equal(again.model.eval()(x), tuning.model.eval()(x))
        True

    Raises:
        DamagedFolder: the folder is incomplete, altered, or not one of ours.
        CheckpointMismatch: the model is not the source model that was prepared.
        InvalidHead: the head is not like the saved one.
    """
    folder = Path(folder)
    plan = read_plan(folder / PLAN, "tuning", FORMAT, VERSION)
    if fingerprint(model) != plan["original"]:
        raise CheckpointMismatch(
            f"{folder} was made from other weights than this {type(model).__name__} has: "
            "load the source checkpoint first"
        )
    try:
        arrays = read_tensors(folder / Path(plan["arrays"]["file"]).name, plan["arrays"]["sha256"])
        new = _head(plan["head"], model, head)
        return _rebuild(plan, arrays, duplicate(model), new)
    except (KeyError, TypeError) as error:
        raise DamagedFolder(
            f"{folder / PLAN} does not say what it should ({error!r}): save it again"
        ) from error


@torch.no_grad()
def _write(tensor: Tensor, values: Tensor, places: Tensor | None) -> None:
    """Write values in their places; everywhere without any."""
    mask = torch.ones(tensor.shape, dtype=torch.bool) if places is None else _unpack(places, tensor.shape)
    tensor.masked_scatter_(mask.to(tensor.device), values.to(tensor))


def _rebuild(
    plan: Mapping[str, Any], arrays: Mapping[str, Tensor], model: nn.Module, head: nn.Module
) -> Tuning:
    name = plan["head"]["name"]
    originals = {key: value.detach().clone() for key, value in model.named_parameters()}
    rewritten: dict[str, Tensor] = {}
    for key, values in arrays.items():
        kind, _, tensor = key.partition("/")
        if kind == "values":
            _write(get(model, tensor), values, arrays.get(f"places/{tensor}"))
            rewritten[tensor] = (get(model, tensor) != originals[tensor]).cpu()
        elif kind == "source values":
            places = arrays[f"source places/{tensor}"]
            _write(get(model, f"{name}.{tensor}"), values, places)
            rewritten[f"{name}.{tensor}"] = _unpack(places, get(model, f"{name}.{tensor}").shape)
        elif kind == "statistics":
            buffer = get(model, tensor)
            rewritten[tensor] = buffer.cpu() != values
            with torch.no_grad():
                buffer.copy_(values)
    importance = _under(arrays, "importance")
    penalty = None
    if importance:
        penalty = Penalty(model, importance, {key: originals[key] for key in plan["anchored"]})
    tuning = Tuning(
        model,
        method=plan["method"],
        head=name,
        new_head=head,
        frozen=_masks(arrays, "frozen", plan["frozen"]),
        columns=_masks(arrays, "columns", plan["columns"]),
        freeze_statistics=plan["holds_statistics"],
        original=plan["original"],
        masks_source=plan["masks_source"],
        rewritten=rewritten,
        penalty=penalty,
        absorbed_head=_under(arrays, "absorbed head"),
        notes=plan["notes"],
    )
    with torch.no_grad():
        for key, value in _under(arrays, "head").items():
            get(model, f"{name}.{key}").copy_(value)
        for key, value in _under(arrays, "buffers").items():
            get(model, key).copy_(value)
    return tuning


def _head(saved: Mapping[str, Any], source: nn.Module, given: nn.Module | None) -> nn.Module:
    """The given module, or one made as the saved one was; refused unless it is like the saved one."""
    name, kind = saved["name"], saved["kind"]
    old = source.get_submodule(name)
    if given is None and saved["recipe"] is None:
        raise InvalidHead(
            f"the saved head is a {kind} of its own making: pass a module that is made like it, head="
        )
    made = build(saved["recipe"], old) if given is None else new_head(old, given, name, source)
    want, have = dict(saved["shapes"]), {key: list(value.shape) for key, value in _tensors(made).items()}
    options = _recipe(made)
    if saved["recipe"] is not None and options is not None:
        want, have = {**want, **saved["recipe"]}, {**have, **options}
    wrong = [
        f"{key} is {have.get(key, 'not there')} and was {want.get(key, 'not there')}"
        for key in {**want, **have}
        if want.get(key) != have.get(key)
    ]
    if wrong:
        raise InvalidHead(
            f"this head is not like the {kind} that was saved ({'; '.join(wrong)}): "
            "pass a module that is made like it, head="
        )
    return made


def _tensors(head: nn.Module) -> dict[str, Tensor]:
    """A head's parameters and buffers, as its `state_dict` has them."""
    return {name: value for name, value in head.state_dict().items() if isinstance(value, Tensor)}


def _recipe(head: nn.Module) -> dict[str, Any] | None:
    """How to make the head again; a class that someone derived may need more than we know."""
    return recipe(head) if type(head) in PLAIN.values() else None


def _under(arrays: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    return {k.partition("/")[2]: value for k, value in arrays.items() if k.partition("/")[0] == kind}


def _varies(mask: Tensor) -> bool:
    return bool(mask.any()) and not bool(mask.all())


def _outline(mask: Tensor) -> list[int] | bool:
    """A mask's shape where it is stored, and its value where it has only one."""
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
