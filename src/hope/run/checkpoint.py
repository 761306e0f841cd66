"""A run that is under way, on disk: what was done so far, so that an interrupted run can go on."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from hope.anatomy.steps import Action, from_json, to_json
from hope.errors import InvalidAction

FORMAT, VERSION = "hope-partial", 1
EVERY = 2.0  # seconds between two writes
Begun: TypeAlias = tuple[list[Action], list[float], list[int], list[float]]  # as in a `Trajectory`


def settings(
    *,
    method: str = "hope",
    merge: str | None = "pair",
    kernel: str = "zero-bias",
    evict: bool = True,
    static_release: bool = True,
    exclude: Sequence[str] = (),
    calibration: Iterable[Any] | str | None = None,
) -> dict[str, Any]:
    """What a run depends on besides the checkpoint and the budget, as plain data.

    Calibration inputs are told by a hash; those that can be gone through only once, by the fact alone.

    >>> settings(method="absorb", calibration="dream")["calibration"]
    'dream'
    """
    told: str | None = calibration if isinstance(calibration, str) else None
    if isinstance(calibration, Sequence) and not isinstance(calibration, str):
        digest = hashlib.sha256()
        for leaf in pytree.tree_leaves(list(calibration)):
            if isinstance(leaf, Tensor):
                digest.update(f"{leaf.dtype} {tuple(leaf.shape)}\n".encode())
                digest.update(leaf.detach().cpu().flatten().view(torch.uint8).numpy().tobytes())
            else:
                digest.update(repr(leaf).encode())
        told = digest.hexdigest()[:16]
    elif calibration is not None and told is None:
        told = "batches"
    return {
        "method": method,
        "merge": merge,
        "kernel": kernel,
        "evict": evict,
        "static_release": static_release,
        "exclude": list(exclude),
        "calibration": told,
    }


@dataclass
class Checkpoint:
    """A file with the actions of a run that is not finished.

    Attributes:
        path: where.
        settings: what the run depends on; a file of other settings is not gone on with.
    """

    path: Path
    settings: Mapping[str, Any]
    _written: float = field(default=0.0)

    def read(self) -> Begun:
        """What was done so far; nothing if there is no file, or one of another run."""
        try:
            data = json.loads(self.path.read_bytes())
            same = (
                data["format"] == FORMAT and data["version"] == VERSION and data["settings"] == self.settings
            )
            if same:
                actions = [from_json(one) for one in data["actions"]]
                return actions, data["costs"], data["releases"], data["left"]
        except (OSError, ValueError, KeyError, TypeError, InvalidAction):
            pass
        return [], [], [], []

    def write(
        self,
        actions: Sequence[Action],
        costs: Sequence[float],
        releases: Sequence[int],
        left: Sequence[float],
        *,
        now: bool = False,
    ) -> None:
        """Note what was done, every few seconds, all or nothing."""
        if not now and time.monotonic() - self._written < EVERY:
            return
        data = {
            "format": FORMAT,
            "version": VERSION,
            "settings": self.settings,
            "actions": [to_json(action) for action in actions],
            "costs": list(costs),
            "releases": list(releases),
            "left": list(left),
        }
        self.path.parent.mkdir(parents=True, exist_ok=True)
        part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        part.write_text(json.dumps(data, separators=(",", ":")))
        os.replace(part, self.path)
        self._written = time.monotonic()

    def remove(self) -> None:
        """The run is finished."""
        self.path.unlink(missing_ok=True)
