"""`hope`: the entry point. Errors are one line and exit status 2; a traceback only with --debug."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from hope._version import __version__
from hope.cli import bench, demo, encode, extract, inspect, plot, report
from hope.errors import HopeError


def parser() -> argparse.ArgumentParser:
    """The command line's grammar."""
    top = argparse.ArgumentParser(
        prog="hope", description="Read a trained network as neurons and make it smaller, without data."
    )
    top.add_argument("--version", action="version", version=f"hope {__version__}")
    top.add_argument("--debug", action="store_true", help="show a traceback when something goes wrong")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for command in (inspect, encode, extract, report, plot, bench, demo):
        command.register(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    options = parser().parse_args(argv)
    try:
        options.run(options)
    except HopeError as error:
        if options.debug:
            raise
        print(f"hope: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("hope: stopped", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
