"""HOPE: read a trained network as neurons and make it smaller: no data, no fine-tuning, no knobs."""

from hope import deft
from hope._version import __version__
from hope.anatomy.anatomy import Anatomy
from hope.anatomy.steps import Evict, Merge, Prune
from hope.api import capacities, encode, inspect, save_finetuned
from hope.encoding import Encoding
from hope.errors import (
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
from hope.judge.fidelity import fidelity
from hope.methods import Absorb, Paper, Score
from hope.reasons import Cause
from hope.signals.dream import dream
from hope.storage.run import load
from hope.storage.run import save_run as save
from hope.surgery.apply import cut
from hope.surgery.export import export_onnx, export_program
from hope.surgery.programs import CannotExport
from hope.surgery.recalibrate import recalibrate_bn

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
    "HopeError",
    "InfeasibleBudget",
    "InvalidAction",
    "InvalidExample",
    "Merge",
    "Paper",
    "Prune",
    "Score",
    "UnknownMethod",
    "UnsupportedModel",
    "__version__",
    "capacities",
    "cut",
    "deft",
    "dream",
    "encode",
    "export_onnx",
    "export_program",
    "fidelity",
    "inspect",
    "load",
    "recalibrate_bn",
    "save",
    "save_finetuned",
]
