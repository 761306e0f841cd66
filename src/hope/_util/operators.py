"""Operators that torchvision declares when imported, for installations where it cannot.

torchvision's compiled operators are built for one version of torch. With another version they do not load,
and importing torchvision fails with "operator torchvision::nms does not exist", although its classification
models (and timm's) need none of them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

MISSING = ("nms", "qnms")  # torchvision's import needs these, whether or not its library was loaded
NOTE = (
    "torchvision's compiled operators do not fit this torch; models that need none of them work all the same"
)


def declare_missing_operators() -> bool:
    """Make torchvision importable if its compiled operators do not load; returns whether that was necessary.

    Call it before torchvision is imported, any number of times. If the operators load, nothing is declared:
    it would be declared twice.
    """
    import torch

    library = _library()
    if library is None:
        return False
    try:
        torch.ops.load_library(library)  # type: ignore[no-untyped-call]
        return False
    except (OSError, RuntimeError):  # built for another torch
        pass
    for name in MISSING:
        try:
            getattr(torch.ops.torchvision, name)
        except AttributeError:
            schema = "(Tensor boxes, Tensor scores, float threshold) -> Tensor"
            torch.library.define(f"torchvision::{name}", schema)
    return True


def _library() -> Path | None:
    """torchvision's compiled operators; None if torchvision is not installed or has none."""
    try:
        found = importlib.util.find_spec("torchvision")
    except (ImportError, ValueError):
        return None
    places = [Path(place) for place in (found.submodule_search_locations or ())] if found else []
    files = (file for place in places for end in ("so", "pyd", "dll") for file in place.glob(f"_C*.{end}"))
    return next(files, None)
