"""An experiment on the command line: errors are one line and exit status 2, as with `hope`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from hope.errors import HopeError

RESULTS = Path(__file__).with_name("results")


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
