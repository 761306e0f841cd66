"""`hope extract`: the network at any moment of a saved run, as safetensors or ONNX."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from safetensors.torch import save

from hope._util.files import write_file
from hope.cli import models
from hope.cli.encode import add_budgets, budget_of
from hope.errors import CannotWrite
from hope.storage.run import load, read_run
from hope.surgery.export import to_onnx


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "extract",
        help="write the network at any moment of a saved run",
        description="Write the compressed network of a saved run. Without a budget: the saved one, and the "
        "original weights are not needed. With one: any moment of the run, replayed on the original weights.",
        epilog="example: hope extract run/ torchvision:resnet18 --out small.safetensors",
    )
    parser.add_argument("folder", metavar="RUN", help="what `hope encode` saved")
    models.add_arguments(parser)
    add_budgets(parser, required=False)
    parser.add_argument(
        "--out", metavar="FILE", required=True, help="where to write the weights (.safetensors)"
    )
    parser.add_argument("--onnx", metavar="FILE", help="also write the network as ONNX")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Load, write, and say what was written."""
    for given in (options.out, options.onnx):
        if given and not Path(given).parent.is_dir():
            raise CannotWrite(f"{given} cannot be written: there is no folder {Path(given).parent}: make it")
    model, example = models.build(options)
    small = load(options.folder, model, **budget_of(options)).eval()
    if options.steps is not None:
        taken = read_run(options.folder).trajectory.steps_to("steps", options.steps)
        if taken != options.steps:
            print(
                f"{options.steps} steps is no stop of this run, whose widths are multiples: {taken} are taken"
            )
    target = Path(options.out)
    write_file(target, save({name: tensor.contiguous() for name, tensor in small.state_dict().items()}))
    before, after = (sum(p.numel() for p in net.parameters()) for net in (model, small))
    print(f"{target}: {after:,} of {before:,} parameters ({after / before:.1%})")
    if options.onnx:
        to_onnx(small, example, options.onnx)
        print(f"{options.onnx}: the same network as ONNX")
