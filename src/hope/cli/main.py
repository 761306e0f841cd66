"""`hope`: the entry point. Errors are one line and exit status 2; a traceback only with --debug.

Only the module of the command that was asked for is imported, and none of them imports torch before it has
something to do: `hope --help` must answer at once.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NoReturn

from hope._util.allocation import allocations
from hope._version import __version__
from hope.errors import HopeError, Misused, first_line

COMMANDS = {  # a module of hope.cli each
    "inspect": "list a network's neuron layers, blocks and streams, and what is kept",
    "encode": "compress a checkpoint to a budget and save the run",
    "extract": "write the network at any moment of a saved run",
    "report": "write a page about a saved run: every step, what it did, and why",
    "plot": "draw saved runs as a figure: .svg, .pdf or .png",
    "bench": "measure what compression does to accuracy and latency, and how fast encoding is",
    "demo": "train a small network on digits and compress it, in about a minute",
}


class Parser(argparse.ArgumentParser):
    """A parser with one-line errors, like all others."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse; an option that there is not is named before one that is missing."""
        if self._subparsers is None:
            self._check_names([*args])
        return super().parse_known_args(args, namespace)

    def _check_names(self, words: Sequence[str]) -> None:
        known = [name for name in self._option_string_actions if name.startswith("--")]
        for word in words[: words.index("--") if "--" in words else None]:
            name = word.partition("=")[0]
            if not name.startswith("--") or any(one.startswith(name) for one in known):
                continue
            near = difflib.get_close_matches(name, known, 1)
            way = f"did you mean {near[0]}?" if near else f"see `{self.prog} --help`"
            raise Misused(f"there is no option {name}: {way}")

    def error(self, message: str) -> NoReturn:
        """Raise a one-line error that names the help."""
        raise Misused(f"{message} (see `{self.prog} --help`)")


def parser(argv: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """The command line's grammar; of one command line, only what its command needs."""
    top = Parser(
        prog="hope",
        description="Read a trained network as neurons and make it smaller, without data where it has batch "
        "norm.",
    )
    top.add_argument("--version", action="version", version=f"hope {__version__}")
    top.add_argument("--debug", action="store_true", help="show a traceback on errors")
    commands = top.add_subparsers(dest="command", required=True, metavar="COMMAND")
    asked = next((word for word in argv or () if not word.startswith("-")), None)
    for name, words in COMMANDS.items():
        if argv is None or name == asked:
            importlib.import_module(f"hope.cli.{name}").register(commands)
        else:
            commands.add_parser(name, help=words)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = "--debug" in words
    with _stoppable() as stopped:
        try:
            options = parser(words).parse_args(words)
            from hope._util.progress import logged

            with logged(), allocations():
                options.run(options)
            return 0
        except BrokenPipeError:  # whoever read the output has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except (Exception, KeyboardInterrupt) as error:
            if stopped or isinstance(error, KeyboardInterrupt):  # or whatever a library made of it
                print(f"hope: stopped{_again(words)}", file=sys.stderr)
                return 130
            if debug:
                raise
            if isinstance(error, (HopeError, OSError, MemoryError)):  # such as a full disk
                said = str(error) if isinstance(error, HopeError) else first_line(error)
                print(f"hope: {said}", file=sys.stderr)
                return 2
            message = f"{type(error).__name__}: {first_line(error)}"
            print(f"hope: {message} (hope --debug {shlex.join(words)} shows where)", file=sys.stderr)
            return 1


@contextmanager
def _stoppable() -> Iterator[list[int]]:
    """Ctrl-C and SIGTERM both interrupt; what is yielded has the signals that came."""
    came: list[int] = []

    def stop(number: int, _: Any) -> None:
        came.append(number)
        raise KeyboardInterrupt

    before = {}
    with suppress(ValueError):  # not in the main thread, which gets no signals
        for number in (signal.SIGTERM, signal.SIGINT):
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, stop)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _again(words: Sequence[str]) -> str:
    """How to go on with what was stopped."""
    if "encode" not in words:
        return ""
    return f"; to go on: {shlex.join(['hope', *words])}{'' if '--resume' in words else ' --resume'}"


if __name__ == "__main__":
    sys.exit(main())
