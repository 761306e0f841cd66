"""Former names of methods and options: accepted as input, and in folders that earlier versions wrote."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

FORMER = {"hope": "paper"}
OPTIONS = {"look": "sensitivity"}


def current_method(name: str) -> str:
    """A method's present name.

    >>> current_method("hope"), current_method("absorb")
    ('paper', 'absorb')
    """
    return FORMER.get(name, name)


def current_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a run, with its method and the method's options under their present names.

    >>> current_settings({"evict": True, "method": {"name": "hope", "merge": "pair"}})
    {'evict': True, 'method': {'name': 'paper', 'merge': 'pair'}}
    """
    method = settings.get("method")
    if not isinstance(method, Mapping) or not isinstance(method.get("name"), str):
        return dict(settings)
    options = {OPTIONS.get(name, name): value for name, value in method.items()}
    return {**settings, "method": {**options, "name": current_method(method["name"])}}
