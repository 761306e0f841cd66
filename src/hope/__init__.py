"""HOPE: read a trained network as neurons and make it smaller: no data, no fine-tuning, no knobs."""

from hope import deft
from hope._version import __version__
from hope.anatomy.anatomy import Anatomy
from hope.encoder.actions import Absorb, Evict, Merge, Prune
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
from hope.planner.judge import fidelity
from hope.planner.probes import dream
from hope.surgery.operate import cut
from hope.surgery.recalibrate import recalibrate_bn
from hope.surgery.store import load
from hope.surgery.store import save_run as save

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
