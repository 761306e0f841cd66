"""What a user should know although nothing is wrong: a line on standard error."""

from __future__ import annotations

import sys


def note(words: str) -> None:
    """Say it."""
    print(f"note: {words}", file=sys.stderr)
