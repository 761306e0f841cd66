"""`hope inspect`: the structure of a network, as a table."""

from __future__ import annotations

import argparse
from typing import Any

from hope.cli import models


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "inspect",
        help="list a network's neuron layers, blocks and streams, and what is kept",
        description="List a network's neuron layers, its evictable blocks, its streams, "
        "and what is kept, with the reason. The weights do not matter here.",
        epilog="example: hope inspect torchvision:resnet18",
    )
    models.add_arguments(parser)
    parser.add_argument(
        "--streams", action="store_true", help="with channels of residual streams among the prunable ones"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the table."""
    with models.loading(options):
        from hope.api import inspect

        model, example = models.build(options)
    print(inspect(model, example, streams=options.streams))
