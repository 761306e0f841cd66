"""JSON objects with a hash of themselves, which detects changes and truncation."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any


def digest_of(plan: Mapping[str, Any]) -> str:
    """A hash of a JSON object, without the hash that it contains.

    >>> digest_of({"a": 1, "sha256": "any"}) == digest_of({"a": 1})
    True
    """
    body = {key: value for key, value in plan.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def sealed(plan: Mapping[str, Any], indent: int | None = None) -> bytes:
    """A JSON object as bytes, with its hash."""
    separators = (",", ":") if indent is None else None
    return json.dumps({**plan, "sha256": digest_of(plan)}, separators=separators, indent=indent).encode()


def parsed(data: bytes) -> dict[str, Any]:
    """The JSON object that bytes hold, whoever wrote them; an empty one if they hold another value."""
    try:
        plan = json.loads(data)
    except RecursionError as error:
        raise ValueError("JSON must be nested less deeply, got more levels than Python reads") from error
    return plan if isinstance(plan, dict) else {}


def is_sealed(plan: Mapping[str, Any]) -> bool:
    """Whether a JSON object still matches its hash.

    >>> is_sealed(parsed(sealed({"a": 1}))), is_sealed({"a": 2, "sha256": digest_of({"a": 1})})
    (True, False)
    """
    try:
        return plan.get("sha256") == digest_of(plan)
    except RecursionError:
        return False
