"""Figures as JSON: where they may be written, and what they depend on."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from hope._util.files import write_file
from hope._version import __version__
from hope.errors import CannotWrite


def versions(*packages: str) -> dict[str, str]:
    """Of what the figures depend on; of more packages, those that are installed.

    >>> sorted(versions("no-such-package"))
    ['hope', 'python', 'torch']
    """
    found = {"python": platform.python_version(), "torch": torch.__version__, "hope": __version__}
    for package in packages:
        with suppress(metadata.PackageNotFoundError):
            found[package] = metadata.version(package)
    return found


def check_out(path: Path) -> None:
    """Say before any work that results cannot be written there; the folder is made if it is missing."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CannotWrite(f"{path} cannot be written: {error.strerror}: give another --out") from error
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        why = "it is a folder" if path.is_dir() else "no permission"
        raise CannotWrite(f"{path} cannot be written: {why}: give another --out")


def write_results(path: Path, results: Mapping[str, Any]) -> None:
    """All or nothing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, (json.dumps(results, indent=1, sort_keys=True) + "\n").encode())
