"""`hope encode --heal`: distil the network of a run towards the original, and save it next to the run."""

from __future__ import annotations

import argparse
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import nn

    from hope.methods import Method

FOLDER, CHECKPOINT = "healed", "healing.safetensors"  # inside the run's folder
UNITS = {"s": 1 / 60, "min": 1.0, "h": 60.0, "steps": None}


def add_argument(parser: argparse.ArgumentParser) -> None:
    """--heal."""
    parser.add_argument(
        "--heal",
        metavar="TIME",
        type=how_long,
        help="then distil the small network towards the original for so long (10min, 90s, or 300steps), on "
        "the inputs of --calibration, or without any on synthetic ones; saved in OUT/healed. Ctrl-C ends it "
        "with the best network so far, and --resume resumes it",
    )


def how_long(text: str) -> dict[str, Any]:
    """What --heal says.

    >>> how_long("10min"), how_long("90s"), how_long("300steps")
    ({'minutes': 10.0}, {'minutes': 1.5}, {'steps': 300})
    """
    found = re.fullmatch(r"([0-9]*\.?[0-9]+) *(s|min|h|steps)", text)
    amount, unit = (float(found[1]), UNITS[found[2]]) if found else (0.0, 1.0)
    if amount <= 0 or (unit is None and amount != int(amount)):
        raise argparse.ArgumentTypeError(
            f"it must be a time or steps above 0, got {text!r}: give 10min or 300steps"
        )
    return {"steps": int(amount)} if unit is None else {"minutes": amount * unit}


def forget(out: Path) -> None:
    """Remove the healed network of a run that is replaced."""
    from hope.storage.record import PLAN

    (out / CHECKPOINT).unlink(missing_ok=True)
    if (out / FOLDER / PLAN).exists():
        shutil.rmtree(out / FOLDER)


def heal_run(out: Path, model: nn.Module, example: Any, method: Method, how: dict[str, Any]) -> Path:
    """Heal the network of a saved run, unless that is done, and return its folder."""
    from hope.evaluate.fidelity import fidelity
    from hope.healing.heal import Settings, distilled
    from hope.methods.calibration import has_data
    from hope.storage.finetuned import save_trained
    from hope.storage.load import load
    from hope.storage.record import PLAN
    from hope.storage.run import read_run

    folder, file = out / FOLDER, out / CHECKPOINT
    if (folder / PLAN).exists() and not file.exists():
        print(f"{folder} already has the healed network")
        return folder
    run = read_run(out)
    exclude = run.details.settings.get("exclude", ())
    settings = Settings.of(run.anatomy, run.trajectory.steps[: run.steps], example, exclude)
    batches = getattr(method, "calibration", None) if has_data(method) else None
    healed = distilled(model, load(out, model), batches, settings, checkpoint=file, **how)
    print(healed)
    points = [(0, 1.0), (run.steps, fidelity(model, healed.model, example))]
    details = replace(run.details, fidelities=points).rounded()
    save_trained(folder, run.changed(details=details), run.steps, healed.model)
    print(f"saved in {folder}; to compare: hope report {out} {folder}")
    return folder
