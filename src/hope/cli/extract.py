"""`hope extract`: the network at any budget of a saved run, as safetensors, ONNX or `.pt2`."""

from __future__ import annotations

import argparse
import shlex
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hope.cli import models, other_programs
from hope.cli.budget_options import add_budgets, budget_of
from hope.cli.encode import PARTIAL
from hope.cli.output_paths import check_apart, path
from hope.errors import CannotWrite, HopeError, InvalidExample, UnknownModel

if TYPE_CHECKING:
    from torch import nn

    from hope._util.calls import Example
    from hope.storage.run import Run

SMALL = "small.safetensors"  # in the run's folder, when nothing else is asked for
KINDS = ("onnx", "pt2")  # of files that need an input


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "extract",
        help="write the network at any moment of a saved run",
        description="Write the compressed network of a saved run. Without a budget: the saved one, and the "
        "original weights are not needed. With one: any moment of the run, replayed on the original weights. "
        "What `hope encode` was given, the run knows; what is given here wins. A MODEL that is code "
        "(file.py:function) must be given, or trusted with --trust-source: no run has code run by itself.",
        epilog="example: hope extract run/ --onnx small.onnx",
    )
    parser.add_argument("folder", metavar="RUN", help="a folder saved by `hope encode`")
    parser.add_argument(
        "model", metavar="MODEL", nargs="?", help=f"{models.HELP}; default: the run's, if it is no file"
    )
    parser.add_argument(
        "--trust-source", action="store_true", help="run the file.py:function that the run was made from"
    )
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
        type=path,
        help=f"where to write the weights (.safetensors); default without other outputs: RUN/{SMALL}",
    )
    parser.add_argument(
        "--onnx", metavar="FILE", type=path, help="write the network as ONNX, for batches of any size"
    )
    parser.add_argument(
        "--pt2",
        metavar="FILE",
        type=path,
        help="write the network for torch.export.load, for batches of any size",
    )
    other_programs.add_arguments(parser)
    parser.add_argument(
        "--no-check", action="store_true", help="do not run the ONNX or .pt2 file to compare its outputs"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Load, write, and print what was written."""
    more = [getattr(options, kind) for kind in KINDS]
    targets = [one for one in (options.out, options.save_pretrained, options.gguf, *more) if one]
    for given in targets:
        if not Path(given).parent.is_dir():
            raise CannotWrite(f"{given} cannot be written: there is no folder {Path(given).parent}: make it")
    from hope.storage.load import load
    from hope.storage.run import read_run

    saved, budget = read_run(options.folder), budget_of(options)
    wanted = _wanted(options, saved, replayed=bool(budget))
    for given in targets:
        check_apart(given, _sources(options, saved))
    if any(more) and not (options.input or saved.details.source.get("input")):
        raise InvalidExample(
            f"--input must be given, since {saved.folder} does not store it: give a shape like {models.INPUT}"
        )
    model, example = _built(options, saved, wanted)
    other_programs.check(options, model)
    small = load(options.folder, model, **budget).eval()
    if options.steps is not None:
        taken = saved.trajectory.steps_to("steps", options.steps)
        if taken != options.steps:
            why = "layers go together" if saved.details.settings.get("uniform") else "widths are multiples"
            print(f"{options.steps} steps is no stop of this run, whose {why}: {taken} are taken")
    before, after = (sum(p.numel() for p in net.parameters()) for net in (model, small))
    print(f"{after:,} of {before:,} parameters ({after / before:.1%})")
    if options.out or not (options.save_pretrained or options.gguf or any(more)):
        _write_weights(small, Path(options.out or saved.folder / SMALL))
    other_programs.write(options, small, saved, saved.steps_for(budget))
    _write_more(small, example, options, saved, saved.steps_for(budget))


def _wanted(options: argparse.Namespace, saved: Run, *, replayed: bool) -> argparse.Namespace:
    """The model that is named, or the run's own. The run's weights are loaded only where the run is replayed
    on them.

    Raises:
        UnknownModel: there is no model, or only the run names it, and it is code.
    """
    known = saved.details.source
    own = {name: known[name] for name in ("weights", "pretrained") if replayed and name in known}
    wanted = argparse.Namespace(
        model=options.model or known.get("model"),
        weights=options.weights or own.get("weights"),
        pretrained="pretrained" in own and not options.weights,
        input=options.input or known.get("input", models.INPUT),
    )
    if not wanted.model:
        raise UnknownModel(f"MODEL must be given, since {saved.folder} does not store it: give {models.HELP}")
    if models.is_code(wanted.model) and not (options.model or options.trust_source):
        command = shlex.join(["hope", "extract", options.folder, wanted.model])
        raise UnknownModel(
            f"MODEL must be given, since {saved.folder} was made from {wanted.model}, a file that would be "
            f"run: if you trust it, type {command}, or add --trust-source"
        )
    return wanted


def _sources(options: argparse.Namespace, saved: Run) -> list[Path]:
    """What must not be written over: the run's own files, and what it was made from."""
    from hope.storage.run import PLAN

    known = saved.details.source
    partial = saved.folder / PARTIAL
    found = [saved.folder / PLAN, partial, *saved.folder.glob(f"{PARTIAL}*")]
    found += [one.inside(saved.folder) for one in saved.files]
    found += [Path(one) for one in (options.weights, known.get("weights")) if one]
    specs = [one for one in (options.model, known.get("model")) if one]
    return found + [Path(one.removeprefix("hf:")) for one in specs if one.startswith("hf:")]


def _built(options: argparse.Namespace, saved: Run, wanted: argparse.Namespace) -> tuple[nn.Module, Example]:
    """The uncut model and an input."""
    try:
        return models.build(wanted)
    except InvalidExample:
        raise
    except HopeError as error:
        named = isinstance(error, UnknownModel)
        if options.model if named else options.weights:
            raise
        way = "MODEL" if named else "--weights FILE"
        raise type(error)(f"{error}; {saved.folder} was made from it: give {way} if it has moved") from error


def _write_weights(small: nn.Module, target: Path) -> None:
    from hope._util.tensor_file import write_tensor_file

    write_tensor_file(target, small.state_dict())
    print(f"{target}: the weights")


def _write_more(
    small: nn.Module, example: Example, options: argparse.Namespace, saved: Run, steps: int
) -> None:
    """The files that other programs run."""
    from hope.rewrite.export import export_onnx, export_program
    from hope.rewrite.rounded import grids_of, integers_of, read_grids
    from hope.statistics.input_scale import input_range

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its note is printed
        if options.onnx:
            grids = read_grids(small, grids_of(saved.trajectory.steps[:steps]))
            integers = None
            if grids:
                known = saved.input_statistics()
                integers = integers_of(small, grids, known, input_range(small, example))
            print(export_onnx(small, example, options.onnx, check=not options.no_check, integers=integers))
        if options.pt2:
            print(export_program(small, example, options.pt2, check=not options.no_check))
