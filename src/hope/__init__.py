"""HOPE: read a trained network as neurons and make it smaller: no data, no fine-tuning, no knobs."""

from hope import deft
from hope._version import __version__
from hope.anatomy.anatomy import Anatomy
from hope.anatomy.steps import Absorb, Evict, Merge, Prune
from hope.encoding import Encoding, capacities, encode
from hope.errors import (
    CheckpointMismatch,
    DamagedFolder,
    HopeError,
    InfeasibleBudget,
    InvalidAction,
    InvalidExample,
    UnsupportedModel,
)
from hope.inspection import inspect
from hope.judge.fidelity import fidelity
from hope.signals.dream import dream
from hope.storage.run import load
from hope.storage.run import save_run as save
from hope.surgery.apply import cut
from hope.surgery.recalibrate import recalibrate_bn

__all__ = [
    "Absorb",
    "Anatomy",
    "CheckpointMismatch",
    "DamagedFolder",
    "Encoding",
    "Evict",
    "HopeError",
    "InfeasibleBudget",
    "InvalidAction",
    "InvalidExample",
    "Merge",
    "Prune",
    "UnsupportedModel",
    "__version__",
    "capacities",
    "cut",
    "deft",
    "dream",
    "encode",
    "fidelity",
    "inspect",
    "load",
    "recalibrate_bn",
    "save",
]
