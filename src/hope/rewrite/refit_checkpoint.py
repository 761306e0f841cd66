"""A fit that is under way, on disk: what was fitted so far, so that an interrupted one can go on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from hope._util.disk_cache import INVALID, Throttle, read_tensors, write_tensors
from hope._util.hashing import hash_inputs
from hope._util.notes import note


@dataclass
class Fitted:
    """A file with what a fit has come to. One that is damaged or of another fit is not resumed.

    Attributes:
        path: where.
        key: a hash of what the fit depends on.
        tensors: what was fitted so far.
        whole: whether that is everything.
    """

    path: Path
    key: str
    tensors: dict[str, Tensor] = field(default_factory=dict)
    whole: bool = False
    throttle: Throttle = field(default_factory=Throttle)

    @classmethod
    def of(cls, path: Path, models: Sequence[nn.Module], inputs: Sequence[Any], rest: object) -> Fitted:
        """The file of a fit, with what it has; a note says if that cannot be used."""
        digest = hashlib.sha256(f"{rest} {hash_inputs(list(inputs))}".encode())
        for model in models:
            digest.update(str(hash_inputs(sorted(model.state_dict().items()))).encode())
        found = cls(path, digest.hexdigest())
        try:
            metadata, tensors = read_tensors(path)
        except FileNotFoundError:
            return found
        except INVALID:
            note(f"{path} is damaged: weights are fitted anew")
            return found
        if metadata.get("key") != found.key:
            note(f"{path} is of another fit: weights are fitted anew")
        else:
            found.tensors, found.whole = tensors, metadata.get("whole") == "yes"
        return found

    def note(self, tensors: Mapping[str, Tensor]) -> None:
        """Note what was fitted; it is written, all or nothing, as often as that takes little time."""
        self.tensors.update({name: one.detach().cpu().clone() for name, one in tensors.items()})
        if self.throttle.due:
            self._write("no")

    def write(self) -> None:
        """Write what is noted, if anything is."""
        if self.tensors:
            self._write("no")

    def finish(self, tensors: Mapping[str, Tensor]) -> None:
        """Write everything: the fit is finished, and what uses it is not."""
        self.tensors = dict(tensors)
        self._write("yes")

    def _write(self, whole: str) -> None:
        with self.throttle.writing():
            write_tensors(self.path, self.tensors, {"key": self.key, "whole": whole})
