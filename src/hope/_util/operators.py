"""Operators that torchvision declares when it is imported, for installations where it cannot.

torchvision's compiled operators are built for one version of torch. With another one they do not load, and
importing torchvision then fails with "operator torchvision::nms does not exist", although its classification
models (and timm's) need none of them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

MISSING = ("nms", "qnms")  # torchvision's import asks for these, whether or not its library was loaded
NOTE = (
    "torchvision's compiled operators do not fit this torch; models that need none of them work all the same"
)


def declare_missing_operators() -> bool:
    """Make torchvision importable where its compiled operators do not load; whether that was necessary.

    To be called before torchvision is imported, any number of times. Where the operators do load, nothing is
    declared: they would be declared twice.
    """
    import torch

    library = _library()
    if library is None:
        return False
    try:
        torch.ops.load_library(library)  # type: ignore[no-untyped-call]
        return False
    except (OSError, RuntimeError):  # made for another torch
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
