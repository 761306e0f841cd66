"""An experiment on the command line: errors are one line and exit status 2, as with `hope`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from torch import Tensor, nn

from experiments import readme
from experiments.data import data_folder
from hope.bench.accuracy import accuracy
from hope.bench.results import check_out, versions, write_results
from hope.errors import HopeError
from hope.storage.run import fingerprint

T = TypeVar("T")

RESULTS = Path(__file__).with_name("results")


def network_parser(
    module: str, what: str, names: Sequence[str], results: Path, more: str = ""
) -> argparse.ArgumentParser:
    """The grammar of an experiment on some networks that goes on where it stopped.

    Args:
        module: its name in this package.
        what: a sentence on what it measures.
        names: of the networks.
        results: its committed results.
        more: options that the example shows.
    """
    prog = f"python -m experiments.{module}"
    top = argparse.ArgumentParser(
        prog=prog,
        description=f"{what} Started again, it goes on where it stopped.",
        epilog=f"example: {prog} {names[0]} --data data/{more}",
    )

    def known(name: str) -> str:
        if name not in names:
            raise argparse.ArgumentTypeError(f"there is no network {name!r}: choose from {', '.join(names)}")
        return name

    reported = f"of {', '.join(names)} (default: all)"
    top.add_argument("networks", nargs="*", metavar="NETWORK", type=known, help=reported)
    top.add_argument("--data", metavar="FOLDER", help="checkpoints and images (default: $HOPE_DATA)")
    top.add_argument("--weights", metavar="FOLDER", help="another folder with checkpoints")
    top.add_argument("--out", metavar="FILE", default=str(results), help="default: the committed results")
    readme.add_arguments(top)
    return top


def opened(
    options: argparse.Namespace,
    names: Iterable[str],
    load: Callable[[str, list[Path]], tuple[nn.Module, Tensor, Tensor, T]],
) -> Iterator[tuple[str, nn.Module, Tensor, Tensor, T, dict[str, Any], Callable[[], None]]]:
    """The networks that were asked for, one after another: name, model, images and labels to measure on, what
    else was loaded, what is known of it, and what writes it down.

    Args:
        names: of all networks.
        load: a name and the folders that were given -> the model, images, labels, and more.
    """
    out = Path(options.out)
    check_out(out)
    results = json.loads(out.read_text()) if out.is_file() else {}
    folders = [data_folder(options.data), *([Path(options.weights)] if options.weights else [])]
    for name in options.networks or names:
        model, images, labels, more = load(name, folders)
        entry = results.setdefault(name, {"points": {}})
        entry |= {"images": len(images), "weights": fingerprint(model)[:16], "versions": versions()}
        if "base" not in entry:
            entry["base"] = accuracy(model, images, labels)
        yield name, model, images, labels, more, entry, lambda: write_results(out, results)


def call(
    parser: argparse.ArgumentParser,
    run: Callable[[argparse.Namespace], None],
    argv: Sequence[str] | None,
) -> int:
    """Read the command line, run, and return the exit status."""
    options = parser.parse_args(argv)
    try:
        run(options)
    except HopeError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{parser.prog}: stopped", file=sys.stderr)
        return 130
    return 0
