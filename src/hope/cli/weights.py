"""--weights: checkpoints in common formats, read without running code from them."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, load, nn

from hope._util.notes import note
from hope.errors import CheckpointMismatch, first_line

INSIDE = ("state_dict", "model_state_dict", "model", "net", "network", "weights")  # where training keeps it
PREFIXES = ("module.", "_orig_mod.", "model.")  # of DataParallel, of torch.compile, of a wrapping class
SOME = 3  # of the names that do not fit
AGAIN = "download or copy it again"
KINDS: tuple[tuple[bytes, str, str], ...] = (  # first bytes, what the file is, and what to do
    (b"version https://git-lfs", "a Git LFS pointer, not the file itself", "run `git lfs pull`"),
    (b"\x89HDF", "an HDF5 file, as Keras writes them", "convert it to safetensors"),
    (b"\x93NUMPY", "a NumPy array", "give a state dict, as .safetensors or .pt"),
    (b"\x1f\x8b", "a compressed archive", "unpack it first"),
    (b"<", "a web page or XML, not a checkpoint", AGAIN),
)


class _Foreign(Exception):
    """An error: what a file is, if not a state dict, and what to do."""


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a checkpoint into a model; never by running code from it."""
    if path.is_dir():
        raise CheckpointMismatch(f"{path} is a folder: give the checkpoint file in it")
    if not path.is_file():
        raise CheckpointMismatch(f"there is no checkpoint {path}: give another path")
    try:
        state = _unwrapped(_read(path), model, path)
        _check(state, model)
        model.load_state_dict(state)
    except _Foreign as error:
        raise CheckpointMismatch(f"{path} does not fit {type(model).__name__}: {error}") from error
    except Exception as error:  # whatever the model's own way of loading raises
        words = f"{path} does not fit {type(model).__name__}: {first_line(error)}"
        raise CheckpointMismatch(words) from error


def _read(path: Path) -> Any:
    """The content of a file, by its first bytes and not by its name."""
    with path.open("rb") as file:
        head = file.read(64)
    if not head:
        raise _Foreign(f"it is empty: {AGAIN}")
    for start, what, way in KINDS:
        if head.startswith(start):
            raise _Foreign(f"it is {what}: {way}")
    if head[8:9] == b"{":
        return _safetensors(path)
    if head.startswith(b"PK"):
        _check_archive(path)
        return _pickled(path)
    if head.startswith(b"\x80"):
        return _pickled(path)
    try:
        head.decode()
    except UnicodeDecodeError:
        raise _Foreign("it is not a checkpoint: give a .safetensors, .pt or .pth file") from None
    raise _Foreign("it is a text file, not a checkpoint: give a .safetensors, .pt or .pth file")


def _safetensors(path: Path) -> Any:
    from safetensors.torch import load_file

    try:
        return load_file(path)
    except Exception as error:  # its own error class, or one of the system
        raise _Foreign(f"it is truncated or damaged ({first_line(error)}): {AGAIN}") from error


def _check_archive(path: Path) -> None:
    """Refuse archives that torch did not write, or not as weights."""
    try:
        names = zipfile.ZipFile(path).namelist()
    except (zipfile.BadZipFile, OSError) as error:
        raise _Foreign(f"it is truncated or damaged ({first_line(error)}): {AGAIN}") from error
    if any(name.endswith("/constants.pkl") for name in names):
        raise _Foreign(
            "it is a TorchScript program: save the weights of torch.jit.load(...) with "
            "torch.save(model.state_dict(), 'weights.pt')"
        )
    if not any(name.endswith("data.pkl") for name in names):
        kind = "NumPy arrays (.npz)" if any(name.endswith(".npy") for name in names) else "a zip archive"
        raise _Foreign(f"it is {kind}: give a state dict, as .safetensors or .pt")


def _pickled(path: Path) -> Any:
    try:
        return load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise _Foreign(
            "it holds more than weights (a whole pickled model?), and code from a file is not run here: "
            "where it was made, call torch.save(model.state_dict(), 'weights.pt')"
        ) from error
    except Exception as error:  # cut off somewhere in the middle
        raise _Foreign(f"it is truncated or damaged ({first_line(error)}): {AGAIN}") from error


def _unwrapped(state: Any, model: nn.Module, path: Path) -> dict[str, Any]:
    """The state dict, with the model's names; changes are noted."""
    own = set(model.state_dict())
    while isinstance(state, Mapping):
        key = next((key for key in INSIDE if _holds_tensors(state.get(key))), None)
        if key is None:
            break
        note(f"{path}: using its entry {key!r}")
        state = state[key]
    if isinstance(state, nn.Module):
        raise _Foreign("it holds a module: give its state dict")
    if not isinstance(state, Mapping):
        raise _Foreign(f"it holds a {type(state).__name__}: give a state dict, as .safetensors or .pt")
    if not _holds_tensors(state):
        some = ", ".join(map(str, list(state)[:SOME])) or "nothing"
        raise _Foreign(f"it contains no weights but {some}: give a state dict, as .safetensors or .pt")
    found = {str(name): value for name, value in state.items()}
    while prefix := next(
        (one for one in PREFIXES if _all_start(found, one) and not _any_start(own, one)), ""
    ):
        note(f"{path}: the prefix {prefix!r} is removed from all names")
        found = {name.removeprefix(prefix): value for name, value in found.items()}
    return found


def _holds_tensors(state: Any) -> bool:
    """Whether this is, or contains, a state dict."""
    if not isinstance(state, Mapping):
        return False
    inner = [state[key] for key in INSIDE if isinstance(state.get(key), Mapping)]
    return any(isinstance(value, Tensor) for value in state.values()) or any(map(_holds_tensors, inner))


def _all_start(state: Mapping[str, Any], prefix: str) -> bool:
    return all(name.startswith(prefix) for name in state)


def _any_start(names: set[str], prefix: str) -> bool:
    return any(name.startswith(prefix) for name in names)


def _check(state: Mapping[str, Any], model: nn.Module) -> None:
    """Name missing tensors, unknown tensors, and tensors with another shape."""
    own = model.state_dict()
    missing = [n for n in own if n not in state and not n.endswith("num_batches_tracked")]
    beyond = [n for n in state if n not in own]
    there = {
        n: value.shape if isinstance(value, Tensor) else type(value).__name__ for n, value in state.items()
    }
    other = [
        f"{n}: {_shape(there[n])} in the file, {_shape(own[n].shape)} in the model"
        for n in own
        if n in there and isinstance(own[n], Tensor) and there[n] != own[n].shape
    ]
    found = [
        f"{len(names)} {words} ({', '.join(names[:SOME])}{', …' if len(names) > SOME else ''})"
        for names, words in ((missing, "missing"), (beyond, "unexpected"), (other, "of another shape"))
        if names
    ]
    if found:
        raise _Foreign(f"of {len(own)} tensors, {'; '.join(found)}: give the checkpoint of this model")


def _shape(shape: Any) -> str:
    return shape if isinstance(shape, str) else "x".join(map(str, shape)) or "a number"
