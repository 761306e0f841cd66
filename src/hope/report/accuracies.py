"""Accuracies measured by the user."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hope.errors import InvalidAccuracies, first_line

EXAMPLE = '{"0": 0.93, "120": 0.91}'
STEP = re.compile("0|[1-9][0-9]{0,9}")  # one way to write each number


def read_accuracies(path: Path, total: int) -> list[tuple[int, float]]:
    """(steps, accuracy) in order, from a JSON object {"steps": accuracy, ...}."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InvalidAccuracies(
            f"{path} cannot be read: {error.strerror}: give a file like {EXAMPLE}"
        ) from error
    except (ValueError, RecursionError) as error:
        raise InvalidAccuracies(
            f"{path} is not JSON ({first_line(error)}): write it like {EXAMPLE}"
        ) from error
    if not isinstance(data, dict):
        raise InvalidAccuracies(f"{path} is not an object of steps and accuracies: write it like {EXAMPLE}")
    return checked_points(data, total, str(path))


def checked_points(data: Mapping[Any, Any], total: int, source: str) -> list[tuple[int, float]]:
    """(steps, accuracy) in order, if every step is in the run and every accuracy is valid.

    >>> checked_points({10: 0.9, 0: 1}, 12, "accuracy")
    [(0, 1.0), (10, 0.9)]
    """
    points = []
    for step, value in data.items():
        key = str(step)
        if not STEP.fullmatch(key) or int(key) > total:
            shown = key if len(key) <= 20 else f"{key[:20]}…"
            raise InvalidAccuracies(
                f"{source}: steps must be 0 to {total}, those of this run, got {shown!r}: leave it out"
            )
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not 0 <= value <= 1:
            raise InvalidAccuracies(
                f"{source}: the accuracy at step {key} must be a number from 0 to 1, got another value: "
                "give a share, like 0.93"
            )
        points.append((int(key), float(value)))
    return sorted(points)
