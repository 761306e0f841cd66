"""Notes for the user: a line on standard error."""

from __future__ import annotations

import sys


def note(words: str) -> None:
    """Print a note."""
    print(f"note: {words}", file=sys.stderr)
