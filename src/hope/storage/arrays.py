"""Tensors in files: safetensors, named by their hash, so that a record identifies them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from hope._util.files import PART, remove_leftovers
from hope._util.locks import LOCK, OWNER
from hope._util.tensor_file import hash_of, write_tensor_file
from hope.errors import CheckpointMismatch, DamagedFolder, first_line
from hope.structure.anatomy import Anatomy

STORED = re.compile(r"(weights|moments|inputs|adapter)-[0-9a-f]{12}\.safetensors")
RECORDS = ("trajectory.json", "adapter.json")
# other files that HOPE writes into its folders
OURS = (*RECORDS, LOCK, OWNER, "partial.json", "report.html", "small.safetensors")
CACHE = re.compile(r"partial\.json\.[^/]+\.cache")  # of an interrupted run


class Arrays(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of tensors in a record."""

    file: str  # its name, next to the record
    sha256: str  # of its content

    def inside(self, folder: Path) -> Path:
        """Its path. No file outside the folder is read, whatever the record contains."""
        return folder / Path(self.file).name


def write_arrays(folder: Path, kind: str, tensors: Mapping[str, Tensor]) -> Arrays:
    """Write tensors into a new file, next to those of an earlier record."""
    digest = hash_of(tensors)
    file = f"{kind}-{digest[:12]}.safetensors"
    write_tensor_file(folder / file, tensors)
    return Arrays(file=file, sha256=digest)


def read_arrays(folder: Path, arrays: Arrays) -> dict[str, Tensor]:
    """The tensors of a file, whose hash must be the recorded one."""
    path = arrays.inside(folder)
    try:
        if _file_hash(path) != arrays.sha256:
            raise DamagedFolder(
                f"{path} is truncated or altered: copy the folder again, or save the run again"
            )
        return load_file(path)
    except (SafetensorError, LookupError, MemoryError, RuntimeError, ValueError) as error:
        raise DamagedFolder(
            f"{path} is not a safetensors file ({first_line(error)}): copy the folder again, or save the "
            "run again"
        ) from error
    except OSError as error:  # it is missing, or another save has just removed it
        if path.is_file():
            raise DamagedFolder(
                f"{path} cannot be read: {error.strerror or first_line(error)}: allow reading "
                "it, or copy the folder again"
            ) from error
        raise DamagedFolder(f"{path} is missing: copy the whole folder, or save the run again") from error


def clean(folder: Path, earlier: Iterable[str], kept: Iterable[Arrays]) -> None:
    """Remove the files that only the earlier record named, and partial files of killed writers; in a folder
    with other files only the latter. The caller holds the folder's lock.

    Args:
        earlier: what `stored_files` returned for the record that was replaced.
    """
    remove_leftovers(folder, lambda name: bool(STORED.fullmatch(name)) or name in RECORDS)
    names = {path.name for path in folder.iterdir()}
    ours = (STORED, PART, CACHE)
    if any(name not in OURS and not any(one.fullmatch(name) for one in ours) for name in names):
        return
    for name in set(earlier) - {arrays.file for arrays in kept}:
        if STORED.fullmatch(name):
            with suppress(OSError):
                (folder / name).unlink()


def state(model: nn.Module) -> dict[str, Tensor]:
    """The state dict's tensors on the CPU, contiguous."""
    return {
        name: value.detach().cpu().contiguous()
        for name, value in model.state_dict().items()
        if isinstance(value, Tensor)
    }


def fingerprint(model: nn.Module) -> str:
    """A hash of a checkpoint: names, shapes, types and contents of everything in its `state_dict`."""
    digest = hashlib.sha256()
    for name, tensor in sorted(state(model).items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        if tensor.numel():
            digest.update(tensor.flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _file_hash(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def fit_dtypes(model: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Convert to the saved floating dtypes, so that a half-precision run is loaded in half precision."""
    for name, value in [*model.named_parameters(), *model.named_buffers()]:
        if name in weights and value.dtype != weights[name].dtype:
            if not (value.is_floating_point() and weights[name].is_floating_point()):
                raise DamagedFolder(
                    f"{name} must be of type {value.dtype}, got {weights[name].dtype}: save the run again"
                )
            value.data = value.data.to(weights[name].dtype)


def check_architecture(anatomy: Anatomy, model: nn.Module, folder: Path) -> None:
    """Refuse a model of other shapes than a run was made from."""
    shapes = {
        name: tuple(tensor.shape) for name, tensor in [*model.named_parameters(), *model.named_buffers()]
    }
    for name, shape in anatomy.shapes.items():
        if shapes.get(name) != shape:
            found = f"has shape {shapes[name]}" if name in shapes else "is missing"
            raise CheckpointMismatch(
                f"{name} must have shape {shape}, as in the {anatomy.model} that {folder} was saved from, "
                f"but in this {type(model).__name__} it {found}: build the architecture that was "
                "compressed, uncut"
            )
