"""`hope extract`: the network at any moment of a saved run, as safetensors, ONNX or `.pt2`."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor, nn

from hope._util.files import write_file
from hope.cli import models
from hope.cli.encode import add_budgets, budget_of
from hope.errors import CannotWrite, CheckpointMismatch, HopeError, InvalidExample
from hope.storage.run import Run, load, read_run
from hope.surgery.export import export_onnx, export_program

SMALL = "small.safetensors"  # in the run's folder, when nothing else is asked for
WRITERS = {"onnx": export_onnx, "pt2": export_program}  # files that need an input


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "extract",
        help="write the network at any moment of a saved run",
        description="Write the compressed network of a saved run. Without a budget: the saved one, and the "
        "original weights are not needed. With one: any moment of the run, replayed on the original weights. "
        "What `hope encode` was given, the run knows; what is given here wins.",
        epilog="example: hope extract run/ --onnx small.onnx",
    )
    parser.add_argument("folder", metavar="RUN", help="what `hope encode` saved")
    parser.add_argument("model", metavar="MODEL", nargs="?", help=f"{models.HELP}; default: the run's")
    parser.add_argument(
        "--weights", metavar="FILE", help="the original checkpoint, for another budget (default: the run's)"
    )
    parser.add_argument(
        "--input", metavar="SHAPE", help="shape of an input, for ONNX and .pt2 (default: the run's)"
    )
    add_budgets(parser, required=False)
    parser.add_argument(
        "--out",
        metavar="FILE",
        help=f"where to write the weights (.safetensors); when nothing is asked for: RUN/{SMALL}",
    )
    parser.add_argument("--onnx", metavar="FILE", help="write the network as ONNX, for batches of any size")
    parser.add_argument("--pt2", metavar="FILE", help="write the network for torch.export.load, likewise")
    parser.add_argument(
        "--no-check", action="store_true", help="do not run the ONNX or .pt2 file to compare its answers"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Load, write, and say what was written."""
    more = [getattr(options, kind) for kind in WRITERS]
    for given in (options.out, *more):
        if given and not Path(given).parent.is_dir():
            raise CannotWrite(f"{given} cannot be written: there is no folder {Path(given).parent}: make it")
    saved, budget = read_run(options.folder), budget_of(options)
    model = _model(options, saved, replayed=bool(budget))
    example = _example(options, saved) if any(more) else None
    small = load(options.folder, model, **budget).eval()
    if options.steps is not None:
        taken = saved.trajectory.steps_to("steps", options.steps)
        if taken != options.steps:
            print(
                f"{options.steps} steps is no stop of this run, whose widths are multiples: {taken} are taken"
            )
    before, after = (sum(p.numel() for p in net.parameters()) for net in (model, small))
    print(f"{after:,} of {before:,} parameters ({after / before:.1%})")
    if options.out or not any(more):
        target = Path(options.out or saved.folder / SMALL)
        write_file(target, save({name: tensor.contiguous() for name, tensor in small.state_dict().items()}))
        print(f"{target}: the weights")
    for kind, write in WRITERS.items():
        given = getattr(options, kind)
        if example is not None and given:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # its note is printed
                print(write(small, example, given, check=not options.no_check))


def _model(options: argparse.Namespace, saved: Run, *, replayed: bool) -> nn.Module:
    """The uncut model: the one that is named, or the run's own. The run's weights are loaded only where the
    run is replayed on them.
    """
    known = saved.details.source
    spec = options.model or known.get("model")
    if not spec:
        raise models.UnknownModel(f"{saved.folder} does not know its MODEL: give {models.HELP}")
    try:
        model = models.make(spec)
    except HopeError as error:
        if options.model:
            raise
        raise _gone(error, saved, "MODEL") from error
    weights = options.weights or (known.get("weights") if replayed else None)
    if weights:
        try:
            models.load_weights(model, Path(weights))
        except CheckpointMismatch as error:
            if options.weights:
                raise
            raise _gone(error, saved, "--weights FILE") from error
    return model.eval()


def _gone(error: HopeError, saved: Run, what: str) -> HopeError:
    """What the run knows is not there, or not as it was: say who said so and what to give."""
    return type(error)(f"{error}; this is what {saved.folder} was made from: give {what} if it has moved")


def _example(options: argparse.Namespace, saved: Run) -> Tensor:
    """An input of the shape that was given or that the run knows."""
    shape = options.input or saved.details.source.get("input")
    if not shape:
        raise InvalidExample(f"{saved.folder} does not know its --input: give a shape like {models.INPUT}")
    return models.example(shape)
