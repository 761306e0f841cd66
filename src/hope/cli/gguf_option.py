"""--gguf: the network of a run as a file for llama.cpp."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hope.cli.output_paths import path
from hope.errors import CannotWrite

if TYPE_CHECKING:
    from torch import nn

    from hope.storage.run import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--gguf and --tokenizer."""
    parser.add_argument(
        "--gguf",
        metavar="FILE",
        type=path,
        help="write a Llama-shaped language model for llama.cpp; its layers may differ",
    )
    parser.add_argument(
        "--tokenizer",
        metavar="PATH",
        help="of the GGUF file: a folder with tokenizer.json, or a GGUF file of the original "
        "(default: the folder of hf:FOLDER)",
    )


def check(options: argparse.Namespace, model: nn.Module) -> None:
    """Refuse before any work what cannot be written after it."""
    if not options.gguf:
        return
    from hope.rewrite.gguf_file import check_package
    from hope.rewrite.gguf_layers import check_family

    check_package()
    check_family(model)
    if not Path(options.gguf).parent.is_dir():
        folder = Path(options.gguf).parent
        raise CannotWrite(f"{options.gguf} cannot be written: there is no folder {folder}: make it")


def write(options: argparse.Namespace, small: nn.Module, saved: Run, steps: int) -> None:
    """Write the file, with rounded weights packed."""
    if not options.gguf:
        return
    from hope.rewrite.gguf_file import write_gguf
    from hope.rewrite.rounded import grids_of, read_grids

    grids = read_grids(small, grids_of(saved.trajectory.steps[:steps]))
    print(write_gguf(small, grids, Path(options.gguf), options.tokenizer))


def write_run(options: argparse.Namespace, model: nn.Module, folder: Path) -> None:
    """Write the network of a run that was just saved."""
    if not options.gguf:
        return
    from hope.storage.load import load
    from hope.storage.run import read_run

    saved = read_run(folder)
    write(options, load(folder, model), saved, saved.steps)
