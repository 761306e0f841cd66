"""One object per method: the units it can compress, their states, paths and prices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from typing import Any

from hope._util.names import current_method
from hope.errors import UnknownMethod
from hope.methods.absorb import Absorb
from hope.methods.calibration import SYNTHETIC
from hope.methods.method import Method
from hope.methods.paper import Paper
from hope.methods.scores import SCORES, Score

METHODS: dict[str, Callable[[], Method]] = {
    "absorb": Absorb,
    "paper": Paper,
    **{name: partial(Score, name) for name in SCORES},
}


def named(method: Method | str) -> Method:
    """A method by its name, with default options; a method object is returned unchanged.

    >>> named("hope")  # the former name of "paper"
    Paper(merge='pair', kernel='zero-bias', release='static', reading='mended')
    """
    if isinstance(method, Method):
        return method
    if isinstance(method, str) and (name := current_method(method)) in METHODS:
        return METHODS[name]()
    raise UnknownMethod(
        f"method must be one of {', '.join(METHODS)}, or hope.Absorb(...), hope.Paper(...) or "
        f"hope.Score(...), got {method!r}: leave it out for the default"
    )


def with_calibration(method: Method | str, calibration: Any) -> Method:
    """A method that collects its statistics on these inputs.

    >>> with_calibration("absorb", "dream").calibration
    'dream'
    """
    found = named(method)
    if calibration is None:
        return found
    if "calibration" not in {one.name for one in fields(found)}:
        raise UnknownMethod(
            f"calibration must go with a method that uses it, got method={found.name!r}: leave it out, "
            "or give method='absorb' or method='paper'"
        )
    return replace(found, **{"calibration": calibration})


def method_from_dict(data: Mapping[str, Any]) -> Method | None:
    """A method from `Method.to_dict`, without its inputs; None if the data describe no method.

    >>> method_from_dict({"name": "paper", "merge": "pair", "reading": "literal"})
    Paper(merge='pair', kernel='zero-bias', release='static', reading='literal')
    """
    made = METHODS.get(current_method(str(data.get("name"))))
    if made is None:
        return None
    method = made()
    own = {one.name for one in fields(method)}
    options = {"refit": False, **data}  # the oldest saved runs have none
    options["calibration"] = known if (known := data.get("calibration")) in SYNTHETIC else None
    return replace(method, **{name: value for name, value in options.items() if name in own})


__all__ = ["METHODS", "Absorb", "Method", "Paper", "Score", "method_from_dict", "named", "with_calibration"]
