"""A fit that is under way, on disk: what was fitted so far, so that an interrupted one can go on."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from hope._util.files import make_folder, write_file
from hope._util.hashing import hash_inputs
from hope._util.notes import note

EVERY = 15.0  # seconds between two writes


@dataclass
class Fitted:
    """A file with what a fit has come to. One that is damaged or of another fit is not resumed.

    Attributes:
        path: where.
        key: a hash of what the fit depends on.
        tensors: what was fitted so far.
    """

    path: Path
    key: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    _written: float = field(default_factory=time.monotonic)

    @classmethod
    def of(cls, path: Path, models: Sequence[nn.Module], inputs: Sequence[Any], rest: object) -> Fitted:
        """The file of a fit, with what it has; a note says if that cannot be used."""
        digest = hashlib.sha256(f"{rest} {hash_inputs(list(inputs))}".encode())
        for model in models:
            digest.update(str(hash_inputs(sorted(model.state_dict().items()))).encode())
        found = cls(path, digest.hexdigest())
        try:
            with safe_open(str(path), framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except FileNotFoundError:
            return found
        except (OSError, SafetensorError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            metadata, tensors = {}, {}
        if metadata.get("sha256") != _digest(metadata.get("key", ""), tensors):
            note(f"{path} is damaged: weights are fitted anew")
        elif metadata.get("key") != found.key:
            note(f"{path} is of another fit: weights are fitted anew")
        else:
            found.tensors = tensors
        return found

    def note(self, tensors: Mapping[str, Tensor]) -> None:
        """Note what was fitted; every few seconds it is written, all or nothing."""
        self.tensors.update({name: one.detach().cpu().clone() for name, one in tensors.items()})
        if time.monotonic() - self._written < EVERY:
            return
        make_folder(self.path.parent)
        metadata = {"key": self.key, "sha256": _digest(self.key, self.tensors)}
        write_file(self.path, save(self.tensors, metadata=metadata))
        self._written = time.monotonic()

    def remove(self) -> None:
        """The fit is finished."""
        self.path.unlink(missing_ok=True)


def _digest(key: str, tensors: Mapping[str, Tensor]) -> str:
    """A hash of what a file holds."""
    return hashlib.sha256(f"{key} {hash_inputs(sorted(tensors.items()))}".encode()).hexdigest()
