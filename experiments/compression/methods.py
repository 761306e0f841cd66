"""The methods that are compared, by the names that results and tables give them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

import hope
from experiments.compression import peers
from experiments.compression.store import UnusableResults

IMAGES = "images"  # stands for the unlabelled images of a task
METHODS: dict[str, dict[str, Any]] = {
    "absorb": {"method": hope.Absorb()},
    "absorb, dreamed": {"method": hope.Absorb(calibration="dream")},
    "absorb, 96 images": {"method": hope.Absorb(), "calibration": IMAGES},
    "absorb, closed forms": {"method": hope.Absorb(calibration=None)},
    "absorb, multiples of 8": {"method": hope.Absorb(), "multiple_of": 8},
    "paper": {"method": hope.Paper()},
    "paper, merge=sum": {"method": hope.Paper(merge="sum")},
    "paper, no eviction": {"method": hope.Paper(), "evict": False},
    "paper, merge=sum, no eviction": {"method": hope.Paper(merge="sum"), "evict": False},
    "paper, prunes only": {"method": hope.Paper(merge=None), "evict": False},
    "paper, live ΔP": {"method": hope.Paper(release="live")},
    **{name: {"method": hope.Score(name)} for name in ("l1-in", "l1-joint", "bn-scale", "random")},
    **{name: {"peer": name} for name in peers.NAMES},
}
READINGS: dict[str, dict[str, Any]] = {
    f"paper, {reading}{ending}": {"method": hope.Paper(reading=reading), **how}
    for reading in ("literal", "literal kernel", "literal deviation", "literal parent")
    for ending, how in (("", {}), (", no eviction", {"evict": False}))
}
"""The paper's method with every mending, or one, undone (`experiments.readings`)."""


def keywords(settings: Mapping[str, Any], unlabelled: Tensor) -> dict[str, Any]:
    """A method's settings as `hope.encode` takes them.

    Args:
        settings: those of `METHODS`.
        unlabelled: what "images" in them stands for.
    """
    options = dict(settings)
    if options.pop("calibration", None) == IMAGES:
        options["method"] = replace(options["method"], calibration=list(torch.split(unlabelled, 32)))
    return options


def chosen_methods(asked: Sequence[str] | None, note: Callable[[str], None]) -> list[str]:
    """The methods that were asked for, all by default; without Torch-Pruning all but its criteria."""
    for method in asked or ():
        if method not in METHODS:
            raise UnusableResults(f"there is no method {method!r}: choose from {', '.join(METHODS)}")
        if "peer" in METHODS[method]:
            peers.check(method)
    if asked:
        return list(asked)
    if not peers.installed():
        note("Torch-Pruning is not installed: its criteria are left out")
    return [method for method in METHODS if peers.installed() or method not in peers.NAMES]
