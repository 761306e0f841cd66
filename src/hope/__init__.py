"""HOPE: make a trained PyTorch network smaller, without data if it has batch norm."""

import importlib
from typing import TYPE_CHECKING, Any

from hope._version import __version__

if TYPE_CHECKING:
    from hope import deft, ops
    from hope.actions import Evict, Merge, Prune, Quantise
    from hope.api import capacities, encode, inspect, save_finetuned
    from hope.encoding import Encoding
    from hope.errors import (
        CannotExport,
        CannotWrite,
        CheckpointMismatch,
        DamagedFolder,
        HopeError,
        InfeasibleBudget,
        InvalidAction,
        InvalidExample,
        UnknownMethod,
        UnsupportedModel,
    )
    from hope.evaluate.fidelity import fidelity, fidelity_by_output
    from hope.healing.heal import Healed, heal
    from hope.latency.runtime import Runtime
    from hope.methods import Absorb, Paper, Score
    from hope.reasons import Cause
    from hope.rewrite.apply import cut
    from hope.rewrite.experts import stack_experts, unstack_experts
    from hope.rewrite.export import export_onnx, export_program
    from hope.rewrite.gguf_file import export_gguf
    from hope.rewrite.pretrained import save_pretrained
    from hope.rewrite.recalibrate import recalibrate_bn
    from hope.rewrite.refit import refit
    from hope.statistics.dreams import dream
    from hope.storage.load import load
    from hope.storage.run import save_run as save
    from hope.structure.anatomy import Anatomy

__all__ = [
    "Absorb",
    "Anatomy",
    "CannotExport",
    "CannotWrite",
    "Cause",
    "CheckpointMismatch",
    "DamagedFolder",
    "Encoding",
    "Evict",
    "Healed",
    "HopeError",
    "InfeasibleBudget",
    "InvalidAction",
    "InvalidExample",
    "Merge",
    "Paper",
    "Prune",
    "Quantise",
    "Runtime",
    "Score",
    "UnknownMethod",
    "UnsupportedModel",
    "__version__",
    "capacities",
    "cut",
    "deft",
    "dream",
    "encode",
    "export_gguf",
    "export_onnx",
    "export_program",
    "fidelity",
    "fidelity_by_output",
    "heal",
    "inspect",
    "load",
    "ops",
    "recalibrate_bn",
    "refit",
    "save",
    "save_finetuned",
    "save_pretrained",
    "stack_experts",
    "unstack_experts",
]

_PLACES = {  # where names are defined: each is imported on first use, and torch not before
    "hope.structure.anatomy": ("Anatomy",),
    "hope.actions": ("Evict", "Merge", "Prune", "Quantise"),
    "hope.api": ("capacities", "encode", "inspect", "save_finetuned"),
    "hope.encoding": ("Encoding",),
    "hope.errors": (
        "CannotExport",
        "CannotWrite",
        "CheckpointMismatch",
        "DamagedFolder",
        "HopeError",
        "InfeasibleBudget",
        "InvalidAction",
        "InvalidExample",
        "UnknownMethod",
        "UnsupportedModel",
    ),
    "hope.healing.heal": ("Healed", "heal"),
    "hope.evaluate.fidelity": ("fidelity", "fidelity_by_output"),
    "hope.latency.runtime": ("Runtime",),
    "hope.methods": ("Absorb", "Paper", "Score"),
    "hope.reasons": ("Cause",),
    "hope.statistics.dreams": ("dream",),
    "hope.storage.load": ("load",),
    "hope.storage.run": ("save_run as save",),
    "hope.rewrite.apply": ("cut",),
    "hope.rewrite.experts": ("stack_experts", "unstack_experts"),
    "hope.rewrite.export": ("export_onnx", "export_program"),
    "hope.rewrite.gguf_file": ("export_gguf",),
    "hope.rewrite.pretrained": ("save_pretrained",),
    "hope.rewrite.recalibrate": ("recalibrate_bn",),
    "hope.rewrite.refit": ("refit",),
}
_HOMES = {
    name.rpartition(" as ")[2]: (place, name.partition(" as ")[0])
    for place, names in _PLACES.items()
    for name in names
}

if not TYPE_CHECKING:  # type checkers read the imports above, and report unknown names

    def __getattr__(name: str) -> Any:
        if name in ("deft", "ops"):
            return importlib.import_module(f"hope.{name}")
        if name not in _HOMES:
            raise AttributeError(f"module 'hope' has no attribute {name!r}")
        place, called = _HOMES[name]
        globals()[name] = value = getattr(importlib.import_module(place), called)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
