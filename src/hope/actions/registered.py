"""The kinds of actions there are, and stored actions by their tags."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from typing import Any, TypeVar

import msgspec

from hope.actions.absorption import Absorption
from hope.actions.base import Action
from hope.actions.evict import Evict
from hope.actions.merge import Merge
from hope.actions.prune import Prune
from hope.actions.quantise import Quantise

A = TypeVar("A", bound=type[Action])
AnyAction = Prune | Absorption | Merge | Evict | Quantise
_KINDS: dict[str, type[Action]] = {}


def register(action: A) -> A:
    """Make a kind of action known to `encode`, `save`, `load` and reports. Usable as a decorator.

    Raises:
        ValueError: its tag is not its kind, or the kind or letter of another one.
    """
    if action.__struct_config__.tag != action.kind:
        raise ValueError(
            f"the tag of {action.__name__} must be its kind, {action.kind!r}, got "
            f"{action.__struct_config__.tag!r}: write class {action.__name__}(…, tag={action.kind!r})"
        )
    if len(action.letter) != 1 or not action.letter.isalpha():
        raise ValueError(
            f"the letter of {action.__name__} must be one letter, got {action.letter!r}: change it"
        )
    for other in (one for one in _KINDS.values() if one is not action):
        for word in ("kind", "letter"):
            if getattr(action, word) == getattr(other, word):
                raise ValueError(
                    f"the {word} of {action.__name__} must be its own, got {getattr(action, word)!r}, "
                    f"which is {other.__name__}'s: choose another, or unregister({other.__name__}) first"
                )
    _KINDS[action.kind] = action
    return action


def unregister(action: type[Action]) -> None:
    """Forget a kind of action."""
    del _KINDS[action.kind]


def kinds() -> tuple[type[Action], ...]:
    """All kinds of actions, in the order in which they were registered."""
    return tuple(_KINDS.values())


def stored_type() -> Any:
    """The type of a stored action: one of those that are registered by now, distinguished by their tags."""
    return reduce(or_, kinds())


def unknown_kind(data: Any) -> str | None:
    """The first kind in stored actions that is not registered; None if there is none."""
    tags = (one[0] for one in data if isinstance(one, list) and one) if isinstance(data, list) else ()
    return next((tag for tag in tags if isinstance(tag, str) and tag not in _KINDS), None)


def digest_of_steps(steps: Sequence[Action]) -> str:
    """A hash of what steps do, whatever they cost."""
    bare = [msgspec.structs.replace(step, cost=0.0, release=0, left=0.0) for step in steps]
    return hashlib.sha256(msgspec.json.encode(bare)).hexdigest()


def from_stored(data: Iterable[Any]) -> list[Action]:
    """Actions from their stored form.

    Raises:
        msgspec.ValidationError: the data is of no registered kind; the message says where.
    """
    return list(msgspec.convert(list(data), list[stored_type()]))  # type: ignore[misc]


for _one in (Prune, Merge, Absorption, Evict, Quantise):
    register(_one)
