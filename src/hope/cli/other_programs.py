"""--save-pretrained and --gguf: the network of a run as files for transformers and llama.cpp."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hope.cli.budget_options import budget_of
from hope.cli.output_paths import check_apart, path
from hope.errors import CannotExport, CannotWrite

if TYPE_CHECKING:
    from torch import nn

    from hope.storage.run import Run


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """--save-pretrained, --gguf and --tokenizer."""
    parser.add_argument(
        "--save-pretrained",
        metavar="FOLDER",
        type=path,
        help="write a transformers model for from_pretrained; rounded weights are packed, and loading them "
        "needs the package compressed-tensors",
    )
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
    if options.save_pretrained:
        _check_pretrained(options, model)
    if options.gguf:
        from hope.rewrite.gguf_file import check_package
        from hope.rewrite.gguf_layers import check_family

        check_package()
        check_family(model)
    for given in (one for one in (options.save_pretrained, options.gguf) if one):
        if not Path(given).parent.is_dir():
            folder = Path(given).parent
            raise CannotWrite(f"{given} cannot be written: there is no folder {folder}: make it")


def _check_pretrained(options: argparse.Namespace, model: nn.Module) -> None:
    from hope.rewrite.pretrained import check_configured, source_of

    check_configured(model)
    read = [source_of(model), Path(options.out) if options.out else None]
    check_apart(options.save_pretrained, [one for one in read if one is not None])
    if not getattr(options, "uniform", True) and budget_of(options):
        raise CannotExport(
            "--save-pretrained must go with --uniform where neurons are removed, got widths that may differ: "
            "add --uniform, or give --gguf FILE"
        )


def write(options: argparse.Namespace, small: nn.Module, saved: Run, steps: int) -> None:
    """Write them, with rounded weights packed."""
    if not (options.save_pretrained or options.gguf):
        return
    from hope.rewrite.gguf_file import write_gguf
    from hope.rewrite.pretrained import write_pretrained
    from hope.rewrite.rounded import grids_of, read_grids

    grids = read_grids(small, grids_of(saved.trajectory.steps[:steps]))
    if options.save_pretrained:
        print(write_pretrained(small, grids, Path(options.save_pretrained)))
    if options.gguf:
        print(write_gguf(small, grids, Path(options.gguf), options.tokenizer))


def write_run(options: argparse.Namespace, model: nn.Module, folder: Path) -> None:
    """Write the network of a run that was just saved."""
    if not (options.save_pretrained or options.gguf):
        return
    from hope.storage.load import load
    from hope.storage.run import read_run

    saved = read_run(folder)
    write(options, load(folder, model), saved, saved.steps)
